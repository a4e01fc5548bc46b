/** Computes the content of the views from a status. Pure. */
import type { Lease, LeaseState, Status } from '../api/types';

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
