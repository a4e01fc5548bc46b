import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { ITranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { isLeaseEvent, LeaseNews } from '../model/news';
import { newsText } from '../text/news';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { translations } from './services';

/** Characters that JupyterLab shows of a notification. */
const LONGEST = 140;

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
      const text = newsText(kind, emission, trans);
      Notification.emit(text, kind === 'granted' ? 'success' : 'warning', {
        // A grant is good to know; what was taken must not pass unseen.
        autoClose: kind === 'granted' ? 8000 : false,
        actions: [
          // What is longer than a notification is cut there.
          ...(text.length > LONGEST
            ? [
                {
                  label: trans.__('Read all'),
                  callback: () =>
                    void showDialog({
                      body: text,
                      buttons: [Dialog.okButton()]
                    })
                }
              ]
            : []),
          {
            label: trans.__('Show'),
            callback: () => void app.commands.execute(CommandIDs.showPanel)
          }
        ]
      });
    });
  }
};
