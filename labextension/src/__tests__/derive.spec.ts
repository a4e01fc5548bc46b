import {
  gpuUse,
  leaseOfKernel,
  Level,
  measuredMemory,
  memoryParts,
  memoryUse,
  myLeases,
  queueSummary,
  use
} from '../model/derive';
import {
  aGpu,
  aLease,
  aQueuedLease,
  aQuota,
  aStatus,
  aWaiting,
  GIB
} from './support/builders';

describe('use', () => {
  it.each([
    [0, 2, 0, Level.Free],
    [1, 2, 0.5, Level.Free],
    [2, 2, 1, Level.Full],
    [3, 2, 1, Level.Over],
    [0, 0, 0, Level.None],
    [1, 0, 1, Level.Over]
  ])('%d of %d', (used, limit, share, level) => {
    expect(use(used, limit)).toEqual({ used, limit, share, level });
  });

  it('has no level to reach where there is no limit', () => {
    expect(use(5, null).level).toBe(Level.Free);
  });
});

it('counts the GPUs of the quota', () => {
  expect(gpuUse(aQuota({ gpus: 1, used_gpus: 2 })).level).toBe(Level.Over);
});

describe('memoryUse', () => {
  const gpus = [aGpu(0, { mine: 8 * GIB }), aGpu(1)];

  it('is about the GPUs that I hold', () => {
    const rows = memoryUse(aStatus({ gpus }));
    expect(rows.map(row => row.gpu.index)).toEqual([0]);
    expect(rows[0].use.level).toBe(Level.Full);
  });

  it('is over when the quota was lowered', () => {
    const quota = aQuota({ memory: 4 * GIB });
    expect(memoryUse(aStatus({ gpus, quota }))[0].use.level).toBe(Level.Over);
  });

  it('is of the whole GPU where there is no limit', () => {
    const [row] = memoryUse(aStatus({ gpus, quota: aQuota({ memory: null }) }));
    expect(row.use.limit).toBe(24 * GIB);
  });
});

describe('memoryParts', () => {
  it('adds up to the whole GPU, whatever is reported', () => {
    for (const gpu of [
      aGpu(0),
      aGpu(0, { mine: 8 * GIB, reserved: 12 * GIB, unleased: 2 * GIB }),
      aGpu(0, { mine: 20 * GIB, reserved: 30 * GIB, unleased: 9 * GIB }),
      aGpu(0, { unleased: 9 * GIB, system: 2 * GIB }),
      aGpu(0, { mine: 5 * GIB, reserved: 4 * GIB }),
      aGpu(0, { mine: 5 * GIB, reserved: 20 * GIB, shared: 9 * GIB })
    ]) {
      const parts = memoryParts(gpu);
      const all = Object.values(parts);
      expect(all.reduce((sum, part) => sum + part, 0)).toBe(gpu.memory);
      expect(Math.min(...all)).toBeGreaterThanOrEqual(0);
    }
  });

  it('tells mine from others', () => {
    expect(
      memoryParts(
        aGpu(0, { mine: 8 * GIB, reserved: 12 * GIB, unleased: 2 * GIB })
      )
    ).toEqual({
      mine: 8 * GIB,
      others: 4 * GIB,
      turns: 0,
      system: 0,
      unleased: 2 * GIB,
      free: 10 * GIB
    });
  });

  it('does not take for free what tasks use by turns', () => {
    expect(
      memoryParts(
        aGpu(0, { mine: 8 * GIB, reserved: 12 * GIB, shared: 5 * GIB })
      )
    ).toEqual({
      mine: 8 * GIB,
      others: 4 * GIB,
      turns: 5 * GIB,
      system: 0,
      unleased: 0,
      free: 7 * GIB
    });
  });
});

describe('leases', () => {
  const other = aLease('x', { id: null, mine: false, kernel_id: null });

  it('are mine and not over, waiting ones first', () => {
    const status = aStatus({
      leases: [
        aLease('old', { requested: 10 }),
        other,
        aLease('over', { state: 'ended' }),
        aQueuedLease('waits', 1, { requested: 30 }),
        aLease('older', { requested: 5 })
      ]
    });
    expect(myLeases(status).map(lease => lease.id)).toEqual([
      'waits',
      'older',
      'old'
    ]);
  });

  it('leaves the status as it was', () => {
    const leases = [
      aLease('b', { requested: 2 }),
      aLease('a', { requested: 1 })
    ];
    const status = aStatus({ leases });
    myLeases(status);
    expect(status.leases.map(lease => lease.id)).toEqual(['b', 'a']);
  });

  it("are found by their kernel, not others' and not what has ended", () => {
    const status = aStatus({
      leases: [
        aLease('drains', { kernel_id: 'k', state: 'draining' }),
        aLease('child', { kernel_id: 'k', kind: 'process' }),
        aLease('kernel', { kernel_id: 'k' }),
        aLease('z', { kernel_id: 'j', mine: false })
      ]
    });
    expect(leaseOfKernel(status, 'k')?.id).toBe('kernel');
    expect(leaseOfKernel(status, 'j')).toBeNull();
    expect(leaseOfKernel(status, null)).toBeNull();
    expect(leaseOfKernel(null, 'k')).toBeNull();
  });

  it('do not read unknown memory as none', () => {
    const part = {
      uuid: 'GPU-1',
      index: 1,
      memory: GIB,
      persistent: null,
      temporary: null,
      cache: null,
      limit: 8 * GIB
    };
    const gpus = [
      { ...part, measured: GIB },
      { ...part, measured: null }
    ];
    expect(measuredMemory(aLease('a', { gpus }))).toBeNull();
    expect(measuredMemory(aLease('a', { gpus: gpus.slice(0, 1) }))).toBe(GIB);
  });
});

it('counts the queue by class', () => {
  const status = aStatus({
    queue: [
      aWaiting(1),
      aWaiting(2, { mine: true }),
      aWaiting(3, { priority_class: 'batch' })
    ]
  });
  const summary = queueSummary(status);
  expect([summary.interactive, summary.batch]).toEqual([2, 1]);
  expect(summary.mine.map(waiting => waiting.position)).toEqual([2]);
});
