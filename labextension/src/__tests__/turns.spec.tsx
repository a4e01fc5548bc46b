import { nullTranslator } from '@jupyterlab/translation';
import { screen } from '@testing-library/react';

import type { Lease, Status } from '../api/types';
import { memoryKinds, turnsOf } from '../model/turns';
import {
  gpuKindsText,
  gpuTimeText,
  interruptionText,
  kindsText,
  myTurnText,
  pausesText,
  turnText
} from '../text/turns';
import { leaseSummary } from '../text/words';
import { GpusView } from '../widgets/gpus';
import { LeasesView } from '../widgets/leases';
import { aGpu, aLease, aStatus, GIB } from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('');

function training(id: string, given: Partial<Lease> = {}): Lease {
  const [part] = aLease(id).gpus;
  return aLease(id, {
    gpus: [
      { ...part, persistent: 3 * GIB, temporary: GIB, cache: 0.5 * GIB },
      {
        ...part,
        uuid: 'GPU-1',
        index: 1,
        persistent: GIB,
        temporary: GIB,
        cache: null
      }
    ],
    ...given
  });
}

it('sums what a task tells of its GPUs, and takes unknown for unknown', () => {
  expect(memoryKinds(training('a'))).toEqual({
    persistent: 4 * GIB,
    temporary: 2 * GIB,
    cache: null
  });
  expect(memoryKinds(aLease('a'))).toBeNull();
  expect(memoryKinds(aLease('a', { gpus: [] }))).toBeNull();
  expect(kindsText(training('a'), 'binary', trans)).toBe(
    'Keeps 4 GiB; a step needs 2 GiB more'
  );
  const [part] = training('a').gpus;
  expect(kindsText(training('a', { gpus: [part] }), 'binary', trans)).toBe(
    'Keeps 3 GiB; a step needs 1 GiB more; 512 MiB cached'
  );
});

it.each([
  ['holds', /^Has its turn/],
  ['yields', /^Ends its step/],
  ['waits', /^Paused for somebody's turn/],
  ['rest', /^$/],
  [null, /^$/]
] as const)('turn %s in words', (turn, text) => {
  expect(turnText(aLease('a', { turn }), trans)).toMatch(text);
});

it.each([
  ['moves', null, /^Moves to another GPU: .*until it is there\.$/],
  ['makes_way', null, /^Makes way for a request that waits: /],
  ['locked', 2005, /^Paused by the driver's lock, for 5 s more at most\.$/],
  ['locked', 1999, /^Paused by the driver's lock, for 1 s more at most\.$/],
  ['stops', 2060, /^Saves its state and stops, within 1 min\.$/]
] as const)('says that a task at work %s', (what, until, text) => {
  const lease = aLease('a', { interrupted: { what, until } });
  expect(interruptionText(lease, 2000, trans)).toMatch(text);
  expect(interruptionText(aLease('a'), 2000, trans)).toBe('');
  const { container } = show(LeasesView, aStatus({ leases: [lease] }));
  expect(container.textContent).toMatch(new RegExp(text.source.slice(1, 12)));
});

it('says how often a task moved', () => {
  const text = (given: Partial<Lease>): string =>
    myTurnText(aLease('a', given), aStatus(), 2000, trans);
  expect(text({ pauses: { times: 0, seconds: 0, moved: 1 } })).toBe(
    'Moved to another GPU once in this cell'
  );
  const pauses = { times: 1, seconds: 4, moved: 2 };
  expect(text({ kind: 'process', turn: 'holds', pauses })).toBe(
    'Has its turn on the GPU. Was paused once since it began, 4 s in all. Moved to another GPU 2 times since it began'
  );
});

describe('a GPU in turns', () => {
  const gpu = aGpu(0, { in_turns: true, share_mode: 'time', shared: 2 * GIB });
  const holds = aLease('a', { turn: 'holds' });
  const waits = aLease('b', { turn: 'waits', mine: false, environment: 'bob' });

  it('has in its bar what is used by turns', () => {
    const { container } = show(GpusView, aStatus({ gpus: [gpu] }));
    expect(
      screen
        .getByRole('img', { name: /Memory of GPU 0/ })
        .getAttribute('aria-label')
    ).toBe('Memory of GPU 0, 24 GiB: 2 GiB used by turns, 22 GiB free');
    expect(
      container.querySelector(".jp-gpushare-legend > [data-part='turns']")
    ).not.toBeNull();
  });

  it('says who computes, since when, who is next and how many more are paused', () => {
    const text = (...leases: Lease[]): string =>
      gpuTimeText(leases, 2000, trans);
    const since = (turn_since: number, turn_place: number | null = null) => ({
      turn_since,
      turn_place
    });
    const next = { ...waits, ...since(1996, 1) };
    const later = { ...waits, ...since(1990, 2), environment: null };
    expect(text({ ...holds, ...since(1988) }, later, next)).toBe(
      'By turns: train.ipynb computes, for 12 s; next is bob: train.ipynb, paused for 4 s; 1 more paused'
    );
    const pinned = { ...holds, ...since(1988), turn_pinned_until: 2540 };
    expect(text(pinned, next)).toBe(
      'By turns: train.ipynb computes, for 12 s; pinned for 9 min more; next is bob: train.ipynb, paused for 4 s'
    );
    expect(text({ ...pinned, turn_pinned_until: 1999 })).not.toMatch(/pinned/);
    expect(text(later)).toBe(
      'By turns: nobody computes; next is someone else, paused for 10 s'
    );
    expect(text(aLease('a', { turn: 'yields' }))).toBe(
      'By turns: train.ipynb ends its turn'
    );
    expect(turnsOf([aLease('a', { turn: 'yields' })]).holder?.id).toBe('a');
  });

  it('says who computes where there are no turns', () => {
    const text = (...leases: Lease[]): string =>
      gpuTimeText(leases, 2000, trans);
    const idle = aLease('a', { state: 'idle' });
    const bob = aLease('b', { mine: false, environment: 'bob' });
    expect(text()).toBe('');
    expect(text(idle, idle)).toBe('');
    expect(text(idle, bob)).toBe('No turns: bob: train.ipynb computes');
    expect(text(bob, aLease('a'), bob)).toBe(
      'No turns: train.ipynb and 2 more compute'
    );
  });

  it('says how often and for how long a cell was paused', () => {
    const pauses = { times: 3, seconds: 41 };
    const text = (given: Partial<Lease>): string =>
      pausesText(aLease('a', given), 2000, trans);
    expect(text({})).toBe('');
    expect(text({ turn: 'waits', turn_since: 1980, pauses })).toBe(
      "Paused for somebody's turn, so far 20 s, 3 times in this cell."
    );
    const waits = { turn: 'waits', turn_since: 1980 } as const;
    expect(text({ ...waits, turn_expected: 2018 })).toBe(
      "Paused for somebody's turn, so far 20 s, about 20 s more."
    );
    expect(text({ ...waits, turn_expected: 2002.4, pauses })).toContain(
      'so far 20 s, about 2 s more, 3 times in this cell.'
    );
    expect(text({ ...waits, turn_expected: 1999 })).not.toContain('about');
    expect(text({ turn: 'holds', pauses })).toBe(
      'Was paused 3 times in this cell, 41 s in all'
    );
    expect(
      text({ kind: 'process', pauses: { times: 1, seconds: 2 } })
    ).toContain('once since it began');
  });

  it('is shown with its tasks and what they keep', () => {
    const status = aStatus({
      gpus: [{ ...gpu, persistent: 6 * GIB, temporary: 2 * GIB }],
      leases: [training('a', { turn: 'holds', overran: true }), waits]
    });
    const gpus = show(GpusView, status).container;
    expect(gpus.textContent).toContain('By turns');
    expect(gpus.textContent).toContain(
      'Its tasks keep 6 GiB; a step needs 2 GiB more at most'
    );
    expect(gpus.textContent).toContain('By turns: train.ipynb computes');
    const mine = show(LeasesView, status).container;
    expect(mine.textContent).toContain('Has its turn on the GPU');
    expect(mine.textContent).toContain('did not give its turn back in time');
  });

  describe('and a cell that does not go on', () => {
    const bobs = aLease('b', {
      mine: false,
      environment: 'bob',
      turn: 'holds'
    });
    const mine = aLease('a', {
      turn: 'waits',
      turn_since: 1988,
      turn_place: 1
    });
    const with_ = (...leases: Lease[]): Status =>
      aStatus({ gpus: [gpu, aGpu(1)], leases });
    const text = (lease: Lease, ...others: Lease[]): string =>
      myTurnText(lease, with_(lease, ...others), 2000, trans);

    it('says for what it waits, for how long, and who computes', () => {
      expect(text(mine, bobs)).toBe(
        "Paused for somebody's turn, so far 12 s. Next in line on GPU 0. Now computes: bob: train.ipynb"
      );
      const third = { ...mine, turn_place: 3 };
      const unknown = { ...bobs, environment: null, turn: 'yields' as const };
      expect(text(third, unknown)).toBe(
        "Paused for somebody's turn, so far 12 s. Place 3 in line on GPU 0. Now computes: someone else"
      );
      expect(text(mine, { ...bobs, turn: 'waits' })).toContain(
        'Memory that the last one left is not free yet.'
      );
      // Who computes on another GPU is not in the way.
      const [part] = bobs.gpus;
      const apart = [{ ...part, uuid: 'GPU-00000001', index: 1 }];
      expect(text(mine, { ...bobs, gpus: apart })).not.toContain('bob');
    });

    it('says who waits for the one who computes', () => {
      const holds = aLease('a', { turn: 'holds' });
      expect(text(holds)).toBe('Has its turn on the GPU');
      expect(text(holds, { ...bobs, turn: 'waits' })).toBe(
        'Has its turn on the GPU; 1 waits'
      );
      expect(text(aLease('a', { turn: 'rest' }), bobs)).toBe('');
    });

    it('explains turns, in the row and in the toolbar', () => {
      const { container } = show(LeasesView, with_(mine, bobs));
      const words = screen.getByText(
        /^Paused for somebody's turn, so far 12 s/
      );
      expect(words.title).toContain('has waited for long gets 10 s');
      expect(screen.getByText('Turns').parentElement?.textContent).toContain(
        'The cell goes on by itself'
      );
      expect(container.textContent).not.toContain('Memory limit');
      expect(leaseSummary(mine, 'binary', trans)).toBe(
        '1 GPU · 8 GiB · Waits for its turn'
      );
    });
  });

  it('says nothing where there is nothing to say', () => {
    expect(gpuKindsText(aGpu(0), 'binary', trans)).toBe('');
    const { container } = show(GpusView, aStatus());
    expect(container.textContent).not.toMatch(/turn|keep/i);
  });
});
