import type { Failure } from '../api/rest';
import type { Gpu, Readings, Status } from '../api/types';

/** How current the shown status is. */
export enum Connection {
  /** Nothing has come yet. */
  Loading = 'loading',
  /** Changes come as they happen. */
  Live = 'live',
  /** There is a status, but it is old: the connection is lost, and tried again. */
  Stale = 'stale',
  /** There never was a status, and `problem` says why. */
  Failed = 'failed'
}

/** A problem. `message` is the server's or the node manager's own sentence. */
export interface IProblem {
  readonly failure: Failure | 'not-live';
  readonly message: string;
}

/** One GPU at one moment. Unknown is `null`, never 0. */
export interface ISample {
  /** Unix seconds, by the node's clock. */
  readonly at: number;
  /** From 0 to 1. */
  readonly utilisation: number | null;
  /** Bytes. */
  readonly used: number | null;
}

/** The samples of each GPU by UUID, oldest first. */
export type Samples = ReadonlyMap<string, readonly ISample[]>;

/** Everything the views show; replaced as a whole at each change. */
export interface ISnapshot {
  readonly connection: Connection;
  readonly status: Status | null;
  readonly problem: IProblem | null;
  readonly samples: Samples;
}

export const EMPTY: ISnapshot = {
  connection: Connection.Loading,
  status: null,
  problem: null,
  samples: new Map()
};

/** Seconds of the past that are kept and shown. */
export const SAMPLES_FOR = 900;
/** Seconds between two samples. */
export const SAMPLE_STEP = 5;

/** A status came. */
export function withStatus(before: ISnapshot, status: Status): ISnapshot {
  return {
    connection: Connection.Live,
    status,
    problem: null,
    samples: appended(before.samples, status.gpus, status.node.time)
  };
}

/** Something is wrong: what was known stays, marked as old. */
export function withProblem(before: ISnapshot, problem: IProblem): ISnapshot {
  return {
    ...before,
    connection: before.status ? Connection.Stale : Connection.Failed,
    problem
  };
}

/** The connection was let go of or lost, and why is not known yet. */
export function withoutConnection(before: ISnapshot): ISnapshot {
  return before.connection === Connection.Live
    ? { ...before, connection: Connection.Stale }
    : before;
}

/** Put the node manager's record of the last minutes before what was sampled here. */
export function withReadings(before: ISnapshot, readings: Readings): ISnapshot {
  const samples = new Map<string, readonly ISample[]>();
  for (const gpu of readings.gpus) {
    const past = readings.times.map((at, place) => ({
      at,
      utilisation: gpu.utilisation[place] ?? null,
      used: gpu.used[place] ?? null
    }));
    const last = past.length ? past[past.length - 1].at : -Infinity;
    const newer = before.samples.get(gpu.uuid) ?? [];
    samples.set(gpu.uuid, [
      ...past,
      ...newer.filter(sample => sample.at >= last + SAMPLE_STEP)
    ]);
  }
  return { ...before, samples };
}

function appended(before: Samples, gpus: readonly Gpu[], at: number): Samples {
  const after = new Map<string, readonly ISample[]>();
  let changed = before.size !== gpus.length;
  for (const gpu of gpus) {
    const old = before.get(gpu.uuid) ?? [];
    const last = old.length ? old[old.length - 1].at : -Infinity;
    if (at - last < SAMPLE_STEP) {
      after.set(gpu.uuid, old);
      continue;
    }
    changed = true;
    after.set(gpu.uuid, [
      ...old.filter(sample => sample.at > at - SAMPLES_FOR),
      { at, utilisation: gpu.utilisation, used: gpu.used }
    ]);
  }
  return changed ? after : before;
}
