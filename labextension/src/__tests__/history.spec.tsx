import { fireEvent, screen, waitFor } from '@testing-library/react';

import type { Day } from '../api/types';
import { toCsv } from '../model/csv';
import { axisTop, dayName, nodeShares, totals, usageCsv } from '../model/usage';
import { HistoryView } from '../widgets/history';
import { aStatus } from './support/builders';
import { show } from './support/views';

// Midnight where the node is, an hour ahead of UTC.
const start = Date.UTC(2026, 10, 19, 23) / 1000;
const utc_offset = 3600;
const aDay = (given: Partial<Day> = {}): Day => ({
  start,
  end: start + 86400,
  held: 7200,
  busy: 3600,
  leases: 2,
  node_held: 86400,
  node_busy: 43200,
  capacity: 172800,
  charged: given.held ?? 7200,
  resident_gib_seconds: 0,
  ...given
});

describe('toCsv', () => {
  it('quotes as RFC 4180 says', () => {
    expect(
      toCsv(
        ['a', 'b'],
        [
          ['x,y', 'say "hi"'],
          ['two\nlines', 1.5]
        ]
      )
    ).toBe('a,b\r\n"x,y","say ""hi"""\r\n"two\nlines",1.5\r\n');
  });

  it.each(['=1+1', '+1', '-1', '@x', '\tx'])(
    'takes the sting out of %j',
    text => {
      expect(toCsv(['a'], [[text]])).toContain(`'${text}`);
    }
  );

  it('leaves numbers as they are', () => {
    expect(toCsv(['a'], [[-1]])).toBe('a\r\n-1\r\n');
  });
});

it('adds up what was held and busy', () => {
  expect(totals([aDay(), aDay({ held: 0, busy: 0 })])).toEqual({
    held: 7200,
    busy: 3600,
    charged: 7200,
    share: 0.5
  });
  expect(totals([aDay({ held: 0, busy: 0 })]).share).toBeNull();
});

it('shows shares of what the node could give, never beyond', () => {
  expect(nodeShares(aDay())).toEqual({ held: 0.5, busy: 0.25 });
  expect(nodeShares(aDay({ capacity: 0 }))).toEqual({ held: 0, busy: 0 });
  expect(nodeShares(aDay({ node_held: 1e9 })).held).toBe(1);
});

it('ends axes at round numbers', () => {
  expect([0, 0.07, 1, 1.1, 2.4, 3, 9, 11, 260].map(axisTop)).toEqual([
    1, 0.1, 1, 2, 2.5, 5, 10, 20, 500
  ]);
});

it('names days as they are where the node is, wherever the reader is', () => {
  const usage = { environment: 'alice', days: [] };
  expect(dayName(start, { ...usage, utc_offset })).toBe('2026-11-20');
  expect(dayName(start, usage)).toBe('2026-11-20'); // one that does not say: UTC
  expect(dayName(start, { ...usage, utc_offset: -43200 })).toBe('2026-11-19');
});

it('writes the days for a spreadsheet', () => {
  const lines = usageCsv({
    ...{ environment: 'alice', days: [aDay()], utc_offset }
  }).split('\r\n');
  expect(lines[0]).toContain('held_gpu_hours');
  expect(lines[1]).toBe('2026-11-20,alice,2,1,2,24,12,48,2,0');
  const told = { charged: 1800, resident_gib_seconds: 7200 };
  const turns = usageCsv({ environment: 'alice', days: [aDay(told)] });
  expect(turns).toContain('2026-11-20,alice,2,1,2,24,12,48,0.5,2');
});

describe('HistoryView', () => {
  it('says the sums in words, draws them, and has them as a table', async () => {
    const { model, container } = show(HistoryView, aStatus());
    model.server.on('GET', 'usage/daily', 200, {
      environment: 'alice',
      days: [aDay(), aDay({ start: start + 86400, charged: 1800 })]
    });
    await screen.findByText(
      'You held 4 GPU-hours in these 2 days; code ran in 2 of them (50 %). 2.5 of them count, the time of your turns.'
    );
    expect(
      screen.getByRole('img', { name: /My GPU-hours by day/ })
    ).toBeTruthy();
    expect(container.querySelectorAll('tbody tr')).toHaveLength(2);
    expect(
      screen.getByText(/held 50 % of the time and busy 25 %/)
    ).toBeTruthy();
  });

  it('asks for the span that is chosen, in days of the node', async () => {
    const { model } = show(HistoryView, aStatus());
    model.server.on('GET', 'usage/daily', 200, { environment: 'a', days: [] });
    fireEvent.change(screen.getByRole('combobox'), { target: { value: '30' } });
    await waitFor(() =>
      expect(model.server.asked.map(({ path }) => path)).toContain(
        'usage/daily?days=30'
      )
    );
  });

  it('says what went wrong', async () => {
    const { model } = show(HistoryView, aStatus());
    model.server.on('GET', 'usage/daily', 503, {
      reason: 'unavailable',
      message: 'No node manager.'
    });
    await screen.findByText('Could not be read: No node manager.');
  });
});
