import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ITranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import { myLeases } from '../model/derive';
import { type IRow, jobOf, jobState, rowsOf } from '../model/jobs';
import { rowGpus, rowName } from '../text/jobs';
import { about, wordsOf } from '../text/said';
import { IGpuShareModel } from '../tokens';
import { translations } from './services';

/** My leases among the running sessions; shutting one down there is releasing it. */
export const runningPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:running',
  description: 'GPU leases in the panel of running sessions.',
  autoStart: true,
  requires: [IGpuShareModel],
  optional: [IRunningSessionManagers, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    managers: IRunningSessionManagers | null,
    translator: ITranslator | null
  ): void => {
    if (!managers) {
      return;
    }
    const trans = translations(translator);
    const changed = new Signal<object, void>({});
    // The list is made anew at each signal: only what it shows is worth one.
    let shown = '';
    model.changed.connect(() => {
      const now = running(model)
        .flatMap(({ leases }) => leases)
        .map(lease => `${lease.id} ${lease.state} ${lease.position ?? ''}`)
        .join('\n');
      if (now !== shown) {
        shown = now;
        changed.emit();
      }
    });
    managers.add({
      name: trans.__('GPU Leases'),
      running: () =>
        running(model).map(row => {
          const [lease] = row.leases;
          const { status } = model.snapshot;
          const told = status && jobOf(row, status);
          return {
            icon: () => stateIcons[jobState(row.leases)],
            label: () => rowName(row),
            labelTitle: () =>
              row.job === null
                ? (lease.path ?? lease.name ?? '')
                : about(told, 'what')[0].text,
            detail: () =>
              row.job === null
                ? wordsOf(about(lease, 'summary'), { trans, now: model.now() })
                : `${rowGpus(row)} · ${about(told, 'state')[0].text}`,
            // A job has nothing that could be opened.
            ...(row.job === null && {
              open: () =>
                void app.commands.execute(CommandIDs.open, { lease: lease.id })
            }),
            shutdown: () => void release(model, [row])
          };
        }),
      shutdownAll: () => void release(model, running(model)),
      refreshRunning: () => void model.refresh(),
      runningChanged: changed,
      shutdownLabel: trans.__('Release'),
      shutdownAllLabel: trans.__('Release All'),
      shutdownAllConfirmationText: trans.__(
        'Release all your GPUs and leave the queue? Kernels keep running; jobs stop.'
      )
    });
  }
};

function running(model: IGpuShareModel): IRow[] {
  const { status } = model.snapshot;
  return status
    ? rowsOf(myLeases(status).filter(lease => lease.state !== 'draining'))
    : [];
}

async function release(
  model: IGpuShareModel,
  rows: readonly IRow[]
): Promise<void> {
  try {
    await model.api.releaseAll(
      rows.flatMap(({ leases }) => leases.flatMap(({ id }) => id ?? []))
    );
  } catch (error) {
    console.warn('gpushare: not released.', error);
  }
}
