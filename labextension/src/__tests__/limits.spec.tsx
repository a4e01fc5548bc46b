import { nullTranslator } from '@jupyterlab/translation';
import { screen, within } from '@testing-library/react';
import React from 'react';

import type { Lease } from '../api/types';
import { excess, memoryLimit } from '../model/limits';
import {
  excessText,
  gpuLiftedText,
  liftedText,
  stallText,
  survivorText
} from '../text/limits';
import { AdminLeases } from '../widgets/adminleases';
import { GpusView } from '../widgets/gpus';
import { LeasesView } from '../widgets/leases';
import { aGpu, aLease, aStatus, GIB } from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('');

/** It may use `limit` GiB of each of two GPUs, and was granted 8 GiB. */
function lifted(limit: number, given: Partial<Lease> = {}): Lease {
  const [part] = aLease('a').gpus;
  return aLease('a', {
    gpus: [
      { ...part, limit: limit * GIB, measured: 9 * GIB },
      { ...part, uuid: 'GPU-00000001', index: 1, measured: GIB }
    ],
    ...given
  });
}

function over(given: Partial<NonNullable<Lease['over_limit']>> = {}): Lease {
  return aLease('a', {
    state: 'over_limit',
    over_limit: {
      gpu: 'GPU-00000000',
      used: 11 * GIB,
      limit: 8 * GIB,
      since: 1990,
      stage: 'warned',
      next: 'trim',
      next_at: 2010,
      ...given
    }
  });
}

describe('a limit that is lifted', () => {
  it('is more than what was granted', () => {
    expect(memoryLimit(lifted(12))).toEqual({
      granted: 16 * GIB,
      now: 20 * GIB
    });
    expect(liftedText(lifted(12), 'binary', trans)).toBe(
      'Lifted: 4 GiB more than the 16 GiB granted'
    );
    expect(liftedText(lifted(8), 'binary', trans)).toBe('');
  });

  it('is what the use is measured by, and explains itself', () => {
    show(LeasesView, aStatus({ leases: [lifted(12)] }));
    const row = screen.getByRole('listitem');
    expect(row.textContent).toContain('Uses 9 GiB, 1 GiB of 12 GiB, 8 GiB');
    const words = within(row).getByText(/^Lifted: 4 GiB more/);
    expect(words.title).toContain('the limit is lowered again');
    // For those who have no pointer.
    const details = within(row).getByText('Memory limit').parentElement;
    expect(details?.textContent).toContain('release the GPU and ask for more');
  });

  it('is a share, where a range was asked for, and not lifted', () => {
    for (const limit of [8, 12]) {
      const lease = lifted(limit, { memory_most: 40 * GIB });
      expect(liftedText(lease, 'binary', trans)).toBe(
        'Its share of 8 GiB to 40 GiB on each GPU changes with demand'
      );
    }
    const lease = lifted(12, { memory_most: 40 * GIB });
    show(LeasesView, aStatus({ leases: [lease] }));
    const row = screen.getByRole('listitem');
    const words = within(row).getByText(/^Its share of 8 GiB to 40 GiB/);
    expect(words.title).toContain('The smaller size is certain');
    expect(row.textContent).toContain('Uses 9 GiB, 1 GiB of 12 GiB, 8 GiB');
  });

  it('is not an excess: 9 GiB of 12 GiB are within it', () => {
    const [part] = lifted(12).gpus;
    show(LeasesView, aStatus({ leases: [lifted(12, { gpus: [part] })] }));
    const bar = screen.getByRole('meter', { name: /GPU memory/ });
    expect(bar.dataset.level).toBe('free');
    expect(bar.getAttribute('aria-valuenow')).toBe('75');
  });

  it("is told of a GPU, and to administrators of everybody's leases", () => {
    const gpu = aGpu(0, { lifted: 4 * GIB });
    const { container } = show(GpusView, aStatus({ gpus: [gpu] }));
    expect(container.textContent).toContain('4 GiB lent for now');
    expect(gpuLiftedText(aGpu(0), 'binary', trans)).toBe('');
    const status = aStatus({ leases: [lifted(12)] });
    show(() => <AdminLeases status={status} />);
    expect(screen.getByText('9 GiB, 1 GiB of 12 GiB, 8 GiB').title).toContain(
      'Lifted'
    );
  });
});

describe('a limit that is exceeded', () => {
  it('says by how much, and what is done when', () => {
    const text = (lease: Lease): string =>
      excessText(lease, 2000, 'binary', trans);
    expect(text(over())).toBe(
      '3 GiB over the limit of GPU 0. In 10 s its caches are emptied.'
    );
    expect(text(over({ next: 'park', next_at: 2000 }))).toBe(
      '3 GiB over the limit of GPU 0. Now its GPU is taken back, if it is idle.'
    );
    expect(text(over({ next: 'last', next_at: 2120 }))).toContain(
      'In 2 min the configured action (interrupt or kill) follows.'
    );
    expect(text(over({ next: null, next_at: null }))).toBe(
      '3 GiB over the limit of GPU 0.'
    );
    expect(text(over({ used: null, gpu: 'GPU-gone' }))).toMatch(
      /^Memory over the limit\. /
    );
    expect(text(aLease('a'))).toBe('');
    expect(excess(over({ used: 0 }), 2000)?.bytes).toBe(0);
  });

  it('says what to do, and counts down', () => {
    const { container, model } = show(
      LeasesView,
      aStatus({ leases: [over()] })
    );
    const words = screen.getByText(/^3 GiB over the limit/);
    expect(words.title).toContain('use smaller batches');
    const details = screen.getByText('Memory limit').parentElement;
    expect(details?.textContent).toContain('use smaller batches');
    // Its state is in the first line; its meaning is not said twice.
    expect(container.textContent).not.toContain('Uses more GPU memory than');
    screen.getByRole('button', { name: /^Restart the kernel/ });
    const node = { ...aStatus().node, time: 2007 };
    model.setStatus(aStatus({ node, leases: [over()] }));
    expect(container.textContent).toContain('In 3 s its caches are emptied.');
  });
});

describe('a task that gives no sign of life', () => {
  function stalled(given: Partial<NonNullable<Lease['stall']>>): Lease {
    return aLease('a', {
      state: 'stalled',
      stall: { next: 'interrupt', after: 1800, at: null, ...given }
    });
  }

  it('is told what is done when', () => {
    expect(stallText(aLease('a'), 2000, trans)).toBe('');
    expect(stallText(stalled({}), 2000, trans)).toBe(
      'It is interrupted after 30 min without progress, if somebody waits for its memory.'
    );
    expect(stallText(stalled({ next: 'kill', after: 86400 }), 0, trans)).toBe(
      'It is ended after 1 d without progress, if somebody waits for its memory.'
    );
    expect(stallText(stalled({ at: 2600 }), 2000, trans)).toBe(
      'Somebody waits for its memory: it is interrupted in 10 min unless it goes on.'
    );
    expect(stallText(stalled({ next: 'kill', at: 2600 }), 2000, trans)).toBe(
      'Somebody waits for its memory: it is ended in 10 min unless it goes on.'
    );
  });

  it('says so in its row', () => {
    show(LeasesView, aStatus({ leases: [stalled({})] }));
    expect(screen.getByRole('listitem').textContent).toContain(
      'It is interrupted after 30 min without progress'
    );
  });
});

describe('a lease whose notebook was closed', () => {
  it('says which process goes on', () => {
    const lease = aLease('a', { inherited: 1990, pid: 12 });
    const words = 'The process that asked has ended, and process 12 goes on.';
    expect(survivorText(aLease('a'), trans)).toBe('');
    expect(survivorText(lease, trans)).toBe(words);
    show(LeasesView, aStatus({ leases: [lease] }));
    expect(screen.getByRole('listitem').textContent).toContain(words);
  });
});
