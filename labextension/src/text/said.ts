/** Writes out what the node manager has said: a figure stands in a text as `{form value}`. Pure. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Fact, Said } from '../api/types';
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
type Told = { readonly says?: readonly Fact[] } | null | undefined;

/** A figure in a text: its form, its value, and of a range its end. */
const FIGURE = /\{([a-z]+) ([^ {}]+)(?: ([^ {}]+))?\}/g;

/** All that is said of it. A fact that has only a text, and perhaps a tone, is one line. */
export function saysOf(of: Told): Said[] {
  return (of?.says ?? []).map(said => {
    if (typeof said !== 'string') {
      return said;
    }
    const [, about, tone, text] = said.match(/^([^ :]*):?([^ ]*) ?(.*)$/s)!;
    return { about, text, tone: (tone || 'plain') as Said['tone'] };
  });
}

/** What is said of it about these subjects, in the order in which it was said. */
export function about(of: Told, ...subjects: readonly string[]): Said[] {
  return saysOf(of).filter(said => subjects.includes(said.about));
}

/** All that is said of it apart from these subjects. */
export function besides(of: Told, ...subjects: readonly string[]): Said[] {
  return saysOf(of).filter(said => !subjects.includes(said.about));
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
  return said.text.replace(FIGURE, (_, form: string, ...values: string[]) =>
    figureText(form, Number(values[0]), Number(values[1] ?? values[0]), reader)
  );
}

/** A fact that begins a line. */
export function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function figureText(
  form: string,
  value: number,
  most: number,
  { trans, units, now }: IReader
): string {
  if (!Number.isFinite(value) || !Number.isFinite(most)) {
    return '?';
  }
  switch (form) {
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
  }
  return '?';
}
