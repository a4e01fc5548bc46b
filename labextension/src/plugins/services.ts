import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import {
  ITranslator,
  nullTranslator,
  type TranslationBundle
} from '@jupyterlab/translation';

import { GpuShareApi } from '../api/rest';
import { GpuShareModel } from '../model/model';
import { GpuShareSettings } from '../model/settings';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import type { IViewServices } from '../widgets/host';

/** The translations of this extension. */
export function translations(
  translator: ITranslator | null
): TranslationBundle {
  return (translator ?? nullTranslator).load('jupyter_gpushare');
}

/** Makes the services of every view from a plugin's arguments. */
export function viewServices(
  app: JupyterFrontEnd,
  model: IGpuShareModel,
  settings: IGpuShareSettings,
  translator: ITranslator | null
): IViewServices {
  return {
    model,
    settings,
    commands: app.commands,
    trans: translations(translator)
  };
}

export const settingsPlugin: JupyterFrontEndPlugin<IGpuShareSettings> = {
  id: 'jupyter-gpushare:settings',
  description: 'The settings of the shared GPUs panel.',
  autoStart: true,
  provides: IGpuShareSettings,
  optional: [ISettingRegistry],
  activate: async (
    _app: JupyterFrontEnd,
    registry: ISettingRegistry | null
  ): Promise<IGpuShareSettings> => {
    try {
      return new GpuShareSettings(
        registry ? await registry.load(settingsPlugin.id) : null
      );
    } catch (error) {
      console.warn('gpushare: no settings, the defaults hold.', error);
      return new GpuShareSettings(null);
    }
  }
};

export const modelPlugin: JupyterFrontEndPlugin<IGpuShareModel> = {
  id: 'jupyter-gpushare:model',
  description: 'The state of the shared GPUs, kept up to date by the server.',
  autoStart: true,
  provides: IGpuShareModel,
  activate: (app: JupyterFrontEnd): IGpuShareModel => {
    const model = new GpuShareModel(
      new GpuShareApi(app.serviceManager.serverSettings)
    );
    // The first connection may wait: the application's own start comes before it.
    void app.started.then(() => model.start());
    return model;
  }
};
