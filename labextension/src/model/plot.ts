/** What the plots of a GPU show: the figures of a span of time, and their outlines. Pure. */
import type { Gpu, Readings } from '../api/types';

/** The spans that a person chooses from: seconds, and how often the newest is asked for. */
export const RANGES = [
  { seconds: 300, every: 4 },
  { seconds: 3600, every: 15 },
  { seconds: 86400, every: 60 }
] as const;

/** One step of the past. Unknown is `null`, never 0. Memory in bytes, shares from 0 to 1. */
export interface IMoment {
  /** When it begins and ends, Unix seconds. */
  readonly at: number;
  readonly until: number;
  readonly mine: number | null;
  readonly others: number | null;
  /** In use by nobody's lease. */
  readonly rest: number | null;
  readonly utilisation: number | null;
  readonly iCompute: number | null;
  readonly othersCompute: number | null;
  /** Degrees Celsius. */
  readonly temperature: number | null;
  /** Watts. */
  readonly power: number | null;
  /** Administrators are told who it was. */
  readonly people: readonly {
    readonly environment: string;
    readonly memory: number;
    readonly computes: number;
  }[];
}

export interface IPlot {
  /** The span that the width stands for, Unix seconds. */
  readonly from: number;
  readonly until: number;
  /** Bytes that the height of the memory stands for. */
  readonly capacity: number;
  /** Oldest first. */
  readonly moments: readonly IMoment[];
  /** Memory is what is reserved, because what is used is not known. */
  readonly reserved: boolean;
}

/** A figure of a moment; `null`: unknown. */
export type Figure = (moment: IMoment) => number | null;

/** The plots of one GPU over the last `range` seconds before `now`. */
export function plotOf(
  readings: Readings | null,
  gpu: Gpu,
  range: number,
  now: number
): IPlot {
  const row = readings?.gpus.find(({ uuid }) => uuid === gpu.uuid);
  const times = row && readings ? readings.times : [];
  const step = readings?.step ?? 0;
  const until = Math.max(now, times[times.length - 1] ?? 0);
  const from = until - range;
  // After a pause nothing is known: a step ends where the next begins, but soon in any case.
  const longest = 3 * step;
  const moments = times.map((at, place): IMoment => {
    const next = times[place + 1] ?? until;
    return {
      at,
      until: Math.min(next, at + longest),
      mine: row?.mine?.[place] ?? null,
      others: row?.others?.[place] ?? null,
      rest: row?.rest?.[place] ?? null,
      utilisation: row?.utilisation[place] ?? null,
      iCompute: row?.i_compute?.[place] ?? null,
      othersCompute: row?.others_compute?.[place] ?? null,
      temperature: row?.temperature?.[place] ?? null,
      power: row?.power?.[place] ?? null,
      people: (row?.environments ?? [])
        .map(({ environment, memory, computes }) => ({
          environment,
          memory: memory[place],
          computes: computes[place]
        }))
        .filter(({ memory, computes }) => memory > 0 || computes > 0)
    };
  });
  return {
    from,
    until,
    capacity: Math.max(1, gpu.memory),
    moments: moments.filter(moment => moment.until > from),
    reserved: row?.reserved ?? false
  };
}

/** Free memory of a moment; `null`: unknown. */
export function freeOf(moment: IMoment, capacity: number): number | null {
  const { mine, others, rest } = moment;
  return mine === null || others === null
    ? null
    : Math.max(0, capacity - mine - others - (rest ?? 0));
}

/** The highest known value; `null`: none is known. */
export function most(plot: IPlot, figure: Figure): number | null {
  const known = plot.moments
    .map(figure)
    .filter((value): value is number => value !== null);
  return known.length ? Math.max(...known) : null;
}

/** The place of a moment at a share of the width, the nearest one where there is none. */
export function momentAt(plot: IPlot, share: number): number {
  const at = plot.from + share * (plot.until - plot.from);
  const place = plot.moments.findIndex(moment => moment.until > at);
  return place < 0 ? plot.moments.length - 1 : place;
}

/** The middle of a moment as a share of the width. */
export function shareOf(plot: IPlot, moment: IMoment): number {
  const middle = (Math.max(moment.at, plot.from) + moment.until) / 2;
  return (middle - plot.from) / Math.max(1e-9, plot.until - plot.from);
}

/** The width and height in which the outlines are drawn. */
export const WIDTH = 1000;
export const HEIGHT = 100;

/** The outline of what lies between two figures; a piece for each run of known values. */
export function areaPath(
  plot: IPlot,
  lower: Figure,
  upper: Figure,
  top: number
): string {
  let path = '';
  for (const run of runs(plot, moment =>
    lower(moment) === null ? null : upper(moment)
  )) {
    const there = run.map(moment => stretch(plot, moment, upper, top));
    const back = run.map(moment => stretch(plot, moment, lower, top)).reverse();
    path += `M${there.map(([a, b, y]) => `${a} ${y}L${b} ${y}`).join('L')}`;
    path += `L${back.map(([a, b, y]) => `${b} ${y}L${a} ${y}`).join('L')}Z`;
  }
  return path;
}

/** A line through a figure; a stroke for each run of known values. */
export function linePath(plot: IPlot, figure: Figure, top: number): string {
  return runs(plot, figure)
    .map(run => {
      const points = run.map(moment => stretch(plot, moment, figure, top));
      const [, end, y] = points[points.length - 1];
      const begins = points.map(([x, , value]) => `${x} ${value}`).join('L');
      return `M${begins}L${end} ${y}`;
    })
    .join('');
}

/** A piece of a band: where it begins, its width, and the share of that time. */
export interface IPiece {
  readonly x: number;
  readonly width: number;
  readonly share: number;
}

/** The times in which a share is above 0; equal neighbours are one piece. */
export function pieces(plot: IPlot, figure: Figure): IPiece[] {
  const found: IPiece[] = [];
  for (const moment of plot.moments) {
    const share = figure(moment);
    if (share === null || share <= 0) {
      continue;
    }
    const [x, end] = stretch(plot, moment, () => 0, 1);
    const last = found[found.length - 1];
    if (last && last.share === share && Math.abs(last.x + last.width - x) < 1) {
      found[found.length - 1] = { ...last, width: end - last.x };
    } else {
      found.push({ x, width: end - x, share });
    }
  }
  return found;
}

function runs(plot: IPlot, figure: Figure): IMoment[][] {
  const found: IMoment[][] = [];
  let last: IMoment | null = null;
  for (const moment of plot.moments) {
    if (figure(moment) === null) {
      last = null;
      continue;
    }
    if (last && moment.at - last.until < 1e-6) {
      found[found.length - 1].push(moment);
    } else {
      found.push([moment]);
    }
    last = moment;
  }
  return found;
}

/** Where a moment begins and ends, and how high it is. */
function stretch(
  plot: IPlot,
  moment: IMoment,
  figure: Figure,
  top: number
): [number, number, number] {
  const x = (time: number): number =>
    rounded(
      (Math.max(0, time - plot.from) / Math.max(1e-9, plot.until - plot.from)) *
        WIDTH
    );
  const share = Math.min(1, Math.max(0, (figure(moment) ?? 0) / top));
  return [x(moment.at), x(moment.until), rounded(HEIGHT * (1 - share))];
}

function rounded(value: number): number {
  return Math.round(value * 10) / 10;
}
