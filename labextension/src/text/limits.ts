/** A lease's memory limit in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Gpu, Lease } from '../api/types';
import { excess, type IExcess, memoryLimit } from '../model/limits';
import { formatBytes, formatDuration, type Units } from './format';

/** That a lease has a share of a range, or may use more than it was granted; else empty. */
export function liftedText(
  lease: Lease,
  units: Units,
  trans: TranslationBundle
): string {
  if (lease.memory_most && lease.gpus.length > 0) {
    return trans.__(
      'Its share of %1 to %2 on each GPU changes with demand',
      formatBytes(lease.gpus[0].memory, units),
      formatBytes(lease.memory_most, units)
    );
  }
  const { granted, now } = memoryLimit(lease);
  return now > granted
    ? trans.__(
        'Lifted: %1 more than the %2 granted',
        formatBytes(now - granted, units),
        formatBytes(granted, units)
      )
    : '';
}

/** The meaning of this, and what to do. */
export function liftedHint(lease: Lease, trans: TranslationBundle): string {
  return lease.memory_most ? rangeHint(trans) : gpuLiftedHint(trans);
}

/** The meaning of a share of a range. */
export function rangeHint(trans: TranslationBundle): string {
  return trans.__(
    'It asked for a range of memory. The smaller size is certain. What is more falls when others need memory on one of its GPUs, and rises again afterwards.'
  );
}

/** The meaning of lifted limits on a GPU. */
export function gpuLiftedHint(trans: TranslationBundle): string {
  return trans.__(
    'The GPU is nearly empty, so the limit is higher for now. When others need the memory, caches are emptied and the limit is lowered again, also while code runs. If the code cannot do without, release the GPU and ask for more: %gpushare request --memory 16GiB.'
  );
}

/** By how much a lease is over its limit, and the next step; empty if it is not. */
export function excessText(
  lease: Lease,
  now: number,
  units: Units,
  trans: TranslationBundle
): string {
  const over = excess(lease, now);
  if (over === null) {
    return '';
  }
  const what =
    over.bytes === null ? trans.__('Memory') : formatBytes(over.bytes, units);
  const where =
    over.gpu === null
      ? trans.__('%1 over the limit.', what)
      : trans.__('%1 over the limit of GPU %2.', what, over.gpu);
  const then = nextText(over, trans);
  return then ? trans.__('%1 %2', where, then) : where;
}

function nextText(over: IExcess, trans: TranslationBundle): string {
  const when =
    over.left > 0
      ? trans.__('In %1', formatDuration(over.left, trans))
      : trans.__('Now');
  switch (over.next) {
    case 'trim':
      return trans.__('%1 its caches are emptied.', when);
    case 'park':
      return trans.__('%1 its GPU is taken back, if it is idle.', when);
    case 'last':
      return trans.__(
        '%1 the configured action (interrupt or kill) follows.',
        when
      );
    case null:
      return '';
  }
}

/** What to do about it. */
export function excessHint(trans: TranslationBundle): string {
  return trans.__(
    'Others are given the memory that is left, so they may run out of it. Free some: delete what is not needed (del), use smaller batches, or restart the kernel. If the code needs more, release the GPU and ask for more: %gpushare request --memory 16GiB.'
  );
}

/** Why there is a lease without its kernel or program; empty: they are there. */
export function survivorText(lease: Lease, trans: TranslationBundle): string {
  return typeof lease.inherited === 'number'
    ? trans.__(
        'The process that asked has ended, and process %1 goes on.',
        lease.pid
      )
    : '';
}

/** The next step against a stalled task, and its time; empty if there is none. */
export function stallText(
  lease: Lease,
  now: number,
  trans: TranslationBundle
): string {
  const stall = lease.stall;
  if (!stall) {
    return '';
  }
  const ends = stall.next === 'kill';
  if (stall.at === null) {
    const after = formatDuration(stall.after, trans);
    return ends
      ? trans.__(
          'It is ended after %1 without progress, if somebody waits for its memory.',
          after
        )
      : trans.__(
          'It is interrupted after %1 without progress, if somebody waits for its memory.',
          after
        );
  }
  const left = formatDuration(Math.max(1, Math.ceil(stall.at - now)), trans);
  return ends
    ? trans.__(
        'Somebody waits for its memory: it is ended in %1 unless it goes on.',
        left
      )
    : trans.__(
        'Somebody waits for its memory: it is interrupted in %1 unless it goes on.',
        left
      );
}

/** The memory of a GPU that is lent beyond the grants; empty if none is. */
export function gpuLiftedText(
  gpu: Gpu,
  units: Units,
  trans: TranslationBundle
): string {
  return gpu.lifted > 0
    ? trans.__(
        '%1 lent for now, back when others need it',
        formatBytes(gpu.lifted, units)
      )
    : '';
}
