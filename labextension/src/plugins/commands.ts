import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  Dialog,
  ICommandPalette,
  InputDialog,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import { closeIcon, launchIcon, refreshIcon } from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import type { Lease } from '../api/types';
import { CommandIDs } from '../commands';
import { keepIcon, releaseIcon } from '../icons';
import { canRelease, leaseOfKernel, myLeases } from '../model/derive';
import { canKeep } from '../model/parking';
import { type IRow, jobOf, releasable, rowsOf } from '../model/jobs';
import { underRoot } from '../model/paths';
import { formatDuration } from '../text/format';
import { releaseTitle, rowGpus, rowName } from '../text/jobs';
import { about, nameOf, wordsOf } from '../text/said';
import { IGpuShareModel } from '../tokens';
import { translations } from './services';

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:commands',
  description: 'What can be done with leases, as commands.',
  autoStart: true,
  requires: [IGpuShareModel],
  optional: [ITranslator, INotebookTracker, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    translator: ITranslator | null,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null
  ): void => {
    const trans = translations(translator);
    const { commands } = app;

    /** The lease a command is about: the one named, else the current notebook's. */
    const chosen = (args: ReadonlyPartialJSONObject): Lease | null => {
      const status = model.snapshot.status;
      if (typeof args.lease === 'string') {
        return status?.leases.find(lease => lease.id === args.lease) ?? null;
      }
      const kernel =
        notebooks?.currentWidget?.sessionContext.session?.kernel?.id;
      return leaseOfKernel(status, kernel);
    };
    /**
     * The leases that a command may be about: as `chosen`, but where no notebook is looked at (a
     * terminal is, say) all of mine. Programs have no notebook.
     */
    const fitting = (
      args: ReadonlyPartialJSONObject,
      may: (lease: Lease) => boolean
    ): Lease[] => {
      const { currentWidget } = app.shell;
      const { status } = model.snapshot;
      if (typeof args.job === 'string') {
        return status
          ? myLeases(status).filter(
              lease => lease.job === args.job && may(lease)
            )
          : [];
      }
      const one =
        typeof args.lease === 'string' ||
        (currentWidget !== null && currentWidget === notebooks?.currentWidget);
      const leases = one ? [chosen(args)] : status ? myLeases(status) : [];
      return leases.filter(
        (lease): lease is Lease => lease !== null && lease.mine && may(lease)
      );
    };
    /** The only one of their rows, or the one that is chosen in a dialog. */
    const rowOf = async (
      title: string,
      leases: readonly Lease[]
    ): Promise<IRow | null> => {
      const rows = rowsOf(leases);
      if (rows.length < 2) {
        return rows[0] ?? null;
      }
      const names = rows.map((row, place) => {
        const where = rowGpus(row);
        const name = trans.__('%1. %2', place + 1, rowName(row));
        return where ? trans.__('%1 · %2', name, where) : name;
      });
      const answer = await InputDialog.getItem({
        title,
        label: trans.__('Notebook, program or job'),
        items: names
      });
      const place = answer.button.accept
        ? names.indexOf(answer.value ?? '')
        : -1;
      return rows[place] ?? null;
    };
    /** The same for what is done with one lease. */
    const oneOf = async (
      title: string,
      leases: readonly Lease[]
    ): Promise<Lease | null> => (await rowOf(title, leases))?.leases[0] ?? null;
    const mayRelease = (lease: Lease): boolean => canRelease(lease.state);
    const mayCancel = (lease: Lease): boolean => lease.state === 'queued';
    const mayKeep = (lease: Lease): boolean => {
      const node = model.snapshot.status?.node;
      return node !== undefined && canKeep(lease, node);
    };
    const leaseArgs = {
      args: {
        type: 'object',
        properties: {
          lease: {
            type: 'string',
            description: trans.__(
              "The lease's id; by default the current notebook's lease."
            )
          }
        }
      }
    };
    /** Do something that may fail, and tell so. */
    const attempt = async (
      what: string,
      action: () => Promise<unknown>
    ): Promise<void> => {
      try {
        await action();
      } catch (error) {
        Notification.error(
          trans.__(
            '%1 failed: %2',
            what,
            error instanceof Error ? error.message : String(error)
          )
        );
      }
    };

    /** A job of mine as it is now; it may have grown since a dialog was opened. */
    const jobNow = (job: string): IRow | undefined =>
      rowsOf(fitting({ job }, () => true))[0];
    const releaseJob = async (job: string): Promise<void> => {
      const row = jobNow(job);
      const { status } = model.snapshot;
      if (!row || !status) {
        return;
      }
      const answer = await showDialog({
        title: releaseTitle(row, trans),
        body: about(jobOf(row, status), 'what')[0]?.hint ?? '',
        buttons: [
          Dialog.cancelButton(),
          Dialog.warnButton({ label: trans.__('Release') })
        ]
      });
      const now = jobNow(job);
      if (answer.button.accept && now) {
        await attempt(trans.__('Releasing'), () =>
          model.api.releaseAll(releasable(now).flatMap(({ id }) => id ?? []))
        );
      }
    };

    commands.addCommand(CommandIDs.refresh, {
      label: trans.__('Refresh GPUs'),
      caption: trans.__('Ask the node manager for the newest state'),
      icon: refreshIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => model.refresh()
    });

    commands.addCommand(CommandIDs.release, {
      label: trans.__('Release GPU'),
      caption: trans.__('Give the GPU back; the kernel keeps running'),
      icon: releaseIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ...leaseArgs.args.properties,
            job: {
              type: 'string',
              description: trans.__(
                'The name of a job of mine: all its leases are meant.'
              )
            }
          }
        }
      },
      isEnabled: args => fitting(args, mayRelease).length > 0,
      execute: async args => {
        const row = await rowOf(
          trans.__('Release the GPU of …'),
          fitting(args, mayRelease)
        );
        if (row && row.job !== null) {
          await releaseJob(row.job);
          return;
        }
        const lease = row?.leases[0];
        const id = lease?.id;
        if (!lease || !id) {
          return;
        }
        if (lease.state === 'active') {
          const answer = await showDialog({
            title: trans.__('Release the GPU of %1?', nameOf(lease)),
            body: trans.__(
              'It runs code now. The lease ends at once; memory that the code holds on the GPU is only freed when the code releases it.'
            ),
            buttons: [
              Dialog.cancelButton(),
              Dialog.warnButton({ label: trans.__('Release') })
            ]
          });
          if (!answer.button.accept) {
            return;
          }
        }
        await attempt(trans.__('Releasing'), () => model.api.release(id));
      }
    });

    commands.addCommand(CommandIDs.cancel, {
      label: trans.__('Cancel Waiting for a GPU'),
      caption: trans.__('Leave the queue; the code goes on without a GPU'),
      icon: closeIcon,
      describedBy: leaseArgs,
      isEnabled: args => fitting(args, mayCancel).length > 0,
      execute: async args => {
        const lease = await oneOf(
          trans.__('Cancel waiting for …'),
          fitting(args, mayCancel)
        );
        const id = lease?.id;
        if (id) {
          await attempt(trans.__('Cancelling'), () => model.api.release(id));
        }
      }
    });

    commands.addCommand(CommandIDs.keep, {
      label: args =>
        typeof args.seconds !== 'number'
          ? trans.__('Keep GPU')
          : args.seconds === 0
            ? trans.__('Keep GPU No Longer')
            : trans.__('Keep GPU for %1', formatDuration(args.seconds, trans)),
      caption: trans.__('Keep the GPU although no code runs'),
      icon: keepIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ...leaseArgs.args.properties,
            seconds: {
              type: 'number',
              minimum: 0,
              description: trans.__(
                'For how long; 0: no longer; the usual time if absent.'
              )
            }
          }
        }
      },
      isEnabled: args => fitting(args, mayKeep).length > 0,
      execute: async args => {
        const lease = await oneOf(
          trans.__('Keep the GPU of …'),
          fitting(args, mayKeep)
        );
        const id = lease?.id;
        if (!lease || !id) {
          return;
        }
        const seconds =
          typeof args.seconds === 'number' ? args.seconds : undefined;
        await attempt(trans.__('Keeping the GPU'), async () => {
          await model.api.keep(id, seconds);
          if (seconds !== 0) {
            // The node manager says until when: it may be less than what was asked.
            const { leases, node } = await model.api.status();
            const kept = leases.find(other => other.id === id);
            const reader = { trans, now: node.time };
            const until = wordsOf(about(kept, 'kept'), reader);
            Notification.success(
              trans.__('%1: %2', nameOf(lease), until || trans.__('Kept.')),
              { autoClose: 5000 }
            );
          }
        });
      }
    });

    commands.addCommand(CommandIDs.open, {
      label: trans.__('Open What Holds the GPU'),
      icon: launchIcon,
      describedBy: leaseArgs,
      isEnabled: args => chosen(args) !== null,
      execute: async args => {
        const lease = chosen(args);
        if (!lease) {
          return;
        }
        const path = openPath(app, lease);
        if (path === null || !commands.hasCommand('docmanager:open')) {
          Notification.info(
            trans.__(
              '%1 does not run under this server, so it cannot be opened here.',
              nameOf(lease)
            )
          );
          return;
        }
        await attempt(trans.__('Opening'), () =>
          commands.execute('docmanager:open', { path })
        );
      }
    });

    commands.addCommand(CommandIDs.restartKernel, {
      label: trans.__('Restart the Kernel That Holds the GPU'),
      icon: refreshIcon,
      describedBy: leaseArgs,
      isEnabled: args => Boolean(chosen(args)?.kernel_id),
      execute: async args => {
        const lease = chosen(args);
        const id = lease?.kernel_id;
        if (!lease || !id) {
          return;
        }
        const answer = await showDialog({
          title: trans.__('Restart the kernel of %1?', nameOf(lease)),
          body: trans.__(
            'All its variables will be lost. Its GPU memory is freed.'
          ),
          buttons: [
            Dialog.cancelButton(),
            Dialog.warnButton({ label: trans.__('Restart') })
          ]
        });
        if (answer.button.accept) {
          await attempt(trans.__('Restarting'), async () => {
            const model = await app.serviceManager.kernels.findById(id);
            if (!model) {
              throw new Error(
                trans.__('this server does not run that kernel.')
              );
            }
            const kernel = app.serviceManager.kernels.connectTo({ model });
            try {
              await kernel.restart();
            } finally {
              kernel.dispose();
            }
          });
        }
      }
    });

    commands.addCommand(CommandIDs.startElsewhere, {
      label: args => trans.__('Start on %1…', String(args.host ?? '')),
      caption: trans.__(
        'Start this kernel again on a host of the pool that has a free GPU; its variables are lost'
      ),
      icon: refreshIcon,
      describedBy: {
        args: {
          type: 'object',
          required: ['host'],
          properties: {
            ...leaseArgs.args.properties,
            host: {
              type: 'string',
              description: trans.__("The host's name in the pool.")
            }
          }
        }
      },
      isEnabled: args =>
        typeof args.host === 'string' && Boolean(chosen(args)?.kernel_id),
      execute: async args => {
        const lease = chosen(args);
        const id = lease?.kernel_id;
        const { host } = args;
        if (!lease || !id || typeof host !== 'string') {
          return;
        }
        const answer = await showDialog({
          title: trans.__('Start %1 on %2?', nameOf(lease), host),
          body: trans.__(
            'Its kernel ends here and starts again on %1. All its variables will be lost; the notebook stays open.',
            host
          ),
          buttons: [
            Dialog.cancelButton(),
            Dialog.warnButton({ label: trans.__('Start on %1', host) })
          ]
        });
        if (answer.button.accept) {
          await attempt(trans.__('Starting on %1', host), async () => {
            await model.api.startOn(id, host);
            // Its session may have another kernel now.
            await app.serviceManager.sessions.refreshRunning();
          });
        }
      }
    });

    if (palette) {
      const category = trans.__('GPUs');
      for (const command of [
        CommandIDs.showPanel,
        CommandIDs.refresh,
        CommandIDs.release,
        CommandIDs.keep,
        CommandIDs.cancel,
        CommandIDs.restartKernel,
        CommandIDs.showHistory,
        CommandIDs.showAdmin
      ]) {
        palette.addItem({ command, category });
      }
    }
  }
};

/** The path, under this server's root, of what holds a lease; `null` where there is none. */
function openPath(app: JupyterFrontEnd, lease: Lease): string | null {
  for (const session of app.serviceManager.sessions.running()) {
    if (lease.kernel_id && session.kernel?.id === lease.kernel_id) {
      return session.path;
    }
  }
  return lease.path
    ? underRoot(lease.path, PageConfig.getOption('serverRoot'))
    : null;
}
