/** Memory by kind, and turns, in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Gpu, Lease, Status } from '../api/types';
import { memoryKinds, turnsOf, turnWait, waitingBehind } from '../model/turns';
import { formatBytes, formatDuration, type Units } from './format';
import { taskName } from './words';

/** The same for its owner: which GPU, who is ahead, since when; empty if it needs no turn. */
export function myTurnText(
  lease: Lease,
  status: Status,
  now: number,
  trans: TranslationBundle
): string {
  const wait = turnWait(lease, status);
  if (wait !== null) {
    const gpus = wait.gpus.map(index => trans.__('GPU %1', index)).join(', ');
    const since = formatDuration(now - (lease.turn_since ?? now), trans);
    const place =
      wait.place === 1
        ? trans.__('Waits %1 for its turn on %2: next in line.', since, gpus)
        : trans.__(
            'Waits %1 for its turn on %2: place %3 in line.',
            since,
            gpus,
            wait.place
          );
    const who = wait.computing.map(other => ownerName(other, trans)).join(', ');
    return who
      ? trans.__('%1 Now computes: %2', place, who)
      : trans.__('%1 Memory that the last one left is not free yet.', place);
  }
  const text = turnText(lease, trans);
  const behind = text ? waitingBehind(lease, status) : 0;
  return behind > 0
    ? trans._n('%2; 1 waits', '%2; %1 wait', behind, text)
    : text;
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
      return trans.__('Waits for its turn on the GPU');
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

/** The task that has the turn on a GPU, and the shared memory; empty without turns. */
export function gpuTurnText(
  gpu: Gpu,
  leases: readonly Lease[],
  units: Units,
  trans: TranslationBundle
): string {
  if (!gpu.in_turns) {
    return '';
  }
  const { now, waiting } = turnsOf(leases);
  const whose = now === null ? trans.__('nobody') : ownerName(now, trans);
  const line =
    waiting > 0
      ? trans._n('Turn: %2, 1 waits', 'Turn: %2, %1 wait', waiting, whose)
      : trans.__('Turn: %1', whose);
  return gpu.shared > 0
    ? trans.__('%1. %2 used by turns', line, formatBytes(gpu.shared, units))
    : line;
}

function ownerName(lease: Lease, trans: TranslationBundle): string {
  if (lease.mine) {
    return taskName(lease, trans);
  }
  return lease.environment === null
    ? trans.__('someone else')
    : trans.__('%1: %2', lease.environment, taskName(lease, trans));
}
