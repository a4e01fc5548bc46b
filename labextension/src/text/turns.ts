/** Memory by kind, and turns, in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Gpu, Lease, Status } from '../api/types';
import { memoryKinds, turnsOf, turnWait, waitingBehind } from '../model/turns';
import { formatAbout, formatBytes, formatDuration, type Units } from './format';
import { taskName } from './words';

/** The same for its owner: which GPU, who is ahead, since when; empty if it needs no turn. */
export function myTurnText(
  lease: Lease,
  status: Status,
  now: number,
  trans: TranslationBundle
): string {
  const wait = turnWait(lease, status);
  const pauses = [
    interruptionText(lease, now, trans),
    pausesText(lease, now, trans)
  ]
    .filter(part => part)
    .join(' ');
  if (wait !== null) {
    const gpus = wait.gpus.map(index => trans.__('GPU %1', index)).join(', ');
    const place =
      wait.place === 1
        ? trans.__('%1 Next in line on %2.', pauses, gpus)
        : trans.__('%1 Place %3 in line on %2.', pauses, gpus, wait.place);
    const who = wait.computing
      .flatMap(other => [
        ownerName(other, trans),
        pinnedText(other, now, trans)
      ])
      .filter(part => part)
      .join(', ');
    return who
      ? trans.__('%1 Now computes: %2', place, who)
      : trans.__('%1 Memory that the last one left is not free yet.', place);
  }
  const text = turnText(lease, trans);
  const behind = text ? waitingBehind(lease, status) : 0;
  const turn =
    behind > 0 ? trans._n('%2; 1 waits', '%2; %1 wait', behind, text) : text;
  return [turn, pauses, movedText(lease, trans)]
    .filter(part => part)
    .join('. ');
}

/** For how long a pin keeps a task's turn; empty: it keeps none. */
function pinnedText(
  lease: Lease,
  now: number,
  trans: TranslationBundle
): string {
  const left = (lease.turn_pinned_until ?? now) - now;
  return left > 0
    ? trans.__('pinned for %1 more', formatDuration(left, trans))
    : '';
}

/** The explanation of turns for a person whose cell is waiting. */
export function turnHint(
  node: Status['node'],
  trans: TranslationBundle
): string {
  return trans.__(
    'Tasks on this GPU compute one after the other and change at the end of a training step. The task that has computed least since its cell began goes first; a task that has waited for long gets %1 before it. The cell goes on by itself, and nothing is lost meanwhile. Interrupt the kernel to stop waiting.',
    formatDuration(node.quantum, trans)
  );
}

/** The state of a lease's turn; empty for a lease that needs none. */
export function turnText(lease: Lease, trans: TranslationBundle): string {
  switch (lease.turn) {
    case 'holds':
      return trans.__('Has its turn on the GPU');
    case 'yields':
      return trans.__('Ends its step; then others have their turn');
    case 'waits':
      return trans.__("Paused for somebody's turn");
    case 'rest':
    case null:
      return '';
  }
}

/** The parts of a task's memory; empty if they are not known. */
export function kindsText(
  lease: Lease,
  units: Units,
  trans: TranslationBundle
): string {
  const kinds = memoryKinds(lease);
  if (kinds === null) {
    return '';
  }
  const keeps = formatBytes(kinds.persistent, units);
  const needs = formatBytes(kinds.temporary, units);
  return kinds.cache === null
    ? trans.__('Keeps %1; a step needs %2 more', keeps, needs)
    : trans.__(
        'Keeps %1; a step needs %2 more; %3 cached',
        keeps,
        needs,
        formatBytes(kinds.cache, units)
      );
}

/** The same of all tasks on a GPU; empty where none tells. */
export function gpuKindsText(
  gpu: Gpu,
  units: Units,
  trans: TranslationBundle
): string {
  return gpu.persistent + gpu.temporary > 0
    ? trans.__(
        'Its tasks keep %1; a step needs %2 more at most',
        formatBytes(gpu.persistent, units),
        formatBytes(gpu.temporary, units)
      )
    : '';
}

/** Who computes on a GPU, since when, and who waits for a turn; empty if nobody is there. */
export function gpuTimeText(
  leases: readonly Lease[],
  now: number,
  trans: TranslationBundle
): string {
  const { taking, holder, waiting } = turnsOf(leases);
  if (!taking) {
    return leases.length ? freeTimeText(leases, trans) : '';
  }
  const words: string[] = [];
  if (holder === null) {
    words.push(trans.__('By turns: nobody computes'));
  } else if (holder.turn === 'yields') {
    words.push(
      trans.__('By turns: %1 ends its turn', ownerName(holder, trans))
    );
  } else {
    words.push(
      trans.__(
        'By turns: %1 computes, for %2',
        ownerName(holder, trans),
        formatDuration(now - (holder.turn_since ?? now), trans)
      )
    );
    const pinned = pinnedText(holder, now, trans);
    if (pinned) {
      words.push(pinned);
    }
  }
  if (waiting.length) {
    words.push(
      trans.__(
        'next is %1, paused for %2',
        ownerName(waiting[0], trans),
        formatDuration(now - (waiting[0].turn_since ?? now), trans)
      )
    );
  }
  if (waiting.length > 1) {
    words.push(trans.__('%1 more paused', waiting.length - 1));
  }
  return words.join('; ');
}

/** The same where there are no turns; empty where nobody computes. */
function freeTimeText(
  leases: readonly Lease[],
  trans: TranslationBundle
): string {
  const busy = leases.filter(({ state }) => state === 'active');
  if (!busy.length) {
    return '';
  }
  const first = busy.find(({ mine }) => mine) ?? busy[0];
  return busy.length > 1
    ? trans.__(
        'No turns: %1 and %2 more compute',
        ownerName(first, trans),
        busy.length - 1
      )
    : trans.__('No turns: %1 computes', ownerName(first, trans));
}

/** How often and how long a task was paused for others since it began; empty if it never was. */
export function pausesText(
  lease: Lease,
  now: number,
  trans: TranslationBundle
): string {
  const { times, seconds } = lease.pauses ?? { times: 0, seconds: 0 };
  const often =
    lease.kind === 'process'
      ? trans._n('once since it began', '%1 times since it began', times)
      : trans._n('once in this cell', '%1 times in this cell', times);
  if (lease.turn === 'waits') {
    const so = formatDuration(now - (lease.turn_since ?? now), trans);
    const left = (lease.turn_expected ?? now) - now;
    const time =
      left > 0
        ? trans.__('%1, about %2 more', so, formatAbout(left, trans))
        : so;
    return times > 1
      ? trans.__("Paused for somebody's turn, so far %1, %2.", time, often)
      : trans.__("Paused for somebody's turn, so far %1.", time);
  }
  return times > 0
    ? trans.__(
        'Was paused %1, %2 in all',
        often,
        formatDuration(seconds, trans)
      )
    : '';
}

/** How often it moved to another GPU since it began; empty if it never did. */
function movedText(lease: Lease, trans: TranslationBundle): string {
  const moved = lease.pauses?.moved ?? 0;
  if (moved === 0) {
    return '';
  }
  return lease.kind === 'process'
    ? trans._n(
        'Moved to another GPU once since it began',
        'Moved to another GPU %1 times since it began',
        moved
      )
    : trans._n(
        'Moved to another GPU once in this cell',
        'Moved to another GPU %1 times in this cell',
        moved
      );
}

/** What the node manager does with a task that is at work; empty if nothing. */
export function interruptionText(
  lease: Lease,
  now: number,
  trans: TranslationBundle
): string {
  const { what = null, until = null } = lease.interrupted ?? {};
  const left = formatDuration(Math.max(1, (until ?? now) - now), trans);
  switch (what) {
    case 'moves':
      return trans.__(
        'Moves to another GPU: its memory waits in host memory until it is there.'
      );
    case 'makes_way':
      return trans.__(
        'Makes way for a request that waits: its memory goes to host memory and comes back.'
      );
    case 'locked':
      return trans.__(
        "Paused by the driver's lock, for %1 more at most.",
        left
      );
    case 'stops':
      return trans.__('Saves its state and stops, within %1.', left);
    case null:
      return '';
  }
}

function ownerName(lease: Lease, trans: TranslationBundle): string {
  if (lease.mine) {
    return taskName(lease, trans);
  }
  return lease.environment === null
    ? trans.__('someone else')
    : trans.__('%1: %2', lease.environment, taskName(lease, trans));
}
