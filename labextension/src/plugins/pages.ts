import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';
import { historyIcon, userIcon } from '@jupyterlab/ui-components';
import type { LabIcon } from '@jupyterlab/ui-components';
import type React from 'react';

import { CommandIDs } from '../commands';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { type IViewServices, ViewWidget } from '../widgets/host';
import { AdminView, HistoryView } from '../widgets/lazy';
import { viewServices } from './services';

interface IPage {
  readonly name: string;
  readonly command: string;
  readonly label: string;
  readonly title: string;
  readonly icon: LabIcon;
  readonly View: React.ComponentType;
  isEnabled(): boolean;
}

/** History and administration with room: as tabs of the main area, where the shell has one. */
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
    if (!labShell) {
      return; // Notebook 7 has one document a page; the sections of the sidebar are enough
    }
    const services = viewServices(app, model, settings, translator);
    const { trans } = services;
    const pages: IPage[] = [
      {
        name: 'history',
        command: CommandIDs.showHistory,
        label: trans.__('Show GPU History'),
        title: trans.__('GPU History'),
        icon: historyIcon,
        View: HistoryView,
        isEnabled: () => true
      },
      {
        name: 'admin',
        command: CommandIDs.showAdmin,
        label: trans.__('Administer GPUs'),
        title: trans.__('GPU Administration'),
        icon: userIcon,
        View: AdminView,
        isEnabled: () => model.snapshot.status?.admin ?? false
      }
    ];
    for (const page of pages) {
      const tracker = new WidgetTracker<MainAreaWidget>({
        namespace: `jupyter-gpushare-${page.name}`
      });
      app.commands.addCommand(page.command, {
        label: page.label,
        icon: page.icon,
        isEnabled: page.isEnabled,
        describedBy: { args: { type: 'object', properties: {} } },
        execute: async () => {
          if (tracker.currentWidget) {
            app.shell.activateById(tracker.currentWidget.id);
            return tracker.currentWidget;
          }
          const widget = makePage(services, page);
          app.shell.add(widget, 'main');
          await tracker.add(widget);
          return widget;
        }
      });
      void restorer?.restore(tracker, {
        command: page.command,
        name: () => page.name
      });
    }
    model.changed.connect(() =>
      app.commands.notifyCommandChanged(CommandIDs.showAdmin)
    );
  }
};

function makePage(services: IViewServices, page: IPage): MainAreaWidget {
  const content = new ViewWidget(services, page.View);
  content.addClass('jp-gpushare-page');
  const widget = new MainAreaWidget({ content });
  widget.id = `jupyter-gpushare-${page.name}`;
  widget.title.label = page.title;
  widget.title.icon = page.icon;
  widget.title.closable = true;
  return widget;
}
