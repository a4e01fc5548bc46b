import { act } from '@testing-library/react';

import { HistoryView } from '../widgets/history';
import { aStatus } from './support/builders';
import { show } from './support/views';

const MINUTE = 60_000;

/** Let time pass, and what falls due be answered. */
async function pass(milliseconds: number): Promise<void> {
  await act(() => jest.advanceTimersByTimeAsync(milliseconds));
}

beforeEach(() => jest.useFakeTimers());
afterEach(() => jest.useRealTimers());

it('asks again while it is seen, never while it is not, and when it is shown', async () => {
  const { model, host, unmount } = show(HistoryView, aStatus());
  const days = { environment: 'alice', days: [] };
  model.server.on('GET', 'usage/daily', 200, days);
  const asked = (): number => model.server.asked.length;

  await pass(1000);
  expect(asked()).toBe(1);
  await pass(5 * MINUTE);
  const seen = asked();
  expect(seen).toBeGreaterThanOrEqual(10);

  host.isVisible = false;
  await pass(MINUTE);
  const hidden = asked();
  await pass(60 * MINUTE);
  expect(asked()).toBe(hidden);

  host.show();
  await pass(1000);
  expect(asked()).toBe(hidden + 1);

  unmount();
  await pass(60 * MINUTE);
  expect(asked()).toBe(hidden + 1);
});

it('asks less and less often while nothing answers', async () => {
  const { model } = show(HistoryView, aStatus());
  model.server.down = true;
  await pass(30 * MINUTE);
  // Two a minute would be sixty.
  expect(model.server.attempts).toBeGreaterThan(3);
  expect(model.server.attempts).toBeLessThan(30);
  model.server.down = false;
  await pass(6 * MINUTE);
  expect(model.server.asked.length).toBeGreaterThanOrEqual(1);
});
