/** The requests to a notebook's kernel about its GPUs. Pure. */
import type { Lease } from '../api/types';

/** The request as it was typed. */
export interface IAsk {
  readonly gpus: number;
  /** On each GPU. Empty: as the notebook asks by itself, or what the quota allows. */
  readonly memory: string;
  readonly priorityClass: string;
}

/**
 * The line that asks in the kernel, which refuses words that it cannot read.
 *
 * It can contain no code: each character that is no part of a word becomes an underscore.
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

/** Whether a lease is one of my kernels', so that I can send the kernel a request. */
function isMyKernels(lease: Lease): boolean {
  return (
    lease.mine &&
    lease.id !== null &&
    lease.kind === 'kernel' &&
    lease.kernel_id !== null
  );
}

/** Whether to offer parking by hand. A kernel that runs code refuses by itself. */
export function canPark(lease: Lease): boolean {
  return (
    isMyKernels(lease) && ['idle', 'active', 'over_limit'].includes(lease.state)
  );
}

/** Whether the lease is parked and is not being brought back yet. */
export function canResume(lease: Lease): boolean {
  return (
    isMyKernels(lease) && lease.state === 'parked' && lease.position === null
  );
}

/** Whether a kernel with this lease may ask for (other) GPUs. */
export function canRequest(lease: Lease | null): boolean {
  return lease === null || canPark(lease) || canResume(lease);
}
