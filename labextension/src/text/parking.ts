/** Parking in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Lease, Status } from '../api/types';
import { isKept } from '../model/parking';
import {
  formatBytes,
  formatDuration,
  formatMoment,
  type Units
} from './format';

type Rung = NonNullable<Lease['ability']>['rung'];
type Warning = NonNullable<Lease['warning']>;

/** The time that is left, to the second: `42 s`, `2 min 05 s`; hours are not counted down. */
export function formatCountdown(
  seconds: number,
  trans: TranslationBundle
): string {
  return seconds < 60 || seconds >= 3600
    ? formatDuration(seconds, trans)
    : trans.__(
        '%1 min %2 s',
        Math.floor(seconds / 60),
        String(Math.floor(seconds % 60)).padStart(2, '0')
      );
}

/** When a lease is parked, in few words: for a countdown. */
export function warningText(left: number, trans: TranslationBundle): string {
  return left > 0
    ? trans.__('Will be parked in %1', formatCountdown(left, trans))
    : trans.__('Is being parked');
}

/** The same for those who are told of it only now and then; `step` is at least what is left. */
export function warningNews(
  name: string,
  warning: Warning,
  step: number,
  trans: TranslationBundle
): string {
  const why = warningReason(warning, trans);
  return step > 0
    ? trans.__(
        'The GPU of %1 is taken back in at most %2: %3 Its variables are kept.',
        name,
        formatDuration(step, trans),
        why
      )
    : trans.__(
        'The GPU of %1 is taken back now: %2 Its variables are kept.',
        name,
        why
      );
}

/** Why an idle lease's GPU is taken back. */
export function warningReason(
  warning: Warning,
  trans: TranslationBundle
): string {
  switch (warning.reason) {
    case 'contended':
      return trans.__('it is idle and others wait.');
    case 'idle':
      return trans.__('it reaches its idle time-out.');
    case 'budget_spent':
      return trans.__('it is idle and the GPU-hours are spent.');
  }
}

/** Until when a lease's people keep its GPUs; `null` where they do not. */
export function keptUntilText(
  lease: Lease,
  now: number,
  trans: TranslationBundle
): string | null {
  return lease.pinned_until !== null && isKept(lease, now)
    ? trans.__('Kept until %1', formatMoment(lease.pinned_until, now))
    : null;
}

/** The way in which a parked task gave its GPUs back; empty for other tasks. */
export function rungText(
  lease: Lease,
  units: Units,
  trans: TranslationBundle
): string {
  const memory = lease.parked_memory
    ? formatBytes(lease.parked_memory, units)
    : trans.__('no memory');
  switch (lease.rung) {
    case null:
      return '';
    case 'release':
      return trans.__('Released: nothing was on the GPU');
    case 'trim':
      return trans.__('Caches emptied; what the code uses stayed on the GPU');
    case 'storage':
      return trans.__('Tensors moved to host memory: %1', memory);
    case 'driver':
      return trans.__('Moved to host memory by the driver: %1', memory);
  }
}

/** What a task can do when it is asked for its GPUs. */
export function abilityText(
  ability: { readonly rung: Rung; readonly why: string },
  trans: TranslationBundle
): string {
  const what = abilityWords(ability.rung, trans);
  return ability.why ? trans.__('%1, because: %2', what, ability.why) : what;
}

function abilityWords(rung: Rung, trans: TranslationBundle): string {
  switch (rung) {
    case 'release':
      return trans.__('Could be parked at once: it has not used the GPU yet');
    case 'trim':
      return trans.__('Could give back cached memory only');
    case 'storage':
      return trans.__('Could be parked: its tensors can move to host memory');
    case 'driver':
      return trans.__(
        'Could be parked by the driver, with all that is on the GPU'
      );
    case 'none':
      return trans.__('Cannot be parked');
  }
}

/** `12.4 GiB of 64 GiB`: host memory in use for parked tasks. */
export function hostMemoryText(
  node: Status['node'],
  units: Units,
  trans: TranslationBundle
): string {
  const used = formatBytes(node.parked_memory, units);
  return node.parked_memory_limit === null
    ? trans.__('%1, not limited', used)
    : trans.__('%1 of %2', used, formatBytes(node.parked_memory_limit, units));
}
