/** Sentences on what a waiting request can expect, and on the tasks that share a GPU. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Lease, Quota, Status, Waiting } from '../api/types';
import { sharers, waitsForBudget } from '../model/waiting';
import { formatDuration, formatGpuHours, formatRange } from './format';
import { taskName } from './words';

type Outlook = NonNullable<Waiting['outlook']>;
type Idle = NonNullable<Outlook['idle']>;
type Stop = NonNullable<Outlook['stop']>;
type Budget = NonNullable<Quota['budget']>;

/** `about 10 to 30 min`; empty where there is no estimate. */
export function shortEstimate(
  entry: Waiting | null,
  trans: TranslationBundle
): string {
  const estimate = entry?.outlook?.estimate;
  return estimate
    ? trans.__('about %1', formatRange(estimate.low, estimate.high, trans))
    : '';
}

/** About how long, and what will happen; empty where the node manager tells none of it. */
export function expectationText(
  entry: Waiting,
  trans: TranslationBundle
): string {
  const outlook = entry.outlook;
  if (!outlook || waitsForBudget(entry)) {
    return ''; // when GPU-hours are left again is in the reason
  }
  return [estimateText(outlook, trans), happensText(outlook, trans)]
    .filter(text => text)
    .join(' ');
}

function estimateText(outlook: Outlook, trans: TranslationBundle): string {
  const estimate = outlook.estimate;
  if (estimate === null) {
    return trans.__('There is no estimate yet of how long it takes.');
  }
  const span = formatRange(estimate.low, estimate.high, trans);
  return estimate.basis === 'idle'
    ? trans.__(
        'It takes about %1, if kernels that are idle now stay idle.',
        span
      )
    : trans.__(
        'It takes about %1, as it did for others in the last hour.',
        span
      );
}

function happensText(outlook: Outlook, trans: TranslationBundle): string {
  if (outlook.idle) {
    return trans.__(
      '%1 has been idle for %2; after %3 it is asked for its GPU.',
      whoseText(outlook.idle, trans),
      formatDuration(outlook.idle.idle, trans),
      formatDuration(outlook.idle.after, trans)
    );
  }
  if (outlook.stop) {
    const whose = stopsText(outlook.stop, trans);
    return outlook.stop.left > 0
      ? trans.__(
          '%1 is asked in %2 to save its state and make way.',
          whose,
          formatDuration(outlook.stop.left, trans)
        )
      : trans.__('%1 is asked now to save its state and make way.', whose);
  }
  return outlook.idle_after > 0
    ? trans.__(
        'Idle GPUs are asked back after %1.',
        formatDuration(outlook.idle_after, trans)
      )
    : '';
}

function whoseText(idle: Idle, trans: TranslationBundle): string {
  if (idle.mine) {
    return idle.name
      ? trans.__('Your %1', idle.name)
      : trans.__('A kernel of yours');
  }
  return idle.environment === null
    ? trans.__("Somebody's kernel")
    : trans.__('A kernel of %1', idle.environment);
}

function stopsText(stop: Stop, trans: TranslationBundle): string {
  if (stop.mine) {
    return stop.name
      ? trans.__('Your %1', stop.name)
      : trans.__('A batch program of yours');
  }
  return stop.environment === null
    ? trans.__("Somebody's batch program")
    : trans.__('A batch program of %1', stop.environment);
}

/** `0.08 of 0.05 in the last 7 d`: GPU-hours. */
export function budgetText(budget: Budget, trans: TranslationBundle): string {
  const used = formatGpuHours(budget.spent * 3600);
  return budget.per && budget.when
    ? trans.__('%1 of %2 %3', used, budget.hours, budget.when)
    : trans.__(
        '%1 of %2 in the last %3',
        used,
        budget.hours,
        formatDuration(budget.window, trans)
      );
}

/** That the GPU-hours are nearly, or all, spent: for a notification. */
export function budgetNews(
  budget: Budget,
  trans: TranslationBundle
): string | null {
  const used = budgetText(budget, trans);
  switch (budget.level) {
    case 'ok':
      return null;
    case 'warned':
      return trans.__(
        'Nearly all of your GPU-hours are used: %1. When none are left, new requests wait. Release GPUs that you do not need.',
        used
      );
    case 'spent':
      return trans.__(
        'Your GPU-hours are spent: %1. New requests wait, what computes goes on, and an idle GPU is taken back.',
        used
      );
  }
}

/** The same person's other tasks that share a lease's GPUs; empty: there are none. */
export function sharedText(
  lease: Lease,
  status: Status,
  trans: TranslationBundle
): string {
  const names = sharers(lease, status).map(other => taskName(other, trans));
  if (!names.length) {
    return '';
  }
  const listed = [...new Set(names)].sort().join(', ');
  return lease.mine
    ? trans.__('Shared with your %1', listed)
    : trans.__('Shared with %1', listed);
}
