/** The parts of a task's GPU memory, and the state of its turn. Pure. */
import type { Lease, Status } from '../api/types';

/** Bytes over all of a lease's GPUs, as its task tells them. */
export interface IMemoryKinds {
  /** Kept across training steps. */
  readonly persistent: number;
  /** The memory that a step needs beyond it. */
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

/** Why a task that wants its turn computes nothing. */
export interface ITurnWait {
  /** The GPUs it waits for, by index. */
  readonly gpus: readonly number[];
  /** Its place in the line; 1 is next. */
  readonly place: number;
  /** The task that computes there meanwhile; none: the last one's memory is not free yet. */
  readonly computing: readonly Lease[];
}

/** `null`: it does not wait for a turn. */
export function turnWait(lease: Lease, status: Status): ITurnWait | null {
  if (lease.turn !== 'waits') {
    return null;
  }
  const shared = status.gpus.filter(
    gpu =>
      gpu.share_mode === 'time' &&
      lease.gpus.some(part => part.uuid === gpu.uuid)
  );
  const uuids = new Set(shared.map(gpu => gpu.uuid));
  return {
    gpus: shared.map(gpu => gpu.index),
    place: lease.turn_place ?? 1,
    computing: status.leases.filter(
      other =>
        (other.turn === 'holds' || other.turn === 'yields') &&
        other.gpus.some(part => uuids.has(part.uuid))
    )
  };
}

/** The number of tasks that wait for a turn on a GPU of this lease. */
export function waitingBehind(lease: Lease, status: Status): number {
  const uuids = new Set(lease.gpus.map(part => part.uuid));
  return status.leases.filter(
    other =>
      other.turn === 'waits' && other.gpus.some(part => uuids.has(part.uuid))
  ).length;
}

/** Of the tasks on a GPU: how many take turns, who has the turn, and who waits, the next first. */
export function turnsOf(leases: readonly Lease[]): {
  readonly taking: number;
  readonly holder: Lease | null;
  readonly waiting: readonly Lease[];
} {
  const place = ({ turn_place: at }: Lease): number => at ?? Infinity;
  return {
    taking: leases.filter(({ turn }) => turn !== null).length,
    holder:
      leases.find(({ turn }) => turn === 'holds') ??
      leases.find(({ turn }) => turn === 'yields') ??
      null,
    waiting: leases
      .filter(({ turn }) => turn === 'waits')
      .sort((a, b) => place(a) - place(b))
  };
}
