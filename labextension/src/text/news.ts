import type { TranslationBundle } from '@jupyterlab/translation';

import type { ILeaseEvent, LeaseNewsKind } from '../model/news';
import { formatGpus } from './format';

/** The text of a notification. */
export function newsText(
  kind: LeaseNewsKind,
  event: ILeaseEvent,
  trans: TranslationBundle
): string {
  const who = event.task ?? trans.__('A task');
  switch (kind) {
    case 'granted':
      return trans.__(
        '%1 got %2.',
        who,
        formatGpus(event.gpus?.length ?? 1, trans)
      );
    case 'revoked':
      return event.detail
        ? trans.__(
            'An administrator took the GPU of %1 away: %2',
            who,
            event.detail
          )
        : trans.__('An administrator took the GPU of %1 away.', who);
    case 'expired':
      return trans.__(
        '%1 no longer has a lease: %2',
        who,
        event.message ?? event.reason ?? ''
      );
  }
}
