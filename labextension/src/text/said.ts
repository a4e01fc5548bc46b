/** Writes out what the node manager has said: each `{}` of a text is a figure. Pure. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Figure, Said } from '../api/types';
import {
  formatAbout,
  formatBytes,
  formatCountdown,
  formatDuration,
  formatGpuHours,
  formatMoment,
  formatRange,
  formatShare,
  type Units
} from './format';

/** Who reads it, and when. */
export interface IReader {
  readonly trans: TranslationBundle;
  readonly units?: Units;
  /** The node's time, Unix seconds. */
  readonly now: number;
}

/** Something of which the node manager says something. */
type Told = { readonly says?: readonly Said[] } | null | undefined;

/** What is said of it about these subjects, in the order in which it was said. */
export function about(of: Told, ...subjects: readonly string[]): Said[] {
  return (of?.says ?? []).filter(said => subjects.includes(said.about));
}

/** All that is said of it apart from these subjects. */
export function besides(of: Told, ...subjects: readonly string[]): Said[] {
  return (of?.says ?? []).filter(said => !subjects.includes(said.about));
}

/** The name of a task, which has no figures. */
export function nameOf(of: Told): string {
  return about(of, 'what')[0]?.text ?? '';
}

/** Several facts in one line. */
export function wordsOf(
  says: readonly Said[],
  reader: IReader,
  between = ' · '
): string {
  return says.map(said => saidText(said, reader)).join(between);
}

export function saidText(said: Said, reader: IReader): string {
  const [first, ...rest] = said.text.split('{}');
  return rest.reduce(
    (text, words, place) =>
      text + figureText(said.figures?.[place], reader) + words,
    first
  );
}

/** A fact that begins a line. */
export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function figureText(
  figure: Figure | undefined,
  { trans, units, now }: IReader
): string {
  if (!figure) {
    return '?';
  }
  const { value, most = value } = figure;
  switch (figure.form) {
    case 'bytes':
      return formatBytes(value, units);
    case 'percent':
      return formatShare(value);
    case 'hours':
      return formatGpuHours(value * 3600);
    case 'span':
      return formatDuration(value, trans);
    case 'range':
      return formatRange(value, most, trans);
    case 'left':
      return formatCountdown(Math.max(1, Math.ceil(value - now)), trans);
    case 'since':
      return formatDuration(now - value, trans);
    case 'about':
      return formatAbout(Math.max(1, value - now), trans);
    case 'clock':
      return formatMoment(value, now);
    case 'number':
      return String(value);
  }
}
