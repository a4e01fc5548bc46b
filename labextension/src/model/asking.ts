/** What a notebook's kernel may be asked to do about its GPUs, and how. Pure. */
import type { Lease, Status } from '../api/types';
import { parseBytes } from '../text/format';
import { exactSize } from './admin';

export type PriorityClass = 'interactive' | 'batch';

/**
 * What is asked for; `memory` in bytes on each GPU.
 *
 * `null`: not named, so as the notebook asks by itself (its metadata, or what it asked before), or
 * what the quota allows.
 */
export interface IAsk {
  readonly gpus: number;
  readonly memory: number | null;
  readonly priorityClass: PriorityClass;
}

/** The same as it is typed. */
export interface IAskDraft {
  readonly gpus: string;
  /** Empty: it is not named. */
  readonly memory: string;
  readonly priorityClass: PriorityClass;
}

export const FIRST_DRAFT: IAskDraft = {
  gpus: '1',
  memory: '',
  priorityClass: 'interactive'
};

/** What is wrong with a field; the words are the view's. */
export enum AskMistake {
  NotWhole = 'not-whole',
  NoSize = 'no-size'
}

/** The bound that the node manager has, too. */
const MOST_GPUS = 4096;

export function readAsk(
  draft: IAskDraft
):
  | { ask: IAsk; mistakes: null }
  | { ask: null; mistakes: { gpus?: AskMistake; memory?: AskMistake } } {
  const gpus = /^\s*\d+\s*$/.test(draft.gpus) ? Number(draft.gpus) : 0;
  const memory = draft.memory.trim() ? parseBytes(draft.memory) : null;
  const isCount = gpus >= 1 && gpus <= MOST_GPUS;
  const isSize = !draft.memory.trim() || memory !== null;
  return isCount && isSize
    ? {
        ask: { gpus, memory, priorityClass: draft.priorityClass },
        mistakes: null
      }
    : {
        ask: null,
        mistakes: {
          ...(isCount ? {} : { gpus: AskMistake.NotWhole }),
          ...(isSize ? {} : { memory: AskMistake.NoSize })
        }
      };
}

/** The line that asks in the kernel; nothing of it is what somebody typed. */
export function requestLine(ask: IAsk): string {
  return [
    `%gpushare request --gpus ${ask.gpus}`,
    ...(ask.memory === null
      ? []
      : [`--memory ${exactSize(ask.memory).replace(/\s/g, '')}`]),
    `--class ${ask.priorityClass}`
  ].join(' ');
}

/** How an ask stands to what is free now; the node manager decides, and may know better. */
export type Outlook =
  | { readonly kind: 'at-once' }
  /** So many GPUs have room for it now. */
  | {
      readonly kind: 'waits';
      readonly having: number;
      readonly memory: number | null;
    }
  | { readonly kind: 'too-many'; readonly gpus: number }
  | { readonly kind: 'too-much'; readonly memory: number }
  | { readonly kind: 'unknown' };

export function outlook(ask: IAsk, status: Status): Outlook {
  const { quota, node } = status;
  if (!quota) {
    return { kind: 'unknown' };
  }
  const healthy = status.gpus.filter(gpu => gpu.health === 'ok');
  const most = Math.min(quota.gpus, status.gpus.length);
  if (ask.gpus > most) {
    return { kind: 'too-many', gpus: most };
  }
  const largest = Math.max(...healthy.map(gpu => gpu.memory), 0);
  const allowed = Math.min(quota.memory ?? largest, largest);
  if (ask.memory !== null && ask.memory > allowed) {
    return { kind: 'too-much', memory: allowed };
  }
  const wanted = ask.memory ?? quota.memory;
  // On a GPU that I hold already the lease shares what I have there.
  const having = healthy.filter(
    gpu =>
      gpu.tasks < node.max_tasks_per_gpu &&
      (gpu.mine > 0 || gpu.free >= Math.min(wanted ?? gpu.memory, gpu.memory))
  );
  return having.length >= ask.gpus
    ? { kind: 'at-once' }
    : { kind: 'waits', having: having.length, memory: wanted };
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

/** Whether parking by hand makes sense; that it runs code now is for its owner to hear. */
export function canPark(lease: Lease): boolean {
  return (
    isMyKernels(lease) &&
    (lease.state === 'idle' ||
      lease.state === 'active' ||
      lease.state === 'over_limit')
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

/** How long the one who waits longest has waited, in seconds; `null`: nobody waits. */
export function longestWait(status: Status): number | null {
  return status.queue.length
    ? Math.max(...status.queue.map(entry => entry.waiting))
    : null;
}
