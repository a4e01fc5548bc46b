/** What a task's GPU memory is made of, and whose turn it is. Pure. */
import type { Lease } from '../api/types';

/** Bytes over all of a lease's GPUs, as its task tells them. */
export interface IMemoryKinds {
  /** Kept across training steps. */
  readonly persistent: number;
  /** What a step needs beyond it. */
  readonly temporary: number;
  /** Kept unused by the framework; `null`: it does not tell. */
  readonly cache: number | null;
}

/** `null` where the task has not told it of each of its GPUs. */
export function memoryKinds(lease: Lease): IMemoryKinds | null {
  const sum = { persistent: 0, temporary: 0, cache: 0 as number | null };
  for (const part of lease.gpus) {
    if (part.persistent === null || part.temporary === null) {
      return null;
    }
    sum.persistent += part.persistent;
    sum.temporary += part.temporary;
    sum.cache =
      sum.cache === null || part.cache === null ? null : sum.cache + part.cache;
  }
  return lease.gpus.length ? sum : null;
}

/** Who has the turn on a GPU (or just gives it back), and how many wait for theirs. */
export function turnsOf(leases: readonly Lease[]): {
  readonly now: Lease | null;
  readonly waiting: number;
} {
  return {
    now:
      leases.find(({ turn }) => turn === 'holds') ??
      leases.find(({ turn }) => turn === 'yields') ??
      null,
    waiting: leases.filter(({ turn }) => turn === 'waits').length
  };
}
