import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import type { PartialJSONObject } from '@lumino/coreutils';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';

/** As much of a cell's outputs as is looked at here. */
export interface IOutputs {
  readonly length: number;
  get(place: number): { readonly metadata: { readonly gpushare?: unknown } };
  set(place: number, output: PartialJSONObject): void;
}

/** In these states of a kernel none of its cells waits for a GPU any more. */
const OVER: ReadonlySet<Kernel.Status> = new Set<Kernel.Status>([
  'restarting',
  'autorestarting',
  'terminating',
  'dead'
]);

/** An output that is true only while its cell waits; the kernel marks it so. */
function isWaiting(metadata: { readonly gpushare?: unknown }): boolean {
  const ours = metadata.gpushare as { waits?: unknown } | undefined;
  return ours?.waits === true;
}

/** Say in the place of each wait in a cell's outputs how it ended. */
export function endWaits(outputs: IOutputs, text: string): void {
  for (let place = 0; place < outputs.length; place++) {
    if (isWaiting(outputs.get(place).metadata)) {
      outputs.set(place, {
        output_type: 'display_data',
        data: { 'text/plain': text },
        metadata: {}
      });
    }
  }
}

/** A kernel that is restarted or dies while a cell waits can no longer say that the wait is over. */
export const waitsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:waits',
  description:
    'Ends what a cell says of a wait for a GPU when its kernel ends.',
  autoStart: true,
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, translator: ITranslator | null): void => {
    const trans = (translator ?? nullTranslator).load('jupyter-gpushare');
    const text = trans.__('Stopped waiting: the kernel ended.');
    const end = (panel: NotebookPanel): void => {
      for (const cell of panel.content.model?.cells ?? []) {
        if (cell.type === 'code') {
          endWaits((cell as unknown as { outputs: IOutputs }).outputs, text);
        }
      }
    };
    app.docRegistry.addWidgetExtension('Notebook', {
      createNew(panel: NotebookPanel): IDisposable {
        const session = panel.sessionContext;
        const changed = (_: unknown, status: Kernel.Status): void => {
          if (OVER.has(status)) {
            end(panel);
          }
        };
        session.statusChanged.connect(changed);
        // The file may have been saved while a cell waited, and its kernel may have ended since.
        void Promise.all([panel.revealed, session.ready]).then(() => {
          const status = session.session?.kernel?.status;
          if (
            !panel.isDisposed &&
            (status === undefined || status === 'idle')
          ) {
            end(panel);
          }
        });
        return new DisposableDelegate(() => {
          session.statusChanged.disconnect(changed);
        });
      }
    });
  }
};
