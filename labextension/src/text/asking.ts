import type { TranslationBundle } from '@jupyterlab/translation';

import { KernelRefused } from '../api/kernel';

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
