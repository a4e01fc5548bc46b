/** What a notebook's kernel may be asked to do about its GPUs, and how. Pure. */
import type { Lease } from '../api/types';

/** What is asked for, as it was typed. */
export interface IAsk {
  readonly gpus: number;
  /** On each GPU. Empty: as the notebook asks by itself, or what the quota allows. */
  readonly memory: string;
  readonly priorityClass: string;
}

/**
 * The line that asks in the kernel, which refuses words that it cannot read.
 *
 * Nothing in it can be code: whatever is no part of a word is an underscore, which no size has.
 */
export function requestLine(ask: IAsk): string {
  const word = (text: string): string =>
    text
      .replace(/\s/g, '')
      .replace(',', '.')
      .replace(/[^\w.]/g, '_');
  const memory = word(ask.memory);
  return [
    `%gpushare request --gpus ${ask.gpus}`,
    ...(memory ? [`--memory ${memory}`] : []),
    `--class ${word(ask.priorityClass)}`
  ].join(' ');
}

/** Whether a lease is one of my kernels', which can be asked to do something. */
function isMyKernels(lease: Lease): boolean {
  return (
    lease.mine &&
    lease.id !== null &&
    lease.kind === 'kernel' &&
    lease.kernel_id !== null
  );
}

/** Whether parking by hand makes sense. A kernel that runs code says so itself. */
export function canPark(lease: Lease): boolean {
  return (
    isMyKernels(lease) && ['idle', 'active', 'over_limit'].includes(lease.state)
  );
}

/** Whether there is something parked that nobody brings back yet. */
export function canResume(lease: Lease): boolean {
  return (
    isMyKernels(lease) && lease.state === 'parked' && lease.position === null
  );
}

/** Whether a kernel with this lease may ask for (other) GPUs. */
export function canRequest(lease: Lease | null): boolean {
  return lease === null || canPark(lease) || canResume(lease);
}
