import type { TranslationBundle } from '@jupyterlab/translation';

import { Failure } from '../api/rest';
import type { IProblem } from '../model/snapshot';

/** The problem in a person's words. */
export interface IExplained {
  readonly title: string;
  /** What to do. */
  readonly advice: string;
  /** The server's own words, where they say more. */
  readonly detail: string;
}

export function explain(
  problem: IProblem,
  trans: TranslationBundle
): IExplained {
  const detail = problem.message;
  switch (problem.failure) {
    case Failure.Offline:
      return {
        title: trans.__('The Jupyter server does not answer'),
        advice: trans.__(
          'It is retried automatically. If this continues, check your network or restart the server.'
        ),
        detail
      };
    case Failure.NotEnabled:
      return {
        title: trans.__('The server extension is not enabled'),
        advice: trans.__(
          'In the environment that this server runs in: "pip install jupyter_gpushare", then "jupyter server extension enable jupyter_gpushare", then restart the server. "jupyter gpushare doctor" checks it.'
        ),
        detail: ''
      };
    case Failure.Forbidden:
      return {
        title: trans.__('You may not see the GPUs here'),
        advice: trans.__(
          'Log in again; if that does not help, ask the administrator of this server for the permission "gpushare: read".'
        ),
        detail
      };
    case Failure.NodeDown:
      return {
        title: trans.__('The node manager cannot be reached'),
        advice: trans.__(
          'Leases that are held stay held; new ones have to wait. It is retried automatically. If this continues, "jupyter gpushare doctor" in a terminal says what is wrong.'
        ),
        detail
      };
    case Failure.BadAnswer:
      return {
        title: trans.__('The server answered something unexpected'),
        advice: trans.__(
          'Most often server and browser have different versions of jupyter_gpushare: reload this page; if that does not help, restart the server.'
        ),
        detail
      };
    case 'not-live':
      return {
        title: trans.__('No live updates'),
        advice: trans.__(
          'The live connection (a WebSocket) cannot be established. The panel keeps trying; until it succeeds you see the state of the last attempt. If there is a proxy, configure it to let WebSockets pass.'
        ),
        detail
      };
    case Failure.Refused:
      return {
        title: trans.__('That was refused'),
        advice: '',
        detail
      };
  }
}
