import { nullTranslator } from '@jupyterlab/translation';
import { fireEvent, screen, within } from '@testing-library/react';

import { ApiError } from '../api/rest';
import type { Lease, LeaseState, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { jobState, releasable, rowsOf } from '../model/jobs';
import { releaseTitle } from '../text/jobs';
import { LeasesView } from '../widgets/leases';
import { aLease, aQueuedLease, aSaid, aStatus } from './support/builders';
import { FakeServer } from './support/server';
import { show } from './support/views';

const trans = nullTranslator.load('');
const COMMANDS = Object.values(CommandIDs);

/** A worker of the elastic job digits on GPU `index`. */
function worker(index: number, given: Partial<Lease> = {}): Lease {
  const [gpu] = aLease('one').gpus;
  return aLease(`w${index}`, {
    job: 'digits',
    job_kind: 'elastic',
    kind: 'process',
    name: 'member.py',
    path: '/somewhere/member.py',
    kernel_id: null,
    priority_class: 'batch',
    gpus: [{ ...gpu, uuid: `GPU-0000000${index}`, index }],
    granted: 1400 + index,
    since: 1400 + index,
    ...given
  });
}

const rowsShown = (): HTMLElement[] =>
  within(screen.getByRole('list', { name: 'My leases' })).getAllByRole(
    'listitem'
  );

describe('rows', () => {
  it('are one for each job of one person, where its first lease is', () => {
    const rows = rowsOf([
      worker(0),
      aLease('alone'),
      worker(1),
      worker(2, { environment: 'bob' }),
      worker(3, { job: 'letters' })
    ]);
    expect(
      rows.map(({ job, leases }) => [job, leases.map(({ id }) => id)])
    ).toEqual([
      ['digits', ['w0', 'w1']],
      [null, ['alone']],
      ['digits', ['w2']],
      ['letters', ['w3']]
    ]);
    expect(new Set(rows.map(({ key }) => key)).size).toBe(rows.length);
  });

  it('are one a lease where nobody says of which job it is', () => {
    const hidden = { id: null, environment: null, job: null };
    const rows = rowsOf([aLease('a', hidden), aLease('b', hidden)]);
    expect(rows.map(({ leases }) => leases.length)).toEqual([1, 1]);
    expect(rows[0].key).not.toBe(rows[1].key);
  });

  it.each<[LeaseState[], LeaseState]>([
    [['draining', 'active'], 'active'],
    [['active', 'stalled'], 'stalled'],
    [['stalled', 'over_limit'], 'over_limit'],
    [['queued', 'queued'], 'queued']
  ])('%j is seen as %s', (states, seen) => {
    expect(jobState(states.map(state => worker(0, { state })))).toBe(seen);
  });

  it('give back what waits only as part of a job', () => {
    const waits = aQueuedLease('q', 1);
    expect(releasable(rowsOf([waits])[0])).toEqual([]);
    const [row] = rowsOf([
      worker(0),
      { ...waits, job: 'digits' },
      worker(1, { state: 'draining' })
    ]);
    expect(releasable(row).map(({ id }) => id)).toEqual(['w0', 'q']);
  });
});

describe('a job among my leases', () => {
  const job = (...leases: Lease[]): Partial<Status> => ({
    leases,
    jobs: [
      {
        ...{ job: 'digits', environment: 'alice', mine: true, kind: null },
        leases: leases.map(({ id }) => id ?? ''),
        says: [aSaid('what', 'elastic job digits', { hint: 'It stops.' })]
      }
    ]
  });

  it('is one row, which grows with its details open', () => {
    const { model } = show(LeasesView, aStatus(job(worker(0))));
    expect(screen.getByText('Elastic job digits')).toBeTruthy();
    const details = screen.getByText('1 worker').closest('details');
    details!.open = true;
    const other = aLease('alone');
    model.setStatus(aStatus(job(worker(0), other, worker(1))));
    expect(screen.getByText('2 workers').closest('details')).toBe(details);
    expect(details!.open).toBe(true);
    const rows = rowsShown().filter(({ classList }) =>
      classList.contains('jp-gpushare-row')
    );
    expect(rows.map(({ dataset }) => dataset.job ?? dataset.lease)).toEqual([
      'digits',
      'alone'
    ]);
  });

  it('is released as a whole, by its name', () => {
    const { ran } = show(
      LeasesView,
      aStatus(job(worker(0), worker(1))),
      COMMANDS
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Release all GPUs of digits' })
    );
    expect(ran).toEqual([
      { command: CommandIDs.release, args: { job: 'digits' } }
    ]);
    const [row] = rowsOf([worker(0), worker(1)]);
    expect(releaseTitle(row, trans)).toBe('Release all 2 GPUs of digits?');
    const [one] = rowsOf([worker(0)]);
    expect(releaseTitle(one, trans)).toBe('Release 1 GPU of digits?');
  });
});

describe('releaseAll', () => {
  it('takes one that has ended meanwhile as given back', async () => {
    const server = new FakeServer();
    server.on('DELETE', 'leases/a', 200, { lease: 'a', state: 'ended' });
    const gone = { reason: 'unknown_lease', message: 'It was released.' };
    server.on('DELETE', 'leases/b', 404, gone);
    await server.api.releaseAll(['a', 'b']);
    expect(server.asked.map(({ path }) => path)).toEqual([
      'leases/a',
      'leases/b'
    ]);
  });

  it('tells of what failed otherwise', async () => {
    const server = new FakeServer();
    server.on('DELETE', 'leases/a', 409, { reason: 'busy', message: 'No.' });
    await expect(server.api.releaseAll(['a'])).rejects.toThrow(ApiError);
  });
});
