/** A job in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Lease } from '../api/types';
import type { IRow } from '../model/jobs';
import { formatGpus } from './format';
import { gpuNames, stateWord, taskName } from './words';

/** `Elastic job`, `Sweep`; a kind that is not known here is simply a job. */
function kindWord(row: IRow, trans: TranslationBundle): string {
  switch (row.leases[0].job_kind) {
    case 'elastic':
      return trans.__('Elastic job');
    case 'sweep':
      return trans.__('Sweep');
    default:
      return trans.__('Job');
  }
}

/** `3 workers`. */
export function workersText(row: IRow, trans: TranslationBundle): string {
  return trans._n('%1 worker', '%1 workers', row.leases.length);
}

/** `Elastic job: GPU 0, GPU 1, GPU 2`. */
export function jobText(row: IRow, trans: TranslationBundle): string {
  const where = rowGpus(row, trans);
  const kind = kindWord(row, trans);
  return where ? trans.__('%1: %2', kind, where) : kind;
}

/** `Active`, or `2 Active, 1 Draining`. */
export function statesText(
  leases: readonly Lease[],
  trans: TranslationBundle
): string {
  const counts = new Map<string, number>();
  for (const { state } of leases) {
    const word = stateWord(state, trans);
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  return counts.size === 1
    ? [...counts.keys()][0]
    : [...counts]
        .map(([word, count]) => trans.__('%1 %2', count, word))
        .join(', ');
}

/** The name of a row: the job's, or the task's. */
export function rowName(row: IRow, trans: TranslationBundle): string {
  return row.job ?? taskName(row.leases[0], trans);
}

/** `GPU 0, GPU 2`: where a row is, each GPU once. */
export function rowGpus(row: IRow, trans: TranslationBundle): string {
  const gpus = new Map(
    row.leases.flatMap(({ gpus }) => gpus).map(gpu => [gpu.uuid, gpu])
  );
  return gpuNames([...gpus.values()], trans);
}

/** The question before a job is released. */
export function releaseTitle(row: IRow, trans: TranslationBundle): string {
  const gpus = row.leases.reduce((sum, { gpus }) => sum + gpus.length, 0);
  return trans.__(
    'Release %1 of %2?',
    gpus > 1
      ? trans.__('all %1', formatGpus(gpus, trans))
      : formatGpus(gpus, trans),
    rowName(row, trans)
  );
}

/** What releasing does to it. */
export function releaseEffect(row: IRow, trans: TranslationBundle): string {
  switch (row.leases[0].job_kind) {
    case 'elastic':
      return trans.__(
        'The job saves at the end of its step and stops. In a notebook elastic.load("%1") goes on.',
        row.job
      );
    case 'sweep':
      return trans.__(
        'The sweep stops, and keeps the results it has. Models that run now save if they can, else they begin anew. In a notebook sweep.load("%1") goes on.',
        row.job
      );
    default:
      return trans.__(
        'All its leases end at once; memory that its code holds on the GPUs is only freed when the code releases it.'
      );
  }
}
