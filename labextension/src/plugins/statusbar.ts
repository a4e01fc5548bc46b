import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator } from '@jupyterlab/translation';

import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { ViewWidget } from '../widgets/host';
import { StatusItemView } from '../widgets/statusitem';
import { viewServices } from './services';

export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:status-bar',
  description: 'GPUs used of the quota, in the status bar.',
  autoStart: true,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    statusBar?.registerStatusItem('jupyter-gpushare:status-bar', {
      align: 'left',
      rank: 20,
      item: new ViewWidget(
        viewServices(app, model, settings, translator),
        StatusItemView
      )
    });
  }
};
