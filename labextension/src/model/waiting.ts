/** Requests that wait, and leases that share a GPU. Pure. */
import type { Lease, Status, Waiting } from '../api/types';

/** Whether a request waits for GPU-hours, and so stands in no line. */
export function waitsForBudget(entry: Waiting | null): boolean {
  return entry?.reason === 'budget_spent';
}

/** The row of the queue that a waiting lease has. */
export function entryOf(
  lease: Lease | null,
  status: Status | null
): Waiting | null {
  return lease?.id
    ? (status?.queue.find(entry => entry.lease === lease.id) ?? null)
    : null;
}

/** The same person's other leases that use what a lease has: they share it. */
export function sharers(lease: Lease, status: Status): Lease[] {
  const uuids = new Set(lease.gpus.map(part => part.uuid));
  return status.leases.filter(
    other =>
      other.id !== lease.id &&
      lease.environment !== null &&
      other.environment === lease.environment &&
      other.phase === 'held' &&
      other.gpus.some(part => uuids.has(part.uuid))
  );
}
