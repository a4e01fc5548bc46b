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
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { runLine } from '../api/kernel';
import type { Lease } from '../api/types';
import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import {
  canPark,
  canRequest,
  canResume,
  type IAsk,
  requestLine
} from '../model/asking';
import { leaseOfKernel } from '../model/derive';
import {
  doingText,
  type KernelAction,
  notDoneText,
  plainText
} from '../text/asking';
import { nameOf } from '../text/said';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { RequestForm } from '../widgets/requestform';
import { readAll } from './notifications';
import { viewServices } from './services';

/** What is done within it shows no progress, and progress stays for so long (milliseconds). */
const MOMENT = 1000;

/** So many moments a notification may take to be drawn. With *do not disturb* none is. */
const MOMENTS = 30;

const aMoment = (): Promise<null> =>
  new Promise(resolve => window.setTimeout(() => resolve(null), MOMENT));

/**
 * Wait until a notification has been drawn, or was closed.
 *
 * JupyterLab loses what it is told of a notification before that: who was refused at once saw a
 * wheel that turned for ever. It draws a notification as the element of the same id.
 */
const drawn = async (id: string): Promise<void> => {
  let left = MOMENTS;
  do {
    await aMoment();
    left -= 1;
  } while (
    left > 0 &&
    Notification.manager.has(id) &&
    !document.getElementById(id)
  );
};

/** The kernel that a command is about, and what it has. */
interface IChosen {
  readonly kernel: string;
  readonly name: string;
  readonly lease: Lease | null;
}

/**
 * The commands that only a kernel itself can carry out: ask for GPUs, park, resume.
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
      const named = status?.leases.find(({ id }) => id === args.lease);
      const kernel =
        typeof args.lease === 'string'
          ? named?.kernel_id
          : (args.kernel ??
            notebooks?.currentWidget?.sessionContext.session?.kernel?.id);
      if (typeof kernel !== 'string') {
        return null;
      }
      const lease = named ?? leaseOfKernel(status, kernel);
      const session = [...serviceManager.sessions.running()].find(
        running => running.kernel?.id === kernel
      );
      // Only Python has our magic. A kernel of an unknown language is tried.
      const specs = serviceManager.kernelspecs.specs?.kernelspecs;
      const spec = specs?.[session?.kernel?.name ?? ''];
      if (spec && spec.language.toLowerCase() !== 'python') {
        return null;
      }
      const file = session?.path.split('/').pop();
      const name = lease ? nameOf(lease) : file;
      return { kernel, name: name || trans.__('A notebook'), lease };
    };

    const runIn = async (
      { kernel, name }: IChosen,
      action: KernelAction,
      line: string
    ): Promise<void> => {
      const answer = runLine(serviceManager, kernel, line).then(
        text => ['success', trans.__('%1: %2', name, plainText(text))] as const,
        (error: unknown) => ['error', notDoneText(error, name, trans)] as const
      );
      let id = '';
      if (!(await Promise.race([answer, aMoment()]))) {
        id = Notification.emit(doingText(action, name, trans), 'in-progress', {
          autoClose: false
        });
        await drawn(id);
      }
      const [type, message] = await answer;
      const options = {
        autoClose: type === 'success' ? 8000 : (false as const),
        actions: readAll(message, trans)
      };
      // If its progress was not shown or was closed, it is told anew.
      if (!id || !Notification.update({ id, type, message, ...options })) {
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
              description: trans.__(
                'How many GPUs; a form asks if this is absent.'
              )
            },
            memory: {
              type: 'string',
              description: trans.__(
                'Memory on each, such as 8GiB; if absent, what the notebook asks for by itself.'
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
        const { gpus, memory, priorityClass } = args;
        const ask =
          typeof gpus === 'number'
            ? {
                gpus,
                memory: String(memory ?? ''),
                priorityClass: String(priorityClass ?? 'interactive')
              }
            : await asked(one);
        if (ask) {
          await runIn(one, 'request', requestLine(ask));
        }
      }
    });

    /** The input of the form; `null`: there is none. */
    const asked = async ({ name }: IChosen): Promise<IAsk | null> => {
      const answer = await showDialog({
        title: trans.__('Request GPUs for %1', name),
        body: new RequestForm(services),
        buttons: [
          Dialog.cancelButton(),
          Dialog.okButton({ label: trans.__('Request') })
        ]
      });
      return answer.button.accept ? answer.value : null;
    };

    const addLeaseCommand = (
      action: 'park' | 'resume',
      may: (lease: Lease) => boolean,
      options: Pick<
        CommandRegistry.ICommandOptions,
        'label' | 'caption' | 'icon'
      >
    ): void =>
      void commands.addCommand(CommandIDs[action], {
        ...options,
        describedBy: { args: { type: 'object', properties } },
        isEnabled: args => {
          const lease = chosen(args)?.lease;
          return lease ? may(lease) : false;
        },
        execute: async args => {
          const one = chosen(args);
          if (one) {
            await runIn(one, action, `%gpushare ${action}`);
          }
        }
      });
    addLeaseCommand('park', canPark, {
      label: trans.__('Park GPU'),
      caption: trans.__(
        'Give the GPU back and keep the variables; the next cell takes a GPU again'
      ),
      icon: stateIcons.parking
    });
    addLeaseCommand('resume', canResume, {
      label: trans.__('Resume GPU'),
      caption: trans.__('Get a GPU again for the parked notebook'),
      icon: stateIcons.resuming
    });

    // Buttons and the palette ask again only when they are told that an answer may have changed.
    const ids = [CommandIDs.request, CommandIDs.park, CommandIDs.resume];
    const changed = (): void =>
      ids.forEach(id => commands.notifyCommandChanged(id));
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
