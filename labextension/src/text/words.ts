import type { TranslationBundle } from '@jupyterlab/translation';

import type { Lease, LeaseState } from '../api/types';
import { eachText, formatGpus, type Units } from './format';

/** The word for a state, as DESIGN's vocabulary has it. */
export function stateWord(state: LeaseState, trans: TranslationBundle): string {
  switch (state) {
    case 'queued':
      return trans.__('Queued');
    case 'active':
      return trans.__('Active');
    case 'idle':
      return trans.__('Idle');
    case 'parking':
      return trans.__('Parking');
    case 'parked':
      return trans.__('Parked');
    case 'resuming':
      return trans.__('Resuming');
    case 'stalled':
      return trans.__('Stalled');
    case 'over_limit':
      return trans.__('Over its limit');
    case 'draining':
      return trans.__('Draining');
    case 'ended':
      return trans.__('Ended');
  }
}

/** The meaning of a state for the owner of the lease. */
export function stateHint(state: LeaseState, trans: TranslationBundle): string {
  switch (state) {
    case 'queued':
      return trans.__('Waits for a GPU; the code goes on when it is granted.');
    case 'active':
      return trans.__('Holds its GPU and runs code.');
    case 'idle':
      return trans.__('Holds its GPU and runs no code.');
    case 'parking':
      return trans.__(
        'It is idle and gives its GPU back; what is on the GPU goes to host memory.'
      );
    case 'resuming':
      return trans.__(
        'It has a GPU again; what was in host memory is brought back to it.'
      );
    case 'parked':
      return trans.__(
        'Its GPU was given to others and its variables are kept; the next cell takes a GPU again.'
      );
    case 'stalled':
      return trans.__(
        'Its process gives no sign of life. It keeps its memory until the process ends.'
      );
    case 'over_limit':
      return trans.__('Uses more GPU memory than its lease reserves.');
    case 'draining':
      return trans.__(
        'The lease has ended, but its process still holds GPU memory. Restart the kernel to free it.'
      );
    case 'ended':
      return trans.__('Over.');
  }
}

/** The name by which a person knows a lease's task; a worker of a job goes by the job's. */
export function taskName(lease: Lease, trans: TranslationBundle): string {
  if (lease.job) {
    return lease.job;
  }
  if (lease.path) {
    const parts = lease.path.split('/');
    return parts[parts.length - 1] || lease.path;
  }
  if (lease.name) {
    return lease.name;
  }
  return lease.kind === 'process'
    ? trans.__('A program')
    : trans.__('A notebook');
}

/** `0`, as nvidia-smi counts; of a MIG instance `0:1`, its board's and its own. */
export function gpuNumber(gpu: {
  index: number;
  instance?: number | null;
}): string {
  return gpu.instance === undefined || gpu.instance === null
    ? `${gpu.index}`
    : `${gpu.index}:${gpu.instance}`;
}

/** `GPU 0, GPU 1`: where a lease with these GPUs is; empty while it waits. */
export function gpuNames(
  gpus: Lease['gpus'],
  trans: TranslationBundle
): string {
  return [...gpus]
    .sort((a, b) => a.index - b.index || (a.instance ?? 0) - (b.instance ?? 0))
    .map(gpu => trans.__('GPU %1', gpuNumber(gpu)))
    .join(', ');
}

/** A lease in a few words, for the notebook's toolbar; `budgetSpent`: it waits for GPU-hours. */
export function leaseSummary(
  lease: Lease | null,
  units: Units,
  trans: TranslationBundle,
  budgetSpent = false
): string {
  if (!lease) {
    return trans.__('No GPU');
  }
  if (budgetSpent) {
    return trans.__('GPU-hours spent');
  }
  if (lease.state === 'queued' || lease.position !== null) {
    return trans.__('Waiting: %1', lease.position ?? '?');
  }
  if (lease.gpus.length === 0) {
    return stateWord(lease.state, trans);
  }
  const what = trans.__(
    '%1 · %2',
    formatGpus(lease.gpus.length, trans),
    eachText(
      lease.gpus.map(part => part.memory),
      units,
      trans
    )
  );
  if (lease.turn === 'waits') {
    return trans.__('%1 · Waits for its turn', what);
  }
  return lease.state === 'active'
    ? what
    : trans.__('%1 · %2', what, stateWord(lease.state, trans));
}
