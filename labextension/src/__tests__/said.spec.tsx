/** Lays the golden documents out: all that the node manager says is there to be read. */
import { readdirSync, readFileSync } from 'fs';
import { join } from 'path';

import { nullTranslator } from '@jupyterlab/translation';
import { act, screen, within } from '@testing-library/react';
import React from 'react';

import type { Said, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { myLeases } from '../model/derive';
import { about, besides, saysOf, wordsOf } from '../text/said';
import { BannerView } from '../widgets/banner';
import { GpusView } from '../widgets/gpus';
import { LeasesView } from '../widgets/leases';
import { QueueView } from '../widgets/queue';
import { QuotaView } from '../widgets/quota';
import { type IShown, show } from './support/views';

const trans = nullTranslator.load('');
const DOCUMENTS = join(__dirname, '../../../tests/golden/documents');

/** The documents of a situation, by who looks. */
function situation(name: string): Record<string, Status> {
  return JSON.parse(readFileSync(join(DOCUMENTS, `${name}.json`), 'utf-8'));
}

const SITUATIONS = readdirSync(DOCUMENTS).map(file => file.split('.')[0]);
const LOOKS = SITUATIONS.flatMap(name =>
  Object.entries(situation(name)).map(
    ([viewer, status]) => [name, viewer, status] as const
  )
);

function Panel(): JSX.Element {
  return (
    <>
      <BannerView />
      <QuotaView />
      <LeasesView />
      <QueueView />
      <GpusView />
    </>
  );
}

/** What of a document is meant for this panel: others' leases are the administration's. */
function meant(status: Status): Said[] {
  const inShort = ['summary', 'countdown'];
  const mine = new Set(myLeases(status).map(({ id }) => id));
  const isMine = ({ id }: { id: string | null }): boolean => mine.has(id);
  const singles = status.leases.filter(one => isMine(one) && !one.job);
  const workers = status.leases.filter(one => isMine(one) && one.job);
  const there = status.leases.filter(({ gpus }) => gpus.length);
  return [
    ...saysOf(status),
    ...saysOf(status.quota),
    ...status.gpus.flatMap(saysOf),
    ...singles.flatMap(lease => besides(lease, 'who', ...inShort)),
    ...workers.flatMap(lease =>
      besides(lease, 'who', 'what', 'class', 'held', ...inShort)
    ),
    ...there.flatMap(one => about(one, 'who', 'what', 'state', 'memory')),
    ...(status.jobs ?? [])
      .filter(job => job.mine)
      .flatMap(job => about(job, 'what', 'where', 'state', 'memory', 'held')),
    ...status.queue.flatMap(row =>
      row.mine ? saysOf(row) : besides(row, 'why', 'ahead')
    )
  ].filter(
    // What is as it should be, and needs no word.
    said => !(said.about === 'health' && said.tone === 'good')
  );
}

const lower = (text: string | null): string =>
  (text ?? '').toLowerCase().replace(/\s+/g, ' ');

it.each(LOOKS)('shows all that is said in %s to %s', (name, viewer, status) => {
  const { container } = show(Panel, status);
  const shown = lower(container.textContent);
  const reader = { trans, now: status.node.time };
  for (const said of meant(status)) {
    expect(shown).toContain(lower(wordsOf([said], reader)).replace(/`/g, ''));
    expect(shown).toContain(lower(said.label ?? ''));
  }
  expect(shown).not.toContain('{');
  for (const meter of screen.queryAllByRole('meter')) {
    expect(meter.getAttribute('aria-label')).toBeTruthy();
    expect(meter.getAttribute('aria-valuetext')).toBeTruthy();
  }
  for (const gpu of status.gpus.length ? screen.getAllByRole('img') : []) {
    expect(gpu.getAttribute('aria-label')).toBeTruthy();
  }
});

it('gives hints to those who point and to those who open', () => {
  const { alice } = situation('over_its_limit');
  const { container } = show(LeasesView, alice);
  const [over] = about(myLeases(alice)[0], 'over');
  expect(over.hint).toMatch(/^Others are given the memory/);
  expect(screen.getByTitle(over.hint ?? '').dataset.tone).toBe('bad');
  const details = within(container.querySelector('details')!);
  expect(details.getByText(over.hint ?? '')).toBeTruthy();
});

describe('a figure', () => {
  const at = Date.UTC(2026, 10, 20, 12) / 1000;
  const written = (...figure: readonly (string | number)[]): string =>
    wordsOf(saysOf({ says: [`why:info {${figure.join(' ')}}`] }), {
      trans,
      now: at,
      units: 'decimal'
    });

  it.each<[string, number, string]>([
    ['bytes', 8e9, '8 GB'],
    ['percent', 0.374, '37 %'],
    ['hours', 0.08, '0.08'],
    ['span', 7500, '2 h 5 min'],
    ['left', at + 41.2, '42 s'],
    ['left', at + 125, '2 min 05 s'],
    ['left', at - 5, '1 s'],
    ['since', at - 75, '1 min'],
    ['since', at + 5, '0 s'],
    ['about', at + 63, '1 min']
  ])('%s %d is %s', (form, value, text) => {
    expect(written(form, value)).toBe(text);
  });

  it('may be a range, or a moment by the reader’s clock', () => {
    expect(written('range', 605, 1790)).toBe('10 to 30 min');
    expect(written('clock', at)).toMatch(/\d\d?:\d\d/);
  });

  it.each(['dozens', '1e999'])('%s is not made up', value => {
    expect(written('span', value)).toBe('?');
  });
});

describe('while time passes', () => {
  /** Show a document at a moment that the test moves, and see what is drawn anew. */
  function shownAt(View: React.ComponentType, status: Status) {
    jest.useFakeTimers();
    const shown: IShown = show(View, status, Object.values(CommandIDs));
    let now = status.node.time;
    shown.model.now = () => now;
    const changes = new MutationObserver(() => undefined);
    changes.observe(shown.container, {
      ...{ subtree: true, childList: true },
      ...{ characterData: true, attributes: true }
    });
    const pass = (seconds: number): MutationRecord[] => {
      for (let second = 0; second < seconds; second += 1) {
        now += 1;
        act(() => jest.advanceTimersByTime(1000));
      }
      return changes.takeRecords();
    };
    return { ...shown, pass };
  }

  afterEach(() => jest.useRealTimers());

  const { alice } = situation('warned_by_time');
  const [lease] = myLeases(alice);
  const left = (lease.warning?.at ?? 0) - alice.node.time;
  const aloud = (): string | null => screen.getByRole('status').textContent;

  it('a countdown counts, and nothing else is drawn anew', () => {
    const { pass, container } = shownAt(LeasesView, alice);
    expect(left).toBeGreaterThan(20);
    expect(container.textContent).toContain(`taken back in ${left} s`);
    const changed = pass(3);
    expect(container.textContent).toContain(`taken back in ${left - 3} s`);
    expect(changed.map(({ type }) => type)).toEqual(
      Array(3).fill('characterData')
    );
  });

  it('is told now and then to those who do not see it', () => {
    const { pass } = shownAt(LeasesView, alice);
    const told = new Set([aloud()]);
    for (let second = 0; second < left; second += 1) {
      pass(1);
      told.add(aloud());
    }
    expect(aloud()).toMatch(/^train\.ipynb: Its GPU is taken back in 1 s,/);
    expect(told.size).toBeLessThan(6);
  });

  it('nothing is drawn while nobody sees it', () => {
    const { pass, host } = shownAt(LeasesView, alice);
    host.isVisible = false;
    expect(pass(5)).toEqual([]);
  });
});
