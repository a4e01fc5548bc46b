import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  Dialog,
  ICommandPalette,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';
import { addIcon } from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { runLine } from '../api/kernel';
import type { Lease } from '../api/types';
import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import {
  canPark,
  canRequest,
  canResume,
  FIRST_DRAFT,
  type IAsk,
  readAsk,
  requestLine
} from '../model/asking';
import { leaseOfKernel } from '../model/derive';
import {
  doingText,
  type KernelAction,
  notDoneText,
  plainText
} from '../text/asking';
import { taskName } from '../text/words';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { RequestForm } from '../widgets/requestform';
import { readAll } from './notifications';
import { viewServices } from './services';

/** The kernel that a command is about, and what it has. */
interface IChosen {
  readonly kernel: string;
  readonly name: string;
  readonly lease: Lease | null;
}

/**
 * What only a kernel itself can do: ask for GPUs, park, resume.
 *
 * A lease belongs to the process that holds it. So the kernel is told by a line of our magic, as
 * its owner would type it, and what it says is shown in a notification.
 */
export const kernelCommandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:kernel-commands',
  description: 'Ask for GPUs, park and resume in a kernel, as commands.',
  autoStart: true,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [ITranslator, INotebookTracker, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    translator: ITranslator | null,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null
  ): void => {
    const { commands, serviceManager } = app;
    const services = viewServices(app, model, settings, translator);
    const { trans } = services;

    /** The kernel named, that of the lease named, or the current notebook's. */
    const chosen = (args: ReadonlyPartialJSONObject): IChosen | null => {
      const { status } = model.snapshot;
      if (typeof args.lease === 'string') {
        const lease = status?.leases.find(({ id }) => id === args.lease);
        return lease?.kernel_id
          ? { kernel: lease.kernel_id, name: taskName(lease, trans), lease }
          : null;
      }
      const kernel =
        typeof args.kernel === 'string'
          ? args.kernel
          : notebooks?.currentWidget?.sessionContext.session?.kernel?.id;
      if (!kernel || !isPython(kernel)) {
        return null;
      }
      return {
        kernel,
        name: nameOf(kernel),
        lease: leaseOfKernel(status, kernel)
      };
    };
    /** Whether our magic can be there; what is not known is tried. */
    const isPython = (kernel: string): boolean => {
      const session = sessionOf(kernel);
      const specs = serviceManager.kernelspecs.specs?.kernelspecs;
      const spec = session?.kernel ? specs?.[session.kernel.name] : undefined;
      return !spec || spec.language.toLowerCase() === 'python';
    };
    const sessionOf = (kernel: string) => {
      for (const session of serviceManager.sessions.running()) {
        if (session.kernel?.id === kernel) {
          return session;
        }
      }
      return null;
    };
    const nameOf = (kernel: string): string => {
      const path = sessionOf(kernel)?.path ?? '';
      return path.split('/').pop() || trans.__('A notebook');
    };

    const runIn = async (
      { kernel, name }: IChosen,
      action: KernelAction,
      line: string
    ): Promise<void> => {
      const id = Notification.emit(
        doingText(action, name, trans),
        'in-progress',
        { autoClose: false }
      );
      try {
        const text = plainText(await runLine(serviceManager, kernel, line));
        tell(id, 'success', trans.__('%1: %2', name, text));
      } catch (error) {
        tell(id, 'error', notDoneText(error, name, trans));
      }
    };
    /** Say how it ended where its progress is shown, or anew if that was closed. */
    const tell = (
      id: string,
      type: 'success' | 'error',
      message: string
    ): void => {
      const options = {
        autoClose: type === 'success' ? 8000 : (false as const),
        actions: readAll(message, trans)
      };
      if (!Notification.update({ id, type, message, ...options })) {
        Notification.emit(message, type, options);
      }
    };

    const properties = {
      lease: {
        type: 'string',
        description: trans.__(
          "The lease's id; by default the current notebook's lease."
        )
      },
      kernel: {
        type: 'string',
        description: trans.__(
          "The kernel's id; by default the current notebook's kernel."
        )
      }
    };

    commands.addCommand(CommandIDs.request, {
      label: trans.__('Request GPU…'),
      caption: trans.__('Ask for GPUs for the current notebook'),
      icon: addIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ...properties,
            gpus: {
              type: 'number',
              minimum: 1,
              description: trans.__('How many; a form asks for it if absent.')
            },
            memory: {
              type: 'string',
              description: trans.__(
                'Memory on each, such as 8GiB; if absent as the notebook asks by itself.'
              )
            },
            priorityClass: { type: 'string', enum: ['interactive', 'batch'] }
          }
        }
      },
      isEnabled: args => {
        const one = chosen(args);
        return one !== null && canRequest(one.lease);
      },
      execute: async args => {
        const one = chosen(args);
        if (!one) {
          return;
        }
        const ask = await asked(one, args);
        if (ask) {
          await runIn(one, 'request', requestLine(ask));
        }
      }
    });

    /** What to ask for: what the caller says, else what is typed; `null`: nothing. */
    const asked = async (
      { name }: IChosen,
      args: ReadonlyPartialJSONObject
    ): Promise<IAsk | null> => {
      let draft = {
        gpus: String(args.gpus ?? FIRST_DRAFT.gpus),
        memory: String(args.memory ?? FIRST_DRAFT.memory),
        priorityClass:
          args.priorityClass === 'batch' ? 'batch' : FIRST_DRAFT.priorityClass
      } as const satisfies typeof FIRST_DRAFT as typeof FIRST_DRAFT;
      if (typeof args.gpus === 'number') {
        const { ask } = readAsk(draft);
        if (ask) {
          return ask;
        }
      }
      for (;;) {
        const answer = await showDialog({
          title: trans.__('Request GPUs for %1', name),
          body: new RequestForm(services, draft),
          buttons: [
            Dialog.cancelButton(),
            Dialog.okButton({ label: trans.__('Request') })
          ]
        });
        if (!answer.button.accept || !answer.value) {
          return null;
        }
        draft = answer.value;
        const { ask } = readAsk(draft);
        if (ask) {
          return ask;
        }
        // The form says what is wrong with what was typed: it is shown again.
      }
    };

    commands.addCommand(CommandIDs.park, {
      label: trans.__('Park GPU'),
      caption: trans.__(
        'Give the GPU back and keep the variables; the next cell takes a GPU again'
      ),
      icon: stateIcons.parking,
      describedBy: { args: { type: 'object', properties } },
      isEnabled: args => {
        const lease = chosen(args)?.lease ?? null;
        return lease !== null && canPark(lease);
      },
      execute: async args => {
        const one = chosen(args);
        if (one) {
          await runIn(one, 'park', '%gpushare park');
        }
      }
    });

    commands.addCommand(CommandIDs.resume, {
      label: trans.__('Resume GPU'),
      caption: trans.__('Have a GPU again for what is parked'),
      icon: stateIcons.resuming,
      describedBy: { args: { type: 'object', properties } },
      isEnabled: args => {
        const lease = chosen(args)?.lease ?? null;
        return lease !== null && canResume(lease);
      },
      execute: async args => {
        const one = chosen(args);
        if (one) {
          await runIn(one, 'resume', '%gpushare resume');
        }
      }
    });

    // Buttons and the palette ask again only when they are told that an answer has changed.
    const ids = [CommandIDs.request, CommandIDs.park, CommandIDs.resume];
    let before = '';
    const changed = (): void => {
      const now = ids.map(id => commands.isEnabled(id)).join();
      if (now !== before) {
        before = now;
        ids.forEach(id => commands.notifyCommandChanged(id));
      }
    };
    changed(); // who shows them may have come before them
    model.changed.connect(changed);
    serviceManager.sessions.runningChanged.connect(changed);
    notebooks?.currentChanged.connect((_, notebook) => {
      changed();
      notebook?.sessionContext.kernelChanged.connect(changed);
    });

    ids.forEach(command =>
      palette?.addItem({ command, category: trans.__('GPUs') })
    );
  }
};
