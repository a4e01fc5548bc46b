/** How idle GPUs are given back or kept, for the views. Pure. */
import type { Lease, Status } from '../api/types';

type Node = Status['node'];

/** Whole seconds until a lease's GPUs are asked back, by the node's time; `null`: no warning. */
export function secondsLeft(lease: Lease, now: number): number | null {
  return lease.warning === null
    ? null
    : Math.max(0, Math.ceil(lease.warning.at - now));
}

/** Seconds left at which a countdown is told to those who do not look at it. */
const STEPS = [5, 10, 30, 60, 120, 300, 600, 1800, 3600];

/**
 * The step of a countdown that has been reached: it changes a few times, not each second.
 *
 * `left` is at most what is returned; 0 is 0.
 */
export function countdownStep(left: number): number {
  return left <= 0
    ? 0
    : (STEPS.find(step => left <= step) ?? Math.ceil(left / 3600) * 3600);
}

/** My leases whose GPUs are about to be asked back, the soonest first. */
export function warnedLeases(status: Status | null): Lease[] {
  return (status?.leases ?? [])
    .filter(lease => lease.mine && lease.id !== null && lease.warning !== null)
    .sort((a, b) => (a.warning?.at ?? 0) - (b.warning?.at ?? 0));
}

/** Whether to offer keeping a lease's GPUs: a notebook holds some and may keep them. */
export function canKeep(lease: Lease, node: Node): boolean {
  return (
    lease.mine &&
    lease.id !== null &&
    lease.kind === 'kernel' &&
    lease.phase === 'held' &&
    node.pin_limit > 0
  );
}

/** Whether a person keeps a lease's GPUs now. */
export function isKept(lease: Lease, now: number): boolean {
  return lease.pinned_until !== null && lease.pinned_until > now;
}

const CHOICES = [15 * 60, 30 * 60, 3600, 2 * 3600, 4 * 3600, 8 * 3600];
const MOST_CHOICES = 4;

/** For how long GPUs may be kept, in seconds: round times that the node allows, and its limit. */
export function keepChoices(node: Node): number[] {
  const limit = node.pin_limit;
  const round = CHOICES.filter(seconds => seconds < limit);
  const shown = round.slice(0, MOST_CHOICES - 1);
  return limit > 0 ? [...shown, Math.min(limit, CHOICES[5])] : [];
}
