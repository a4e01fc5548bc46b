import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { isLeaseEvent, LeaseNews } from '../model/news';
import { newsText } from '../text/news';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { translations } from './services';

/**
 * Tells what happened to my leases while I looked elsewhere.
 *
 * The server's own event stream brings the news, so nothing is asked for, and
 * what happened while the page was hidden is told when it is looked at again.
 */
export const notificationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:notifications',
  description: 'Notifications of GPUs granted, revoked and expired.',
  autoStart: true,
  requires: [IGpuShareModel, IGpuShareSettings],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: IGpuShareModel,
    settings: IGpuShareSettings,
    translator: ITranslator | null
  ): void => {
    const trans = translations(translator);
    const news = new LeaseNews();
    model.changed.connect(() => news.observe(model.snapshot.status));
    app.serviceManager.events.stream.connect((_, emission) => {
      if (!isLeaseEvent(emission)) {
        return;
      }
      const kind = news.kindOf(emission);
      if (kind === null || !settings.values.notifications[kind]) {
        return;
      }
      Notification.emit(
        newsText(kind, emission, trans),
        kind === 'granted' ? 'success' : 'warning',
        {
          // A grant is good to know; what was taken must not pass unseen.
          autoClose: kind === 'granted' ? 8000 : false,
          actions: [
            {
              label: trans.__('Show'),
              callback: () => void app.commands.execute(CommandIDs.showPanel)
            }
          ]
        }
      );
    });
  }
};
