/** A row of leases, which may be a job, in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IRow } from '../model/jobs';
import { formatGpus } from './format';
import { about, nameOf } from './said';

/** The name of a row: the job's, or the task's. */
export function rowName(row: IRow): string {
  return row.job ?? nameOf(row.leases[0]);
}

/** `GPU 0, GPU 2`: where a row is, each place once. */
export function rowGpus(row: IRow): string {
  const where = row.leases.flatMap(lease => about(lease, 'where'));
  const places = where.flatMap(({ text }) => text.split(', '));
  return [...new Set(places)].sort().join(', ');
}

/** The question before a job is released. */
export function releaseTitle(row: IRow, trans: TranslationBundle): string {
  const gpus = row.leases.reduce((sum, { gpus }) => sum + gpus.length, 0);
  return trans.__(
    'Release %1 of %2?',
    gpus > 1
      ? trans.__('all %1', formatGpus(gpus, trans))
      : formatGpus(gpus, trans),
    rowName(row)
  );
}
