/** Memory by kind, and turns, in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Gpu, Lease } from '../api/types';
import { memoryKinds, turnsOf } from '../model/turns';
import { formatBytes, type Units } from './format';
import { taskName } from './words';

/** How a lease stands with its turn; empty for one that needs none. */
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

/** What a task's memory is made of; empty where it is not known. */
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

/** Whose turn it is on a GPU, and what they share; empty where there are no turns. */
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
