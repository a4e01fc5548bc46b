/** Computes the usage charts. Pure. */
import type { DailyUsage, Day } from '../api/types';
import { toCsv } from './csv';

export interface ITotals {
  /** GPU-seconds. */
  readonly held: number;
  readonly busy: number;
  /** What counts towards a budget. */
  readonly charged: number;
  /** Busy of held, from 0 to 1; `null` where nothing was held. */
  readonly share: number | null;
}

export function totals(days: readonly Day[]): ITotals {
  const held = days.reduce((sum, day) => sum + day.held, 0);
  const busy = days.reduce((sum, day) => sum + day.busy, 0);
  const charged = days.reduce((sum, day) => sum + day.charged, 0);
  return { held, busy, charged, share: held > 0 ? busy / held : null };
}

/** The node's use on a day: held and busy of what its GPUs could give, from 0 to 1. */
export function nodeShares(day: Day): { held: number; busy: number } {
  const share = (part: number): number =>
    day.capacity > 0 ? Math.min(1, Math.max(0, part / day.capacity)) : 0;
  return { held: share(day.node_held), busy: share(day.node_busy) };
}

/** A round number at or above `most`, for the top of an axis. */
export function axisTop(most: number): number {
  if (most <= 0) {
    return 1;
  }
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [1, 2, 2.5, 5, 10].find(factor => factor * power >= most) ?? 10;
  return step * power;
}

/** `2026-11-21`: the day that begins at a moment (Unix seconds), in the node's own zone. */
export function dayName(start: number, usage: DailyUsage): string {
  // Noon is on the same day whichever way the clocks were changed meanwhile.
  const noon = start + 43200 + (usage.utc_offset ?? 0);
  return new Date(noon * 1000).toISOString().slice(0, 10);
}

/** The days as a file for a spreadsheet; GPU-hours with four places. */
export function usageCsv(usage: DailyUsage): string {
  const hours = (seconds: number): number =>
    Math.round((seconds / 3600) * 1e4) / 1e4;
  return toCsv(
    [
      'day',
      'environment',
      'held_gpu_hours',
      'busy_gpu_hours',
      'leases',
      'node_held_gpu_hours',
      'node_busy_gpu_hours',
      'node_capacity_gpu_hours',
      'charged_gpu_hours',
      'resident_gib_hours'
    ],
    usage.days.map(day => [
      dayName(day.start, usage),
      usage.environment,
      hours(day.held),
      hours(day.busy),
      day.leases,
      hours(day.node_held),
      hours(day.node_busy),
      hours(day.capacity),
      hours(day.charged),
      hours(day.resident_gib_seconds)
    ])
  );
}
