import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { commandsPlugin } from './plugins/commands';
import { kernelCommandsPlugin } from './plugins/kernelcommands';
import { notificationsPlugin } from './plugins/notifications';
import { pagesPlugin } from './plugins/pages';
import { panelPlugin } from './plugins/panel';
import { runningPlugin } from './plugins/running';
import { modelPlugin, settingsPlugin } from './plugins/services';
import { statusBarPlugin } from './plugins/statusbar';
import { toolbarPlugin } from './plugins/toolbar';
import { waitsPlugin } from './plugins/waits';

export { IGpuShareModel, IGpuShareSettings } from './tokens';

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- what they provide differs
const plugins: JupyterFrontEndPlugin<any>[] = [
  settingsPlugin,
  modelPlugin,
  pagesPlugin,
  commandsPlugin,
  kernelCommandsPlugin,
  panelPlugin,
  runningPlugin,
  toolbarPlugin,
  statusBarPlugin,
  notificationsPlugin,
  waitsPlugin
];

export default plugins;
