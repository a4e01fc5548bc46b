import type { TranslationBundle } from '@jupyterlab/translation';

import type { Gpu, Quota } from '../api/types';
import { KernelRefused } from '../api/kernel';
import { formatBytes, formatGpus, type Units } from './format';
import { gpuNumber } from './words';

/** The name of a request to a kernel, for its progress and its failure. */
export type KernelAction = 'request' | 'park' | 'resume';

/** While it is done. */
export function doingText(
  action: KernelAction,
  name: string,
  trans: TranslationBundle
): string {
  switch (action) {
    case 'request':
      return trans.__('%1 asks for a GPU. If none is free, it waits.', name);
    case 'park':
      return trans.__('%1 gives its GPU back, and keeps its variables.', name);
    case 'resume':
      return trans.__(
        '%1 asks for its GPU again. If none is free, it waits.',
        name
      );
  }
}

/** Why it was not done. */
export function notDoneText(
  error: unknown,
  name: string,
  trans: TranslationBundle
): string {
  if (!(error instanceof KernelRefused)) {
    const why = error instanceof Error ? error.message : String(error);
    return trans.__('%1 could not be asked: %2', name, why);
  }
  switch (error.why) {
    case 'not-here':
      return trans.__(
        'The kernel of %1 does not run under this server, so it cannot be asked from here.',
        name
      );
    case 'busy':
      return trans.__(
        '%1 runs code now, so its kernel does not listen. Try again when the cell has ended.',
        name
      );
    case 'gone':
      return trans.__(
        'The kernel of %1 was restarted or ended before it had answered.',
        name
      );
    case 'refused':
      return trans.__('%1: %2', name, plainText(error.message));
  }
}

/** A kernel's words without the marks for code, which this place cannot show. */
export function plainText(text: string): string {
  return text.replace(/`/g, '').trim();
}

/** The free memory on a GPU now. */
export function freeText(
  gpu: Gpu,
  units: Units,
  trans: TranslationBundle
): string {
  if (gpu.health !== 'ok') {
    return trans.__('GPU %1: lost', gpuNumber(gpu));
  }
  if (gpu.out_of_service) {
    return trans.__('GPU %1: out of service', gpuNumber(gpu));
  }
  const free = formatBytes(gpu.free, units);
  const all = formatBytes(gpu.memory, units);
  if (gpu.mine > 0) {
    return trans.__(
      'GPU %1: %2 of %3 free; you hold it already',
      gpuNumber(gpu),
      free,
      all
    );
  }
  return gpu.free >= gpu.memory
    ? trans.__('GPU %1: all of its %2 free', gpuNumber(gpu), all)
    : trans.__('GPU %1: %2 of %3 free', gpuNumber(gpu), free, all);
}

/** What the user may hold, and what the user holds. */
export function quotaText(
  quota: Quota,
  units: Units,
  trans: TranslationBundle
): string {
  const gpus = formatGpus(quota.gpus, trans);
  return quota.memory === null
    ? trans.__('Your quota: %1; you hold %2.', gpus, quota.used_gpus)
    : trans.__(
        'Your quota: %1, %2 on each; you hold %3.',
        gpus,
        formatBytes(quota.memory, units),
        quota.used_gpus
      );
}
