/** The leases of one job, such as an elastic training or a sweep, are one row. Pure. */
import type { Job, Lease, LeaseState, Status } from '../api/types';
import { canRelease } from './derive';

/** Leases that people see as one. */
export interface IRow {
  /** Tells it from the other rows. */
  readonly key: string;
  /** The job's name; `null`: one lease of a task by itself. */
  readonly job: string | null;
  /** One at least. */
  readonly leases: readonly Lease[];
}

/** Those of one person's job are one row, where the first of them is. */
export function rowsOf(leases: readonly Lease[]): IRow[] {
  const found = new Map<string, { job: string | null; leases: Lease[] }>();
  leases.forEach((lease, place) => {
    const job = lease.environment === null ? null : (lease.job ?? null);
    const key =
      job === null
        ? `lease ${lease.id ?? place}`
        : `job ${JSON.stringify([lease.environment, job])}`;
    const row = found.get(key);
    if (row) {
      row.leases.push(lease);
    } else {
      found.set(key, { job, leases: [lease] });
    }
  });
  return [...found].map(([key, row]) => ({ key, ...row }));
}

/** What the node manager says of a row's job; `null`: its leases have ended, and drain. */
export function jobOf(row: IRow, status: Status): Job | null {
  const [{ environment }] = row.leases;
  const isIt = (job: Job): boolean =>
    job.job === row.job && job.environment === environment;
  return status.jobs?.find(isIt) ?? null;
}

/** What a row can give back: the leases that hold a GPU, and of a job also those that wait. */
export function releasable(row: IRow): Lease[] {
  return row.leases.filter(
    ({ state }) => canRelease(state) || (row.job !== null && state === 'queued')
  );
}

/** The states that its owner should hear of, although others of the same job are in another one. */
const URGENT: readonly LeaseState[] = ['over_limit', 'stalled'];

/** The state of a job, in one picture. */
export function jobState(leases: readonly Lease[]): LeaseState {
  const states = leases.map(({ state }) => state);
  return (
    [...URGENT, 'active' as const].find(state => states.includes(state)) ??
    states[0]
  );
}
