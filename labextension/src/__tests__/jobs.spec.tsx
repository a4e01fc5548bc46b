import { nullTranslator } from '@jupyterlab/translation';
import { fireEvent, screen, within } from '@testing-library/react';

import { ApiError } from '../api/rest';
import type { Lease, LeaseState } from '../api/types';
import { CommandIDs } from '../commands';
import { jobState, releasable, rowsOf } from '../model/jobs';
import { releaseEffect, releaseTitle } from '../text/jobs';
import { taskName } from '../text/words';
import { LeasesView } from '../widgets/leases';
import { aLease, aQueuedLease, aStatus, GIB } from './support/builders';
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
  it('is one row with its GPUs, memory and time, and names each worker', () => {
    show(
      LeasesView,
      aStatus({ leases: [worker(1), aLease('alone'), worker(0)] })
    );
    const [row, other] = rowsShown().filter(({ classList }) =>
      classList.contains('jp-gpushare-row')
    );
    expect(other.textContent).toContain('train.ipynb');
    expect(row.textContent).toContain('digits');
    expect(row.textContent).toContain('Elastic job: GPU 0, GPU 1');
    expect(row.textContent).toContain('Active for 10 min'); // as long as its oldest
    expect(row.textContent).toContain('Uses 2 GiB of 16 GiB in all');
    expect(row.textContent).not.toContain('member.py');
    expect(
      screen
        .getByRole('meter', { name: 'GPU memory of digits' })
        .getAttribute('aria-valuetext')
    ).toBe('2 GiB of 16 GiB');
    const workers = within(
      screen.getByRole('list', { name: 'Workers of digits', hidden: true })
    ).getAllByRole('listitem', { hidden: true });
    expect(workers.map(({ textContent }) => textContent)).toEqual([
      'GPU 1: Active for 10 min · 1 GiB of 8 GiB',
      'GPU 0: Active for 10 min · 1 GiB of 8 GiB'
    ]);
  });

  it('says that its share of a range changes', () => {
    const given = { memory_most: 40 * GIB };
    show(LeasesView, aStatus({ leases: [worker(0, given), worker(1, given)] }));
    const [row] = rowsShown();
    expect(row.textContent).toMatch(
      /Its share of .* to 40 GiB on each GPU changes with demand/
    );
  });

  it('is one row with one worker, too, and grows with its details open', () => {
    const { model } = show(LeasesView, aStatus({ leases: [worker(0)] }));
    expect(screen.getByText('Elastic job: GPU 0')).toBeTruthy();
    const details = screen.getByText('1 worker').closest('details');
    details!.open = true;
    model.setStatus(aStatus({ leases: [worker(0), worker(1)] }));
    expect(screen.getByText('2 workers').closest('details')).toBe(details);
    expect(details!.open).toBe(true);
  });

  it('says how many are in which state, and what is wrong with any of them', () => {
    const over_limit = {
      gpu: 'GPU-00000001',
      used: 9 * GIB,
      limit: 8 * GIB,
      next: 'lower_limit',
      next_at: 2010
    } as unknown as Lease['over_limit'];
    show(
      LeasesView,
      aStatus({
        leases: [worker(0), worker(1, { state: 'over_limit', over_limit })]
      })
    );
    expect(screen.getByText(/1 Active, 1 Over its limit for/)).toBeTruthy();
    expect(screen.getByText(/1 GiB over the limit of GPU 1/)).toBeTruthy();
  });

  it('does not read unknown memory as none', () => {
    const [gpu] = aLease('one').gpus;
    const gpus = [{ ...gpu, measured: null }];
    const { node } = aStatus();
    const leases = [worker(0), worker(1, { gpus })];
    const { model } = show(LeasesView, aStatus({ leases }));
    expect(screen.getByText('May use 8 GiB each')).toBeTruthy();
    model.setStatus(aStatus({ leases, node: { ...node, simulated: false } }));
    expect(screen.getByText(/how much it does is unknown/)).toBeTruthy();
    expect(screen.queryByRole('meter')).toBeNull();
  });

  it('is released as a whole, by its name', () => {
    const { ran } = show(
      LeasesView,
      aStatus({ leases: [worker(0), worker(1)] }),
      COMMANDS
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Release all GPUs of digits' })
    );
    expect(ran).toEqual([
      { command: CommandIDs.release, args: { job: 'digits' } }
    ]);
  });

  it.each([
    ['elastic', /saves at the end of its step.*elastic\.load\("digits"\)/],
    ['sweep', /keeps the results.*sweep\.load\("digits"\)/],
    [null, /All its leases end at once/]
  ])('says what releasing does to a job of the kind %s', (job_kind, effect) => {
    const [row] = rowsOf([worker(0, { job_kind }), worker(1, { job_kind })]);
    expect(releaseTitle(row, trans)).toBe('Release all 2 GPUs of digits?');
    expect(releaseEffect(row, trans)).toMatch(effect);
    const [one] = rowsOf([worker(0)]);
    expect(releaseTitle(one, trans)).toBe('Release 1 GPU of digits?');
  });

  it("names a job's worker by its job wherever a task is named", () => {
    expect(taskName(worker(0), trans)).toBe('digits');
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
