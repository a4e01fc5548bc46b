import type { TranslationBundle } from '@jupyterlab/translation';

/** How memory is written: powers of 1024 (GiB) or of 1000 (GB). */
export type Units = 'binary' | 'decimal';

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
const DECIMAL = ['B', 'kB', 'MB', 'GB', 'TB'];

/** Write bytes for people, three figures at most: `8 GiB`, `12.4 GiB`, `512 MiB`. */
export function formatBytes(bytes: number, units: Units = 'binary'): string {
  const base = units === 'binary' ? 1024 : 1000;
  const names = units === 'binary' ? BINARY : DECIMAL;
  let value = Math.abs(bytes);
  let place = 0;
  // 1023.7 MiB would be shown as "1024 MiB": go on to the next unit at what rounds up to it.
  while (place < names.length - 1 && Math.round(value * 10) / 10 >= base) {
    value /= base;
    place += 1;
  }
  const rounded =
    value >= 100 || place === 0
      ? Math.round(value)
      : Math.round(value * 10) / 10;
  return `${bytes < 0 ? '−' : ''}${rounded} ${names[place]}`;
}

/**
 * Read a size that a person typed: `8GiB`, `16 GB`, `512 MiB`, `0.5 GiB`.
 *
 * Returns bytes, or `null` where the text is no positive size. A bare number is refused: it
 * might be bytes or gigabytes. An empty text is for the caller to decide.
 */
export function parseBytes(text: string): number | null {
  const match = /^\s*(\d+(?:[.,]\d+)?)\s*([kmgt]i?b)\s*$/i.exec(text);
  if (!match) {
    return null;
  }
  const unit = match[2].toLowerCase();
  const power = 'kmgt'.indexOf(unit[0]) + 1;
  const base = unit.length === 3 ? 1024 : 1000;
  const bytes = Math.round(
    parseFloat(match[1].replace(',', '.')) * base ** power
  );
  return bytes > 0 && Number.isSafeInteger(bytes) ? bytes : null;
}

/** Write a length of time in its two largest units: `42 s`, `3 min`, `2 h 5 min`, `3 d 4 h`. */
export function formatDuration(
  seconds: number,
  trans: TranslationBundle
): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 24) {
    return minutes % 60
      ? trans.__('%1 h %2 min', hours, minutes % 60)
      : trans.__('%1 h', hours);
  }
  const days = Math.floor(hours / 24);
  return hours % 24
    ? trans.__('%1 d %2 h', days, hours % 24)
    : trans.__('%1 d', days);
}

/** Write GPU-seconds as GPU-hours with as many figures as say something. */
export function formatGpuHours(gpuSeconds: number): string {
  const hours = gpuSeconds / 3600;
  if (hours === 0) {
    return '0';
  }
  if (hours < 0.01) {
    return '< 0.01';
  }
  return hours < 10 ? hours.toFixed(2) : hours.toFixed(hours < 100 ? 1 : 0);
}

/** Write a share of one as a percentage; unknown stays unknown. */
export function formatShare(share: number | null): string {
  return share === null ? '?' : `${Math.round(share * 100)} %`;
}

/** `1 GPU`, `2 GPUs`. */
export function formatGpus(count: number, trans: TranslationBundle): string {
  return trans._n('%1 GPU', '%1 GPUs', count);
}

/** A moment in the reader's own zone and habit: the time today, date and time otherwise. */
export function formatMoment(unixSeconds: number, nowSeconds: number): string {
  const when = new Date(unixSeconds * 1000);
  const sameDay =
    when.toDateString() === new Date(nowSeconds * 1000).toDateString();
  return sameDay
    ? when.toLocaleTimeString(undefined, { timeStyle: 'medium' })
    : when.toLocaleString(undefined, {
        dateStyle: 'short',
        timeStyle: 'medium'
      });
}
