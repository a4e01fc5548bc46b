import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { ITranslator } from '@jupyterlab/translation';

import { IGpuShareKernels, IGpuShareModel, IGpuShareSettings } from '../tokens';
import { PredictionToolbarItem } from '../widgets/predictionitem';
import { LeaseToolbarItem } from '../widgets/toolbaritem';
import { viewServices } from './services';

/** schema/toolbar.json and the user's settings decide whether and where it is shown. */
export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:toolbar',
  description:
    "The open notebook's lease, and what its model needs, in its toolbar.",
  autoStart: true,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [IToolbarWidgetRegistry, ITranslator, IGpuShareKernels],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    toolbars: IToolbarWidgetRegistry | null,
    translator: ITranslator | null,
    kernels: IGpuShareKernels | null
  ): void => {
    const services = viewServices(app, model, settings, translator);
    toolbars?.addFactory<NotebookPanel>(
      'Notebook',
      'gpushare',
      notebook => new LeaseToolbarItem(services, notebook, kernels)
    );
    toolbars?.addFactory<NotebookPanel>(
      'Notebook',
      'gpushare-prediction',
      notebook => new PredictionToolbarItem(services, notebook)
    );
  }
};
