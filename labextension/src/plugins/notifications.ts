import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { ITranslator, type TranslationBundle } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { BudgetNews, isLeaseEvent, LeaseNews } from '../model/news';
import { ParkWarnings, type WarningNews } from '../model/warnings';
import { newsText } from '../text/news';
import { about, nameOf, saidText, saysOf, wordsOf } from '../text/said';
import { IGpuShareModel, IGpuShareSettings } from '../tokens';
import { translations } from './services';

/** Characters that JupyterLab shows of a notification. */
const LONGEST = 140;

/** Milliseconds between two looks at a countdown, while there is one. */
const TICK = 1000;

/**
 * Tells what happened to my leases while I looked elsewhere.
 *
 * The server's own event stream brings the news, so nothing is asked for, and
 * what happened while the page was hidden is told when it is looked at again.
 */
export const notificationsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:notifications',
  description:
    'Notifications of GPUs granted, revoked, expired, and about to be taken back.',
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
    tellWarnings(app, model, settings, trans);
    tellBudget(app, model, settings, trans);
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
          ...readAll(text, trans),
          {
            label: trans.__('Show'),
            callback: () => void app.commands.execute(CommandIDs.showPanel)
          }
        ]
      });
    });
  }
};

/** The action that shows all of a text, where it is too long for a notification. */
export function readAll(
  text: string,
  trans: TranslationBundle
): Notification.IAction[] {
  return text.length > LONGEST
    ? [
        {
          label: trans.__('Read all'),
          callback: () =>
            void showDialog({ body: text, buttons: [Dialog.okButton()] })
        }
      ]
    : [];
}

/** Tells that the GPU-hours are nearly, or all, spent: a kernel says nothing between cells. */
function tellBudget(
  app: JupyterFrontEnd,
  model: IGpuShareModel,
  settings: IGpuShareSettings,
  trans: TranslationBundle
): void {
  const news = new BudgetNews();
  model.changed.connect(() => {
    const { status } = model.snapshot;
    if (news.observe(status) && settings.values.notifications.budget) {
      const says = saysOf(status?.quota);
      const at = says.findIndex(said => said.about === 'budget');
      const [used, ...advice] = says.slice(at, at + 2);
      const reader = { trans, now: model.now() };
      const text = `${used.label}: ${saidText(used, reader)}.`;
      Notification.warning(`${text} ${wordsOf(advice, reader)}`, {
        autoClose: false,
        actions: [
          {
            label: trans.__('Show'),
            callback: () => void app.commands.execute(CommandIDs.showPanel)
          }
        ]
      });
    }
  });
}

/**
 * One notification a lease whose GPU is about to be taken back, with what keeps it.
 *
 * It stands as long as the warning does. Its words change a few times only: screen readers read
 * them each time.
 */
function tellWarnings(
  app: JupyterFrontEnd,
  model: IGpuShareModel,
  settings: IGpuShareSettings,
  trans: TranslationBundle
): void {
  const warnings = new ParkWarnings();
  const shown = new Map<string, string>();
  let timer = 0;

  const tell = (one: WarningNews): void => {
    if (one.what === 'over') {
      const old = shown.get(one.id);
      shown.delete(one.id);
      if (old !== undefined) {
        Notification.dismiss(old);
      }
      return;
    }
    const { lease, step } = one;
    if (!lease.id || !lease.warning || !settings.values.notifications.parking) {
      return;
    }
    const reader = { trans, now: model.now() };
    const message = `${nameOf(lease)}: ${wordsOf(about(lease, 'warning'), reader)}`;
    const args = { lease: lease.id };
    const old = shown.get(lease.id);
    if (one.what === 'begun' || old === undefined) {
      shown.set(
        lease.id,
        Notification.warning(message, {
          autoClose: false,
          actions: [
            {
              label: trans.__('Keep'),
              caption: trans.__('Keep the GPU although no code runs'),
              displayType: 'accent',
              callback: () => void app.commands.execute(CommandIDs.keep, args)
            },
            {
              label: trans.__('Show'),
              callback: () => void app.commands.execute(CommandIDs.showPanel)
            }
          ]
        })
      );
    } else if (step > 0 && document.getElementById(old)) {
      // Only what is seen: an update would bring back what somebody has closed. At the end it is
      // about to go, and an update that crosses its going would keep it.
      Notification.update({ id: old, message });
    }
  };
  const look = (): void => {
    warnings.observe(model.snapshot.status, model.now()).forEach(tell);
    if (warnings.any && !timer) {
      timer = window.setInterval(look, TICK);
    } else if (!warnings.any && timer) {
      window.clearInterval(timer);
      timer = 0;
    }
  };
  model.changed.connect(look);
}
