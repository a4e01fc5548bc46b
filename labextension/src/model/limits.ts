/** How much memory a lease may use, and how far it is beyond that. Pure. */
import type { Lease } from '../api/types';

/** The memory that a lease may use now on each of its GPUs, in bytes. */
export function limitsNow(lease: Lease): number[] {
  return lease.gpus.map(gpu => gpu.limit);
}

/** Bytes over all of a lease's GPUs. */
export interface IMemoryLimit {
  /** The granted memory, which it can count on. */
  readonly granted: number;
  /** The memory that it may use now: more than granted while its limit is lifted. */
  readonly now: number;
}

export function memoryLimit(lease: Lease): IMemoryLimit {
  return {
    granted: lease.gpus.reduce((sum, gpu) => sum + gpu.memory, 0),
    now: lease.gpus.reduce((sum, gpu) => sum + gpu.limit, 0)
  };
}

/** The memory that it uses above its limit, and the next step against that with its time. */
export interface IExcess {
  /** The GPU's index; `null`: not one of the lease's any more. */
  readonly gpu: number | null;
  /** Bytes above the limit; `null`: not measured. */
  readonly bytes: number | null;
  readonly next: NonNullable<Lease['over_limit']>['next'];
  /** Whole seconds until then; 0: at any moment. */
  readonly left: number;
}

/** `null`: it is within its limit. */
export function excess(lease: Lease, now: number): IExcess | null {
  const over = lease.over_limit;
  return (
    over && {
      gpu: lease.gpus.find(({ uuid }) => uuid === over.gpu)?.index ?? null,
      bytes: over.used === null ? null : Math.max(0, over.used - over.limit),
      next: over.next,
      left: Math.max(0, Math.ceil((over.next_at ?? now) - now))
    }
  );
}
