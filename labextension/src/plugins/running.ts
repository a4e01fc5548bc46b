import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ITranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import type { Lease } from '../api/types';
import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import { myLeases } from '../model/derive';
import { gpuNames, stateWord, taskName } from '../text/words';
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
        running(model).map(lease => ({
          icon: () => stateIcons[lease.state],
          label: () => taskName(lease, trans),
          labelTitle: () => lease.path ?? lease.name ?? '',
          detail: () =>
            lease.state === 'queued'
              ? trans.__('waiting: %1', lease.position ?? '?')
              : trans.__(
                  '%1 · %2',
                  gpuNames(lease, trans),
                  stateWord(lease.state, trans)
                ),
          open: () =>
            void app.commands.execute(CommandIDs.open, { lease: lease.id }),
          shutdown: () => void release(model, lease)
        })),
      shutdownAll: () => {
        for (const lease of running(model)) {
          void release(model, lease);
        }
      },
      refreshRunning: () => void model.refresh(),
      runningChanged: changed,
      shutdownLabel: trans.__('Release'),
      shutdownAllLabel: trans.__('Release All'),
      shutdownAllConfirmationText: trans.__(
        'Release all your GPUs and leave the queue? Kernels keep running.'
      )
    });
  }
};

function running(model: IGpuShareModel): Lease[] {
  const { status } = model.snapshot;
  return status
    ? myLeases(status).filter(lease => lease.state !== 'draining')
    : [];
}

async function release(model: IGpuShareModel, lease: Lease): Promise<void> {
  if (lease.id) {
    try {
      await model.api.release(lease.id);
    } catch (error) {
      console.warn('gpushare: not released.', error);
    }
  }
}
