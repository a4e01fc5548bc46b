import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';
import { historyIcon, IFrame, userIcon } from '@jupyterlab/ui-components';
import type { LabIcon } from '@jupyterlab/ui-components';
import type { Widget } from '@lumino/widgets';

import { CommandIDs } from '../commands';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { ViewWidget } from '../widgets/host';
import { HistoryView } from '../widgets/lazy';
import { viewServices } from './services';

/**
 * History, and the administration that the server's pages are: as tabs of the main area. Where the
 * application has none (Notebook 7), the browser's own tab has the administration.
 */
export const pagesPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:pages',
  description: 'Usage charts and administration in the main area.',
  autoStart: true,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [ITranslator, ILabShell, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    translator: ITranslator | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null
  ): void => {
    const services = viewServices(app, model, settings, translator);
    const { trans } = services;
    const { commands } = app;
    const isAdmin = (): boolean => model.snapshot.status?.admin ?? false;
    const history = pages(app, restorer, 'history', CommandIDs.showHistory);
    const admin = pages(app, restorer, 'admin', CommandIDs.showAdmin);

    commands.addCommand(CommandIDs.showAdmin, {
      label: trans.__('Administer GPUs'),
      caption: trans.__('Quotas, leases and events of everybody'),
      icon: userIcon,
      isEnabled: isAdmin,
      isVisible: isAdmin,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            gpu: {
              type: 'string',
              description: trans.__(
                'The UUID of a GPU to be taken out of service, or put back.'
              )
            }
          }
        }
      },
      execute: async ({ gpu }) => {
        const { baseUrl } = model.api.serverSettings;
        const url = new URL(
          typeof gpu === 'string'
            ? `gpushare/admin/drain?gpu=${encodeURIComponent(gpu)}`
            : 'gpushare/admin',
          new URL(baseUrl, location.href)
        );
        if (!labShell || url.origin !== location.origin) {
          window.open(url, '_blank', 'noopener');
          return;
        }
        const title = trans.__('GPU Administration');
        const frame = await admin(title, userIcon, () => {
          const made = new IFrame({
            sandbox: [
              'allow-downloads',
              'allow-forms',
              'allow-same-origin',
              'allow-scripts'
            ]
          });
          made.node.querySelector('iframe')!.title = title;
          return made;
        });
        if (!frame.url || typeof gpu === 'string') {
          frame.url = url.href;
        }
      }
    });
    model.changed.connect(() =>
      commands.notifyCommandChanged(CommandIDs.showAdmin)
    );
    if (labShell) {
      commands.addCommand(CommandIDs.showHistory, {
        label: trans.__('Show GPU History'),
        icon: historyIcon,
        describedBy: { args: { type: 'object', properties: {} } },
        execute: () =>
          history(trans.__('GPU History'), historyIcon, () => {
            const made = new ViewWidget(services, HistoryView);
            made.addClass('jp-gpushare-page');
            return made;
          })
      });
    }
  }
};

/** Shows the only tab of its kind, after it was made if it is not there; gives its content. */
function pages(
  app: JupyterFrontEnd,
  restorer: ILayoutRestorer | null,
  name: string,
  command: string
): <T extends Widget>(
  title: string,
  icon: LabIcon,
  make: () => T
) => Promise<T> {
  const namespace = `jupyter-gpushare-${name}`;
  const tracker = new WidgetTracker<MainAreaWidget>({ namespace });
  void restorer?.restore(tracker, { command, name: () => name });
  return async <T extends Widget>(
    title: string,
    icon: LabIcon,
    make: () => T
  ): Promise<T> => {
    const shown = tracker.currentWidget as MainAreaWidget<T> | null;
    if (shown) {
      app.shell.activateById(shown.id);
      return shown.content;
    }
    const widget = tab(namespace, title, icon, make());
    app.shell.add(widget, 'main');
    await tracker.add(widget);
    return widget.content;
  };
}

function tab<T extends Widget>(
  id: string,
  title: string,
  icon: LabIcon,
  content: T
): MainAreaWidget<T> {
  const widget = new MainAreaWidget({ content });
  widget.id = id;
  widget.title.label = title;
  widget.title.icon = icon;
  widget.title.closable = true;
  widget.toolbar.hide(); // there is nothing in it
  return widget;
}
