/** Computes the content of the views from a status. Pure. */
import type {
  Gpu,
  Lease,
  LeaseState,
  Quota,
  Status,
  Waiting
} from '../api/types';

/** My leases, those that need attention first: queued, then held, oldest first. */
export function myLeases(status: Status): Lease[] {
  const mine = status.leases.filter(
    lease => lease.mine && lease.state !== 'ended'
  );
  return mine.sort(
    (a, b) =>
      Number(b.state === 'queued') - Number(a.state === 'queued') ||
      a.requested - b.requested
  );
}

/** The lease that a kernel holds or waits for. */
export function leaseOfKernel(
  status: Status | null,
  kernelId: string | null | undefined
): Lease | null {
  if (!status || !kernelId) {
    return null;
  }
  const own = status.leases.filter(
    lease =>
      lease.mine &&
      lease.kernel_id === kernelId &&
      lease.state !== 'ended' &&
      lease.state !== 'draining'
  );
  return own.find(lease => lease.kind === 'kernel') ?? own[0] ?? null;
}

/** The level of a use against its limit. */
export enum Level {
  Free = 'free',
  Full = 'full',
  Over = 'over',
  /** Nothing is allowed. */
  None = 'none'
}

export interface IUse {
  readonly used: number;
  /** `null`: no limit. */
  readonly limit: number | null;
  /** From 0 to 1, for the bar; over the limit is a full bar. */
  readonly share: number;
  readonly level: Level;
}

export function use(used: number, limit: number | null): IUse {
  if (limit === null) {
    return { used, limit, share: used > 0 ? 1 : 0, level: Level.Free };
  }
  if (limit === 0) {
    return {
      used,
      limit,
      share: used > 0 ? 1 : 0,
      level: used > 0 ? Level.Over : Level.None
    };
  }
  const level =
    used > limit ? Level.Over : used === limit ? Level.Full : Level.Free;
  return { used, limit, share: Math.min(1, used / limit), level };
}

/** GPUs used of those allowed. */
export function gpuUse(quota: Quota): IUse {
  return use(quota.used_gpus, quota.gpus);
}

/** GPU-hours held of those that may be; `null` where they are not limited. */
export function budgetUse(quota: Quota): IUse | null {
  return quota.budget && use(quota.budget.spent, quota.budget.hours);
}

/** My reservation on each GPU that I hold, and my limit; without a limit the whole GPU. */
export function memoryUse(status: Status): { gpu: Gpu; use: IUse }[] {
  const limit = status.quota?.memory ?? null;
  return status.gpus
    .filter(gpu => gpu.mine > 0)
    .map(gpu => ({
      gpu,
      use: use(gpu.mine, limit ?? gpu.memory)
    }));
}

/** The parts of one GPU's memory, in bytes; together they are all of it. */
export interface IMemoryParts {
  readonly mine: number;
  readonly others: number;
  /** Used by tasks in their turns, one after the other, beyond what each keeps. */
  readonly turns: number;
  /** Used by the host's own processes: a screen's, monitoring. */
  readonly system: number;
  /** Used by other processes that hold no lease, or beyond what their lease reserves. */
  readonly unleased: number;
  readonly free: number;
}

export function memoryParts(gpu: Gpu): IMemoryParts {
  const mine = Math.min(gpu.mine, gpu.memory);
  const others = Math.min(
    Math.max(0, gpu.reserved - gpu.mine),
    gpu.memory - mine
  );
  const turns = Math.min(gpu.shared, gpu.memory - mine - others);
  const used = Math.min(gpu.unleased, gpu.memory - mine - others - turns);
  const system = Math.min(gpu.system ?? 0, used);
  return {
    mine,
    others,
    turns,
    system,
    unleased: used - system,
    free: gpu.memory - mine - others - turns - used
  };
}

/** The memory one lease uses over all its GPUs, in bytes; `null` where any of it is unknown. */
export function measuredMemory(lease: Lease): number | null {
  let sum = 0;
  for (const part of lease.gpus) {
    if (part.measured === null) {
      return null;
    }
    sum += part.measured;
  }
  return sum;
}

export interface IQueueSummary {
  /** My waiting requests, first in line first. */
  readonly mine: Waiting[];
  readonly interactive: number;
  readonly batch: number;
}

export function queueSummary(status: Status): IQueueSummary {
  const count = (kind: string): number =>
    status.queue.filter(waiting => waiting.priority_class === kind).length;
  return {
    mine: status.queue.filter(waiting => waiting.mine),
    interactive: count('interactive'),
    batch: count('batch')
  };
}

/** Whether releasing makes sense: the lease has not ended and is not about to. */
export function canRelease(state: LeaseState): boolean {
  return state !== 'ended' && state !== 'draining' && state !== 'queued';
}

/**
 * Whether restarting the kernel is what helps: it no longer answers, holds memory that only its
 * end frees, or uses more than it may.
 */
export function restartHelps(state: LeaseState): boolean {
  return state === 'stalled' || state === 'draining' || state === 'over_limit';
}
