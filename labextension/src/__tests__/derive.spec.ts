import { leaseOfKernel, myLeases } from '../model/derive';
import { aLease, aQueuedLease, aStatus } from './support/builders';

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
});
