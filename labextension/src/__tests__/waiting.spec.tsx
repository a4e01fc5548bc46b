import { nullTranslator } from '@jupyterlab/translation';
import { screen } from '@testing-library/react';

import { sharedText } from '../text/waiting';
import { leaseSummary } from '../text/words';
import { LeasesView } from '../widgets/leases';
import {
  aLease,
  aQueuedLease,
  aStatus,
  aWaiting,
  GIB
} from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('');

function part(index: number) {
  return {
    ...aLease('any').gpus[0],
    uuid: `GPU-0000000${index}`,
    index,
    memory: 24 * GIB,
    limit: 24 * GIB,
    measured: null
  };
}

describe('memory on two GPUs', () => {
  const lease = aLease('a', { gpus: [part(0), part(1)] });

  it('is told for each of them, in the toolbar and in the panel', () => {
    expect(leaseSummary(lease, 'binary', trans)).toBe('2 GPUs · 24 GiB each');
    show(LeasesView, aStatus({ leases: [lease] }));
    expect(screen.getByRole('listitem').textContent).toContain(
      'May use 24 GiB each'
    );
  });
});

describe('what one shares with oneself', () => {
  const first = aLease('a', { path: 'work/first.ipynb', gpus: [part(0)] });
  const second = aLease('b', { path: 'work/second.ipynb', gpus: [part(0)] });

  it('is said to be shared', () => {
    const status = aStatus({ leases: [first, second] });
    expect(sharedText(second, status, trans)).toBe(
      'Shared with your first.ipynb'
    );
    const { container } = show(LeasesView, status);
    expect(container.textContent).toContain('Shared with your second.ipynb');
  });

  it('is not what others have there, or what is parked', () => {
    const others = aLease('b', {
      environment: null,
      mine: false,
      gpus: [part(0)]
    });
    const parked = aLease('c', { phase: 'parked', gpus: [part(0)] });
    const elsewhere = aLease('d', { gpus: [part(1)] });
    const status = aStatus({ leases: [first, others, parked, elsewhere] });
    expect(sharedText(first, status, trans)).toBe('');
  });
});

it('says in the toolbar and in the row that GPU-hours are waited for', () => {
  const lease = aQueuedLease('w', 1);
  expect(leaseSummary(lease, 'binary', trans, true)).toBe('GPU-hours spent');
  const { container } = show(
    LeasesView,
    aStatus({
      leases: [lease],
      queue: [aWaiting(1, { mine: true, lease: 'w', reason: 'budget_spent' })]
    })
  );
  expect(container.textContent).toContain('Queued: GPU-hours spent, waiting');
  expect(container.textContent).not.toContain('in line');
});
