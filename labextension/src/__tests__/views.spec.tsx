import { fireEvent, screen, within } from '@testing-library/react';

import { Failure } from '../api/rest';
import type { Lease } from '../api/types';
import { CommandIDs } from '../commands';
import { withProblem } from '../model/snapshot';
import { BannerView } from '../widgets/banner';
import { GpusView } from '../widgets/gpus';
import { LeasesView } from '../widgets/leases';
import { sparkPath } from '../widgets/parts';
import { QueueView } from '../widgets/queue';
import { QuotaView } from '../widgets/quota';
import { StatusItemView } from '../widgets/statusitem';
import {
  aGpu,
  aLease,
  aQueuedLease,
  aQuota,
  aStatus,
  aWaiting,
  GIB
} from './support/builders';
import { show } from './support/views';

const COMMANDS = Object.values(CommandIDs);

describe('QuotaView', () => {
  const bar = (name: string): HTMLElement =>
    screen.getByRole('meter', { name });

  it('waits with grey boxes', () => {
    show(QuotaView);
    expect(screen.getByRole('status', { name: /Loading/ })).toBeTruthy();
  });

  it.each([
    [0, 2, '0 of 2', '0', 'free'],
    [1, 2, '1 of 2', '50', 'free'],
    [2, 2, '2 of 2', '100', 'full'],
    [3, 2, '3 of 2, 1 over', '100', 'over'],
    [0, 0, '0 of 0', '0', 'none']
  ])('%d of %d GPUs', (used, gpus, text, percent, level) => {
    show(QuotaView, aStatus({ quota: aQuota({ gpus, used_gpus: used }) }));
    const meter = bar('GPUs');
    expect(meter.getAttribute('aria-valuetext')).toBe(text);
    expect(meter.getAttribute('aria-valuenow')).toBe(percent);
    expect(meter.dataset.level).toBe(level);
  });

  it.each([
    ['ok', 3, '3.00 of 10 in the last 7 d', null],
    ['warned', 8.25, '8.25 of 10 in the last 7 d', /Nearly all are used/],
    ['spent', 12, '12.0 of 10 in the last 7 d', /New requests wait/]
  ] as const)('a budget that is %s', (level, spent, text, advice) => {
    const budget = { hours: 10, spent, window: 7 * 86400, level };
    show(QuotaView, aStatus({ quota: aQuota({ budget }) }));
    expect(bar('GPU-hours').getAttribute('aria-valuetext')).toBe(text);
    const said = screen.queryByText(/Nearly all are used|New requests wait/);
    expect(said?.textContent ?? '').toMatch(advice ?? /^$/);
  });

  it.each([
    [1, 2, '1 GPU, 2 GiB on GPU 0'],
    [0, 2, '2 GiB on GPU 0'],
    [2, 0, '2 GPUs'],
    [0, 0, 'nothing']
  ])('%d GPUs and %d GiB that are left', (gpus, gib, text) => {
    const memory = [{ uuid: 'GPU-00000000', index: 0, bytes: gib * GIB }];
    show(
      QuotaView,
      aStatus({ quota: aQuota({ remaining: { gpus, memory } }) })
    );
    expect(screen.getByText('Left').nextElementSibling?.textContent).toBe(text);
  });

  it('explains what it means to be over', () => {
    show(QuotaView, aStatus({ quota: aQuota({ gpus: 1, used_gpus: 2 }) }));
    expect(screen.getByText(/2 GPUs must come back/)).toBeTruthy();
  });

  it('says what a pool lends here, and what of it is borrowed', () => {
    const pool = {
      ...{
        pool: 'lab',
        whole: 4,
        lent: 2,
        borrowed: 1,
        reclaimed: false,
        valid: false
      },
      why: 'Your other GPUs are in use on host c.'
    };
    show(
      QuotaView,
      aStatus({ quota: aQuota({ gpus: 4, source: 'pool', pool }) })
    );
    expect(
      screen.getByText(/lends you 2 GPUs on this host now/).textContent
    ).toMatch(/1 GPU of those you borrow.*does not answer now.*on host c\./);
    expect(screen.getByText('the pool')).toBeTruthy();
  });

  it('shows the memory of each GPU that I hold, and where the quota comes from', () => {
    show(
      QuotaView,
      aStatus({
        gpus: [aGpu(0), aGpu(1, { mine: 2 * GIB })],
        quota: aQuota({ source: 'override', weight: 2.5 })
      })
    );
    expect(bar('Memory on GPU 1').getAttribute('aria-valuetext')).toBe(
      '2 GiB of 8 GiB'
    );
    expect(screen.queryByRole('meter', { name: 'Memory on GPU 0' })).toBeNull();
    expect(screen.getByText('an administrator')).toBeTruthy();
    expect(screen.getByText('2.5')).toBeTruthy();
  });
});

describe('LeasesView', () => {
  it('teaches where there is nothing', () => {
    show(LeasesView, aStatus());
    expect(screen.getByText('import torch')).toBeTruthy();
  });

  it('says state, place and memory in words', () => {
    const { container } = show(
      LeasesView,
      aStatus({
        leases: [aLease('a', { since: 1820 })],
        node: { ...aStatus().node, time: 2000 }
      })
    );
    expect(container.textContent).toContain('Active for 3 min · GPU 0');
    expect(container.textContent).toContain('Uses 1 GiB of 8 GiB');
  });

  it('does not read unknown memory as none', () => {
    const gpus = [
      {
        uuid: 'GPU-00000000',
        index: 0,
        memory: GIB,
        measured: null,
        persistent: null,
        temporary: null,
        cache: null,
        limit: 8 * GIB
      }
    ];
    const { container } = show(
      LeasesView,
      aStatus({
        leases: [aLease('a', { gpus })],
        node: { ...aStatus().node, simulated: false }
      })
    );
    expect(container.textContent).toContain('unknown');
    expect(screen.queryByRole('meter')).toBeNull();
  });

  it("shows nothing of other people's", () => {
    const { container } = show(
      LeasesView,
      aStatus({ leases: [aLease('x', { mine: false, name: 'secret' })] })
    );
    expect(container.textContent).not.toContain('secret');
  });

  it('releases, cancels, opens and restarts through commands', () => {
    const { ran } = show(
      LeasesView,
      aStatus({
        leases: [
          aLease('held'),
          aQueuedLease('waits', 1, { path: 'work/other.ipynb' }),
          aLease('stuck', { state: 'stalled', path: 'work/stuck.ipynb' })
        ],
        queue: [
          aWaiting(1, { mine: true, lease: 'waits', message: 'All are taken.' })
        ]
      }),
      COMMANDS
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Release the GPU of train.ipynb' })
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Cancel waiting: other.ipynb' })
    );
    fireEvent.click(screen.getByRole('button', { name: 'train.ipynb' }));
    fireEvent.click(
      screen.getByRole('button', { name: 'Restart the kernel of stuck.ipynb' })
    );
    expect(ran).toEqual([
      { command: CommandIDs.release, args: { lease: 'held' } },
      { command: CommandIDs.cancel, args: { lease: 'waits' } },
      { command: CommandIDs.open, args: { lease: 'held' } },
      { command: CommandIDs.restartKernel, args: { lease: 'stuck' } }
    ]);
    expect(screen.getByTitle('All are taken.')).toBeTruthy();
  });

  it('says how a parked task stands, and why an idle one keeps its GPU', () => {
    const parked: Partial<Lease> = {
      state: 'parked',
      phase: 'parked',
      gpus: []
    };
    const leases = [
      aLease('a', parked),
      aLease('b', { ...parked, requested: 1055, position: 2 }),
      aLease('c', { state: 'idle', kept: 'CUDA was started.' })
    ];
    show(LeasesView, aStatus({ leases }));
    expect(screen.getByText(/^Parked for /)).toBeTruthy();
    expect(screen.getByText(/^Parked: place 2 in line, waiting /)).toBeTruthy();
    expect(screen.getByTitle(/keeps it: CUDA was started/)).toBeTruthy();
  });

  it('offers no release of what drains', () => {
    show(LeasesView, aStatus({ leases: [aLease('a', { state: 'draining' })] }));
    expect(screen.queryByRole('button', { name: /Release/ })).toBeNull();
    expect(screen.getByRole('button', { name: /Restart/ })).toBeTruthy();
  });
});

describe('GpusView', () => {
  it('names the parts of the memory', () => {
    show(
      GpusView,
      aStatus({
        gpus: [
          aGpu(0, {
            mine: 8 * GIB,
            reserved: 12 * GIB,
            unleased: 2 * GIB,
            system: GIB
          })
        ]
      })
    );
    expect(
      screen
        .getByRole('img', { name: /Memory of GPU 0/ })
        .getAttribute('aria-label')
    ).toBe(
      'Memory of GPU 0, 24 GiB: 8 GiB mine, 4 GiB others, 1 GiB used by the system (a screen, monitoring), 1 GiB not under lease, 10 GiB free'
    );
  });

  it('says that GPUs are simulated, lost, or used without a lease', () => {
    show(
      GpusView,
      aStatus({
        gpus: [
          aGpu(0, { health: 'lost', problem: 'It fell off the bus.' }),
          aGpu(1, {
            squatters: [{ pid: 42, memory: 2 * GIB, kind: 'squatter' }],
            utilisation: null
          })
        ]
      })
    );
    expect(screen.getByText(/Simulated: code runs on CPU/)).toBeTruthy();
    expect(screen.getByText('Lost')).toBeTruthy();
    expect(screen.getByText('It fell off the bus.')).toBeTruthy();
    expect(
      screen.getByText('Process 42 uses 2 GiB without a lease')
    ).toBeTruthy();
    expect(screen.getByText('utilisation unknown')).toBeTruthy();
  });

  it('counts as nvidia-smi does, also the instances of a GPU in MIG mode', () => {
    const gpus = [aGpu(0, { instance: 1 }), aGpu(1, { instance: null })];
    show(GpusView, aStatus({ gpus }));
    expect(screen.getByText('GPU 0:1')).toBeTruthy();
    expect(screen.getByText('GPU 1')).toBeTruthy();
  });

  it('says which GPUs are left out, and why', () => {
    const left_out = ['GPU 1 is left out: it has fallen off the bus.'];
    show(GpusView, aStatus({ gpus: [aGpu(0)], left_out }));
    expect(screen.getByText(left_out[0])).toBeTruthy();
    expect(screen.queryByText(/no GPU to share/)).toBeNull();
  });

  it('blames no quota where there is nothing to share', () => {
    const status = aStatus({
      gpus: [],
      left_out: ['GPU 0 is left out: CUDA_VISIBLE_DEVICES was empty.'],
      quota: aQuota({ gpus: 0 })
    });
    show(GpusView, status);
    expect(screen.getByText(/CUDA_VISIBLE_DEVICES was empty/)).toBeTruthy();
    expect(screen.getByText(/no GPU to share/)).toBeTruthy();
    show(QuotaView, status);
    expect(screen.queryByText(/administrator/)).toBeNull();
  });

  it('says why a GPU is out of service, and who is still there', () => {
    const out = { reason: 'its fan is replaced', by: null, leases: 2 };
    const gpus = [aGpu(0, { out_of_service: out }), aGpu(1)];
    show(GpusView, aStatus({ gpus }));
    expect(screen.getByText('Out of service')).toBeTruthy();
    expect(
      screen.getByText('its fan is replaced · 2 leases are still there')
    ).toBeTruthy();
    expect(screen.queryByRole('button', { name: /service/ })).toBeNull();
  });

  it('lets an administrator take a GPU out of service and put it back', () => {
    const out = { reason: 'its fan is replaced', by: 'carol', leases: 0 };
    const gpus = [aGpu(0, { out_of_service: out }), aGpu(1)];
    const { ran } = show(GpusView, aStatus({ gpus, admin: true }), COMMANDS);
    expect(
      screen.getByText('its fan is replaced (carol) · it is empty')
    ).toBeTruthy();
    fireEvent.click(
      screen.getByRole('button', { name: 'Put GPU 0 back into service' })
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Take GPU 1 out of service' })
    );
    expect(ran).toEqual(
      gpus.map(({ uuid }) => ({
        command: CommandIDs.drain,
        args: { gpu: uuid }
      }))
    );
  });

  it('counts tasks up to a bound only where there is one', () => {
    const { node } = aStatus();
    const bound = { ...node, max_tasks_per_gpu: null };
    const { container } = show(
      GpusView,
      aStatus({ node: bound, gpus: [aGpu(0, { tasks: 1 })] })
    );
    expect(container.textContent).toContain('1 task');
    expect(container.textContent).not.toContain(' of ');
  });

  it('says since when a resident is there', () => {
    const [part] = aLease('a').gpus;
    const there = { ...part, measured: null, there_since: 1880 };
    const { container } = show(
      GpusView,
      aStatus({ leases: [aLease('a', { gpus: [there], state: 'idle' })] })
    );
    expect(container.querySelector('summary')?.textContent).toContain('tasks');
    expect(container.textContent).toContain(
      'train.ipynb · 8 GiB, for 2 min · Idle'
    );
    expect(container.textContent).not.toContain('No turns');
  });

  it('names others only to those who may know', () => {
    const gpus = [aGpu(0)];
    const others = aLease('x', {
      id: null,
      mine: false,
      environment: null,
      name: null,
      path: null
    });
    const { container, model } = show(
      GpusView,
      aStatus({ gpus, leases: [others] })
    );
    expect(container.textContent).toContain(
      "Someone else's notebook · 1 GiB of 8 GiB · Active"
    );
    model.setStatus(
      aStatus({
        gpus,
        admin: true,
        leases: [
          aLease('x', { mine: false, environment: 'bob', path: 'b/x.ipynb' })
        ]
      })
    );
    expect(container.textContent).toContain(
      'bob: x.ipynb · 1 GiB of 8 GiB · Active'
    );
  });
});

describe('QueueView', () => {
  it('says that nobody waits', () => {
    show(QueueView, aStatus());
    expect(screen.getByText('Nobody waits.')).toBeTruthy();
    expect(screen.getByText('Nothing was granted.')).toBeTruthy();
  });

  it('says where I stand, who is ahead, why, and how long others waited', () => {
    const { container } = show(
      QueueView,
      aStatus({
        queue: [
          aWaiting(1),
          aWaiting(2, {
            mine: true,
            lease: 'w',
            message: 'All GPUs are taken.',
            waiting: 75
          })
        ],
        waits: {
          window: 3600,
          interactive: { granted: 7, waited: 2, median: 40, longest: 130 },
          batch: { granted: 1, waited: 0, median: null, longest: null }
        }
      })
    );
    const text = container.textContent ?? '';
    expect(text).toContain('You are number 2 in line');
    expect(text).toContain('1 interactive request is ahead of you.');
    expect(text).toContain('You have waited 1 min.');
    expect(text).toContain('All GPUs are taken.');
    expect(text).toContain('2 waiting: 2 interactive, 0 batch.');
    expect(text).toContain(
      'Interactive: 7 granted, 2 after waiting 40 s (median), 2 min at most'
    );
    expect(text).toContain('Batch: 1 granted, none had to wait');
  });

  it('says about how long, and what will happen', () => {
    const idle = {
      mine: false,
      environment: null,
      name: null,
      idle: 725,
      after: 1800,
      left: 1075
    };
    const outlook = {
      estimate: { low: 605, high: 1790, basis: 'idle' as const },
      idle,
      idle_after: 1800
    };
    const { container } = show(
      QueueView,
      aStatus({ queue: [aWaiting(1, { mine: true, lease: 'w', outlook })] })
    );
    const text = container.textContent ?? '';
    expect(text).toContain(
      'It takes about 10 to 30 min, if kernels that are idle now stay idle.'
    );
    expect(text).toContain(
      "Somebody's kernel has been idle for 12 min; after 30 min it is asked for its GPU."
    );
    expect(text).toContain('You: 1 whole GPU, interactive, waiting 30 s');
    expect(text).toContain('about 10 to 30 min more');
  });

  it('says which batch program makes way, and when', () => {
    const stop = { mine: false, environment: 'bob', name: 'digits', left: 240 };
    const outlook = { estimate: null, idle: null, idle_after: 1800, stop };
    const entry = aWaiting(1, { mine: true, lease: 'w', outlook });
    const { container } = show(QueueView, aStatus({ queue: [entry] }));
    expect(container.textContent).toContain(
      'A batch program of bob is asked in 4 min to save its state and make way.'
    );
  });

  it('gives a request that waits for GPU-hours no place in line', () => {
    const budget = {
      hours: 0.05,
      spent: 0.08,
      window: 604800,
      level: 'spent' as const
    };
    const { container } = show(
      QueueView,
      aStatus({
        queue: [
          aWaiting(1, {
            mine: true,
            lease: 'w',
            reason: 'budget_spent',
            message: 'Your GPU-hour budget is spent.',
            budget
          })
        ]
      })
    );
    const text = container.textContent ?? '';
    expect(text).toContain(
      'Your GPU-hours are spent: 0.08 of 0.05 in the last 7 d'
    );
    expect(text).not.toContain('ahead');
    expect(text).not.toContain('in line');
  });

  it('stays short however long the queue is', () => {
    show(
      QueueView,
      aStatus({
        queue: Array.from({ length: 300 }, (_, at) => aWaiting(at + 1))
      })
    );
    const list = screen.getByRole('list', { name: 'Queue' });
    expect(within(list).getAllByRole('listitem')).toHaveLength(50);
    expect(screen.getByText('… and 250 more.')).toBeTruthy();
  });
});

describe('BannerView', () => {
  it('is silent while all is well', () => {
    const { container } = show(BannerView, aStatus());
    expect(container.textContent).toBe('');
  });

  it('marks what is old and says why and what to do', () => {
    const { container, model } = show(BannerView, aStatus());
    model.set(
      withProblem(model.snapshot, {
        failure: Failure.NodeDown,
        message: 'The node manager closed the connection.'
      })
    );
    expect(container.textContent).toMatch(/Not up to date: as of/);
    expect(container.textContent).toContain('closed the connection');
    expect(container.textContent).toContain('jupyter gpushare doctor');
    model.setStatus(aStatus());
    expect(container.textContent).toBe('');
  });

  it.each(Object.values(Failure))(
    'has words for %s, and tries again',
    failure => {
      const { model, container } = show(BannerView);
      model.set(withProblem(model.snapshot, { failure, message: 'details' }));
      expect((container.textContent ?? '').length).toBeGreaterThan(20);
      fireEvent.click(screen.getByRole('button', { name: 'Try again' }));
      expect(model.refreshed).toBe(1);
    }
  );

  it("passes the node manager's own problem on", () => {
    const node = { ...aStatus().node, problem: 'The disk is full.' };
    const { container } = show(BannerView, aStatus({ node }));
    expect(container.textContent).toContain('The disk is full.');
  });
});

describe('StatusItemView', () => {
  it('shows use of quota, and the panel when clicked', () => {
    const { ran, container } = show(
      StatusItemView,
      aStatus({
        quota: aQuota({ used_gpus: 1 }),
        queue: [aWaiting(1, { mine: true })]
      }),
      COMMANDS
    );
    expect(container.textContent).toContain('1/2 (1 waiting)');
    fireEvent.click(screen.getByRole('button'));
    expect(ran).toEqual([{ command: CommandIDs.showPanel, args: {} }]);
  });
});

it('draws nothing while nobody sees it, and catches up when shown', () => {
  const { host, model, container } = show(QuotaView, aStatus());
  host.isVisible = false;
  model.setStatus(aStatus({ quota: aQuota({ gpus: 7 }) }));
  expect(container.textContent).toContain('0 of 2');
  host.show();
  expect(container.textContent).toContain('0 of 7');
});

it('draws gaps where a value is unknown', () => {
  const points = [
    { at: 0, value: 0 },
    { at: 5, value: 1 },
    { at: 10, value: null },
    { at: 15, value: 0.5 }
  ];
  expect(sparkPath(points, 0, 20, 100, 20)).toBe(
    'M0.0 19.0L25.0 1.0M75.0 10.0'
  );
});
