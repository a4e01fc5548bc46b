import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import { IStateDB } from '@jupyterlab/statedb';
import { LackingKernels } from '../model/kernels';
import { IGpuShareKernels, IGpuShareModel, IGpuShareSettings } from '../tokens';
import { type Expanded, GpuSharePanel } from '../widgets/panel';
import { viewServices } from './services';

/** Within the range that JupyterLab leaves to extensions (501 to 899). */
const RANK = 610;
/** Where the panel's state is kept in the user's workspace. */
const STATE = 'jupyter-gpushare:panel';

export const panelPlugin: JupyterFrontEndPlugin<IGpuShareKernels> = {
  id: 'jupyter-gpushare:panel',
  description: 'The sidebar: quota, leases, queue and GPUs.',
  autoStart: true,
  provides: IGpuShareKernels,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [ITranslator, ILayoutRestorer, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null,
    state: IStateDB | null
  ): IGpuShareKernels => {
    const services = viewServices(app, model, settings, translator);
    const kernels = lackingKernels(app, model);
    const panel = new GpuSharePanel(
      services,
      kernels,
      translator ?? nullTranslator
    );
    // Not awaited: what was kept is known only when the application has started.
    void remembered(state).then(({ expanded, dismissed }) => {
      panel.restoreExpanded(expanded);
      kernels.restore(dismissed);
      let open = expanded;
      const save = (): void =>
        void state?.save(STATE, {
          expanded: open,
          dismissed: kernels.dismissed
        });
      panel.expandedChanged.connect((_, changed) => {
        open = changed;
        save();
      });
      kernels.dismissedChanged.connect(save);
    });
    let side = settings.values.placement;
    app.shell.add(panel, side, { rank: RANK, type: 'GPUs' });
    restorer?.add(panel, panel.id);
    settings.changed.connect(() => {
      if (settings.values.placement !== side) {
        side = settings.values.placement;
        app.shell.add(panel, side, { rank: RANK, type: 'GPUs' });
        app.shell.activateById(panel.id);
      }
    });
    app.commands.addCommand(CommandIDs.showPanel, {
      label: services.trans.__('Show GPUs'),
      caption: services.trans.__('Show quota, leases, queue and GPUs'),
      icon: gpuIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => app.shell.activateById(panel.id)
    });
    return kernels;
  }
};

/** Looks at the kernels when the page starts, and whenever there are others. */
function lackingKernels(
  app: JupyterFrontEnd,
  model: IGpuShareModel
): LackingKernels {
  const { kernels, kernelspecs } = app.serviceManager;
  const lacking = new LackingKernels(model.api, () =>
    [...kernels.running()].map(({ name }) => name)
  );
  void app.started.then(() => lacking.refresh());
  kernels.runningChanged.connect(() => lacking.observe());
  kernelspecs.specsChanged.connect(() => void lacking.refresh());
  return lacking;
}

/** Which sections were open, and which Pythons were dismissed; nothing where nonsense was kept. */
async function remembered(
  state: IStateDB | null
): Promise<{ expanded: Expanded; dismissed: string[] }> {
  const kept = await state?.fetch(STATE).catch(() => undefined);
  const { expanded, dismissed } = (kept ?? {}) as Record<string, unknown>;
  return {
    expanded:
      typeof expanded === 'object' && expanded !== null
        ? (expanded as Expanded)
        : {},
    dismissed: Array.isArray(dismissed)
      ? dismissed.filter(one => typeof one === 'string')
      : []
  };
}
