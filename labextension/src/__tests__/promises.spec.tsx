import { nullTranslator } from '@jupyterlab/translation';

import type { Lease } from '../api/types';
import { formatMoment } from '../text/format';
import { isLate, lateText, promiseText } from '../text/promises';
import { LeasesView } from '../widgets/leases';
import { aLease, aStatus } from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('');
const NOW = 2000;

type Promised = NonNullable<Lease['promise']>;

function promised(given: Partial<Promised> = {}): Partial<Lease> {
  return {
    promise: {
      deadline: NOW + 600,
      rate: null,
      named: true,
      state: 'on_time',
      why: null,
      expected_end: NOW + 540,
      share: 30,
      ...given
    }
  };
}

const text = (given: Partial<Lease>): string =>
  promiseText(aLease('a', given), NOW, trans);

it('says nothing where nothing is known', () => {
  expect(text({})).toBe('');
  expect(text({ promise: null, progress: null })).toBe('');
});

it('says how far a task is', () => {
  expect(text({ progress: { done: 40, total: null, seconds: 1 } })).toBe(
    'Step 40'
  );
  expect(text({ progress: { done: 40, total: 100, seconds: 1 } })).toBe(
    'Step 40 of 100'
  );
});

it('says what was promised, how far it is, when it is ready and its share', () => {
  const by = formatMoment(NOW + 600, NOW);
  const about = formatMoment(NOW + 540, NOW);
  const progress = { done: 40, total: 100, seconds: 1 };
  expect(text({ ...promised(), progress })).toBe(
    `Promised: ready by ${by}. Step 40 of 100. Ready at about ${about}. 30 % of its GPU's time is its own`
  );
  const rate = { deadline: null, rate: 2, expected_end: null, share: 0 };
  expect(text(promised(rate))).toBe('Promised: at least 2 steps a second');
});

it('does not say that a predicted time was promised', () => {
  const lease = aLease('a', promised({ named: false, state: 'late' }));
  expect(promiseText(lease, NOW, trans)).toMatch(/^Expected: ready by /);
  expect(isLate(lease)).toBe(false);
  expect(lateText(lease, trans)).toBe('');
});

it.each([
  ['quota', /Your quota/],
  ['full', /Other tasks/],
  ['batch', /did not say how they are stopped/],
  ['stopping', /save their state/],
  ['no_turns', /not used by turns/],
  ['slow', /all of the GPU would not be enough/],
  ['undone', /before all its steps/]
] as const)('says in the row that it is late: %s', (why, reason) => {
  const lease = aLease('a', promised({ state: 'late', why }));
  expect(lateText(lease, trans)).toMatch(reason);
  const { container } = show(LeasesView, aStatus({ leases: [lease] }));
  const advice = container.querySelector('.jp-gpushare-advice');
  expect(advice?.textContent).toMatch(/^Will not be kept: ready by /);
  expect(advice?.textContent).toMatch(reason);
});

it.each([
  ['missed', /^Missed: /],
  ['kept', /^Kept: /],
  ['ended', /^Promised: /]
] as const)('a promise that is %s', (state, words) => {
  expect(text(promised({ state }))).toMatch(words);
});
