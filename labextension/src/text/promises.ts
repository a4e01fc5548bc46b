/** What a task was promised, in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Lease } from '../api/types';
import { formatMoment } from './format';

type Promised = NonNullable<Lease['promise']>;

/** What it was promised, how that stands, and what it has for it; empty: nothing is promised. */
export function promiseText(
  lease: Lease,
  now: number,
  trans: TranslationBundle
): string {
  const { promise = null, progress = null } = lease;
  const steps =
    progress === null
      ? ''
      : progress.total === null
        ? trans.__('Step %1', progress.done)
        : trans.__('Step %1 of %2', progress.done, progress.total);
  if (promise === null) {
    return steps;
  }
  const ends = promise.expected_end;
  const words = [
    goalText(promise, now, trans),
    steps,
    ends !== null && ends > now && promise.state !== 'kept'
      ? trans.__('Ready at about %1', formatMoment(ends, now))
      : '',
    promise.named && promise.share > 0
      ? trans.__("%1 % of its GPU's time is its own", promise.share)
      : ''
  ];
  return words.filter(part => part).join('. ');
}

/** Whether its people should look at it: what they named will not be kept. */
export function isLate({ promise }: Lease): boolean {
  return (
    promise?.named === true &&
    (promise.state === 'late' || promise.state === 'missed')
  );
}

/** Why it is late, and what helps; empty: it is not. */
export function lateText(lease: Lease, trans: TranslationBundle): string {
  switch (isLate(lease) ? lease.promise?.why : null) {
    case 'quota':
      return trans.__('Your quota lets promises claim no more of a GPU.');
    case 'full':
      return trans.__('Other tasks have the rest of the GPU, and keep it.');
    case 'batch':
      return trans.__(
        'Batch tasks have the rest of the GPU, and did not say how they are stopped.'
      );
    case 'stopping':
      return trans.__(
        'Batch tasks on the GPU save their state and stop for it now.'
      );
    case 'no_turns':
      return trans.__(
        "The GPU's time cannot be shared out: it is not used by turns, or this task has no gate."
      );
    case 'slow':
      return trans.__(
        'Its steps take so long that all of the GPU would not be enough.'
      );
    case 'undone':
      return trans.__('It ended before all its steps were done.');
    case null:
    case undefined:
      return '';
  }
}

function goalText(
  promise: Promised,
  now: number,
  trans: TranslationBundle
): string {
  const goal = [
    promise.deadline === null
      ? ''
      : trans.__('ready by %1', formatMoment(promise.deadline, now)),
    promise.rate === null
      ? ''
      : trans.__('at least %1 steps a second', promise.rate)
  ]
    .filter(part => part)
    .join(', ');
  if (!promise.named) {
    return trans.__('Expected: %1', goal);
  }
  switch (promise.state) {
    case 'on_time':
    case 'ended':
      return trans.__('Promised: %1', goal);
    case 'late':
      return trans.__('Will not be kept: %1', goal);
    case 'missed':
      return trans.__('Missed: %1', goal);
    case 'kept':
      return trans.__('Kept: %1', goal);
  }
}
