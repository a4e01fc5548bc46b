import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import { IStateDB } from '@jupyterlab/statedb';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { type Expanded, GpuSharePanel } from '../widgets/panel';
import { viewServices } from './services';

/** Within the range that JupyterLab leaves to extensions (501 to 899). */
const RANK = 610;
/** Where the panel's state is kept in the user's workspace. */
const STATE = 'jupyter-gpushare:panel';

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:panel',
  description: 'The sidebar: quota, leases, queue and GPUs.',
  autoStart: true,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [ITranslator, ILayoutRestorer, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    translator: ITranslator | null,
    restorer: ILayoutRestorer | null,
    state: IStateDB | null
  ): void => {
    const services = viewServices(app, model, settings, translator);
    const panel = new GpuSharePanel(services, translator ?? nullTranslator);
    // Not awaited: what was kept is known only when the application has started.
    void remembered(state).then(expanded => {
      panel.restoreExpanded(expanded);
      panel.expandedChanged.connect((_, changed) => {
        void state?.save(STATE, { expanded: changed });
      });
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
  }
};

/** Which sections were open; none is known where nothing, or nonsense, was kept. */
async function remembered(state: IStateDB | null): Promise<Expanded> {
  const kept = await state?.fetch(STATE).catch(() => undefined);
  const expanded = (kept as { expanded?: unknown } | undefined)?.expanded;
  return typeof expanded === 'object' && expanded !== null
    ? (expanded as Expanded)
    : {};
}
