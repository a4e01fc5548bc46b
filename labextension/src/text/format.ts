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

/** Write a length of time, rounded, in its two largest units: `42 s`, `30 min`, `2 h 10 min`. */
export function formatDuration(
  seconds: number,
  trans: TranslationBundle
): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  if (minutes < 24 * 60) {
    const full = Math.floor(minutes / 60);
    return minutes % 60
      ? trans.__('%1 h %2 min', full, minutes % 60)
      : trans.__('%1 h', full);
  }
  const hours = Math.round(seconds / 3600);
  const days = Math.floor(hours / 24);
  return hours % 24
    ? trans.__('%1 d %2 h', days, hours % 24)
    : trans.__('%1 d', days);
}

/** About how long: `3 s`, `20 s`, `7 min`; rounded as far as an estimate is worth. */
export function formatAbout(seconds: number, trans: TranslationBundle): string {
  return seconds < 10
    ? formatDuration(Math.max(1, Math.round(seconds)), trans)
    : formatRange(seconds, seconds, trans);
}

/** The time that is left, to the second: `42 s`, `2 min 05 s`; hours are not counted down. */
export function formatCountdown(
  seconds: number,
  trans: TranslationBundle
): string {
  return seconds < 60 || seconds >= 3600
    ? formatDuration(seconds, trans)
    : trans.__(
        '%1 min %2 s',
        Math.floor(seconds / 60),
        String(Math.floor(seconds % 60)).padStart(2, '0')
      );
}

/** Below how many seconds an estimate is rounded to how many. */
const GRAINS = [
  [90, 10],
  [600, 60],
  [2700, 300],
  [6 * 3600, 900],
  [2 * 86400, 3600],
  [Infinity, 43200]
];

/** About how long: `10 to 30 min`, `20 min`; rounded as far as an estimate is worth. */
export function formatRange(
  low: number,
  high: number,
  trans: TranslationBundle
): string {
  const [first, last] = [low, high].map(seconds => {
    const grain = GRAINS.find(([below]) => seconds < below)?.[1] ?? 60;
    const rounded = Math.max(grain, Math.round(seconds / grain) * grain);
    return formatDuration(rounded, trans);
  });
  if (first === last) {
    return last;
  }
  const unit = (text: string): string => text.replace(/^\S+ /, '');
  return unit(first) === unit(last)
    ? trans.__('%1 to %2', first.split(' ')[0], last)
    : trans.__('%1 to %2', first, last);
}

/** Write GPU-seconds as GPU-hours with as many figures as say something. */
export function formatGpuHours(gpuSeconds: number): string {
  const hours = gpuSeconds / 3600;
  if (hours <= 0) {
    return '0';
  }
  if (hours < 0.01) {
    return '< 0.01';
  }
  const places = hours < 10 ? 2 : hours < 100 ? 1 : 0;
  return String(Number(hours.toFixed(places)));
}

/** Write a share of one as a percentage; unknown stays unknown. */
export function formatShare(share: number | null): string {
  return share === null ? '?' : `${Math.round(share * 100)} %`;
}

/** `1 GPU`, `2 GPUs`. */
export function formatGpus(count: number, trans: TranslationBundle): string {
  return trans._n('%1 GPU', '%1 GPUs', count);
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
