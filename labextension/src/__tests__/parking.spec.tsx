import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { fireEvent, screen } from '@testing-library/react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import {
  canKeep,
  countdownStep,
  keepChoices,
  secondsLeft
} from '../model/parking';
import { ParkWarnings } from '../model/warnings';
import {
  abilityText,
  formatCountdown,
  keptUntilText,
  rungText,
  warningNews
} from '../text/parking';
import { stateHint, stateWord } from '../text/words';
import { GpusView } from '../widgets/gpus';
import { keepMenu, leaseMenu } from '../widgets/leasemenu';
import { LeasesView } from '../widgets/leases';
import { aLease, aStatus, GIB } from './support/builders';
import { FakeServer } from './support/server';
import { show } from './support/views';

const COMMANDS = Object.values(CommandIDs);
const trans = nullTranslator.load('');
const NODE = aStatus().node;

/** An idle lease whose GPU is taken back in `left` seconds. */
function warned(left: number, given: Partial<Lease> = {}): Lease {
  return aLease('a', {
    state: 'idle',
    activity: 'idle',
    warning: { reason: 'contended', at: NODE.time + left },
    ...given
  });
}

function parked(given: Partial<Lease> = {}): Lease {
  return aLease('a', {
    state: 'parked',
    phase: 'parked',
    activity: 'idle',
    gpus: [],
    ...given
  });
}

describe('a countdown', () => {
  it.each([
    [42, 42],
    [0.4, 1],
    [0, 0],
    [-3, 0]
  ])('%d seconds ahead says %d', (ahead, left) => {
    expect(secondsLeft(warned(ahead), NODE.time)).toBe(left);
  });

  it('is none without a warning', () => {
    expect(secondsLeft(aLease('a'), NODE.time)).toBeNull();
  });

  it.each([
    [59, '59 s'],
    [60, '1 min 00 s'],
    [125, '2 min 05 s'],
    [7200, '2 h']
  ])('%d is written %s', (seconds, text) => {
    expect(formatCountdown(seconds, trans)).toBe(text);
  });

  it('is told at a few steps, none of them less than what is left', () => {
    const told = new Set<number>();
    for (let left = 7300; left >= 0; left -= 1) {
      const step = countdownStep(left);
      expect(step).toBeGreaterThanOrEqual(left);
      told.add(step);
    }
    expect(told.size).toBeLessThanOrEqual(12);
    expect(countdownStep(0)).toBe(0);
  });
});

describe('ParkWarnings', () => {
  const status = (...leases: Lease[]): Status => aStatus({ leases });

  it('tells the beginning, a few steps, and the end', () => {
    const warnings = new ParkWarnings();
    const at = NODE.time;
    expect(warnings.observe(status(warned(58)), at)).toMatchObject([
      { what: 'begun', step: 60 }
    ]);
    expect(warnings.any).toBe(true);
    expect(warnings.observe(status(warned(58)), at + 5)).toEqual([]);
    expect(warnings.observe(status(warned(58)), at + 29)).toMatchObject([
      { what: 'step', step: 30 }
    ]);
    expect(warnings.observe(status(aLease('a')), at + 30)).toEqual([
      { what: 'over', id: 'a' }
    ]);
    expect(warnings.any).toBe(false);
    expect(warnings.observe(null, at + 31)).toEqual([]);
  });

  it("is not of other people's", () => {
    const other = warned(30, { mine: false });
    expect(new ParkWarnings().observe(status(other), NODE.time)).toEqual([]);
  });
});

describe('keeping', () => {
  it.each([
    [7200, [900, 1800, 3600, 7200]],
    [1800, [900, 1800]],
    [600, [600]],
    [86400, [900, 1800, 3600, 28800]],
    [0, []]
  ])('within %d seconds offers %j', (pin_limit, choices) => {
    expect(keepChoices({ ...NODE, pin_limit })).toEqual(choices);
  });

  it.each([
    [aLease('a'), true],
    [aLease('a', { mine: false }), false],
    [aLease('a', { kind: 'process' }), false],
    [parked(), false],
    [aLease('a', { state: 'queued', phase: 'queued' }), false]
  ])('makes sense for what holds a GPU (%#)', (lease, can) => {
    expect(canKeep(lease, NODE)).toBe(can);
    expect(canKeep(lease, { ...NODE, pin_limit: 0 })).toBe(false);
  });

  it('asks the server', async () => {
    const server = new FakeServer();
    const answer = { lease: 'a', state: 'idle' };
    server.on('POST', 'leases/a/pin', 200, answer);
    expect(await server.api.keep('a')).toEqual(answer);
    await server.api.keep('a', 0);
    expect(server.asked).toEqual([
      { method: 'POST', path: 'leases/a/pin', body: {} },
      { method: 'POST', path: 'leases/a/pin', body: { seconds: 0 } }
    ]);
  });

  it("passes the node manager's words on where it is refused", async () => {
    const server = new FakeServer();
    const message = 'An idle kernel keeps its GPU for 2 hours at most here.';
    server.on('POST', 'leases/a/pin', 403, { reason: 'not_allowed', message });
    await expect(server.api.keep('a')).rejects.toMatchObject({
      message,
      reason: 'not_allowed'
    });
  });

  it('has a menu with what is allowed, and an end', () => {
    const commands = new CommandRegistry();
    const labels = (lease: Lease, now: number): unknown[] =>
      keepMenu(commands, lease, NODE, now).items.map(item => item.args.seconds);
    const kept = aLease('a', { pinned_until: NODE.time + 60 });
    expect(labels(aLease('a'), NODE.time)).toEqual([900, 1800, 3600, 7200]);
    expect(labels(kept, NODE.time)).toEqual([900, 1800, 3600, 7200, 0]);
    expect(labels(kept, NODE.time + 61)).toEqual([900, 1800, 3600, 7200]);
  });

  it("is in a notebook's menu only where it makes sense", () => {
    const commands = new CommandRegistry();
    const has = (lease: Lease): boolean =>
      leaseMenu(commands, null, lease, NODE, NODE.time).items.some(
        item => item.command === CommandIDs.keep
      );
    expect(has(aLease('a'))).toBe(true);
    expect(has(parked())).toBe(false);
  });

  it('says until when, as long as it holds', () => {
    const lease = aLease('a', { pinned_until: NODE.time + 60 });
    expect(keptUntilText(lease, NODE.time, trans)).toMatch(/^Kept until .*\d/);
    expect(keptUntilText(lease, NODE.time + 60, trans)).toBeNull();
    expect(keptUntilText(aLease('a'), NODE.time, trans)).toBeNull();
  });
});

describe('LeasesView', () => {
  it('counts down and keeps', () => {
    const { container, ran, model } = show(
      LeasesView,
      aStatus({ leases: [warned(42)] }),
      COMMANDS
    );
    const row = container.querySelector('.jp-gpushare-row');
    expect(row?.textContent).toContain('Will be parked in 42 s');
    fireEvent.click(
      screen.getByRole('button', { name: 'Keep the GPU of train.ipynb' })
    );
    expect(ran).toEqual([{ command: CommandIDs.keep, args: { lease: 'a' } }]);
    model.setStatus(aStatus({ leases: [aLease('a')] }));
    expect(container.textContent).not.toMatch(/parked in|taken back/);
    expect(screen.queryByRole('button', { name: /^Keep the/ })).toBeNull();
  });

  it('says it aloud at a step, not each second', () => {
    const { model } = show(LeasesView, aStatus({ leases: [warned(42)] }));
    const region = screen.getByRole('status');
    expect(region.getAttribute('aria-live')).toBe('polite');
    const said = region.textContent;
    expect(said).toContain('train.ipynb is taken back in at most 1 min');
    model.setStatus(aStatus({ leases: [warned(41)] }));
    expect(region.textContent).toBe(said);
    model.setStatus(aStatus({ leases: [warned(29)] }));
    expect(region.textContent).toContain('at most 30 s');
  });

  it('says how a parked task gave its GPU back, and how one could', () => {
    const leases = [
      parked({ rung: 'driver', parked_memory: 12.4 * GIB }),
      aLease('b', {
        state: 'idle',
        pinned_until: NODE.time + 600,
        ability: { rung: 'storage', why: 'The driver is too old.' }
      })
    ];
    show(LeasesView, aStatus({ leases }));
    expect(
      screen.getByText('Moved to host memory by the driver: 12.4 GiB')
    ).toBeTruthy();
    expect(screen.getByText(/^Kept until/)).toBeTruthy();
    expect(
      screen.getByText(/tensors can move.*because: The driver is too old/)
    ).toBeTruthy();
    expect(
      screen.getByRole('button', { name: 'How long train.ipynb keeps its GPU' })
    ).toBeTruthy();
  });
});

it.each(['parking', 'parked', 'resuming'] as const)(
  '%s has a picture, a word and a meaning',
  state => {
    expect(stateIcons[state]).toBeTruthy();
    expect(stateWord(state, trans).toLowerCase()).toBe(state);
    expect(stateHint(state, trans)).toMatch(/\.$/);
  }
);

it.each([
  ['release', /nothing was on the GPU/],
  ['trim', /Caches emptied/],
  ['storage', /host memory: 2 GiB/],
  ['driver', /by the driver: 2 GiB/],
  [null, /^$/]
] as const)('rung %s in words', (rung, text) => {
  const lease = parked({ rung, parked_memory: 2 * GIB });
  expect(rungText(lease, 'binary', trans)).toMatch(text);
});

it.each(['release', 'trim', 'storage', 'driver', 'none'] as const)(
  'ability %s in words',
  rung => {
    expect(abilityText({ rung, why: '' }, trans)).toMatch(/^(Could|Cannot)/);
    expect(abilityText({ rung, why: 'Old.' }, trans)).toMatch(/: Old\.$/);
  }
);

it.each(['contended', 'idle', 'budget_spent'] as const)(
  'a warning because of %s',
  reason => {
    const warning = { reason, at: 0 };
    expect(warningNews('a.ipynb', warning, 30, trans)).toMatch(
      /^The GPU of a\.ipynb is taken back in at most 30 s: it .*\. Its variables are kept\.$/
    );
    expect(warningNews('a.ipynb', warning, 0, trans)).toContain('back now');
  }
);

describe("the host's memory", () => {
  const node = { ...NODE, parked_memory: 48 * GIB };

  it('is shown beside its limit', () => {
    const limited = { ...node, parked_memory_limit: 64 * GIB };
    show(GpusView, aStatus({ node: limited }));
    const meter = screen.getByRole('meter', { name: /Host memory/ });
    expect(meter.getAttribute('aria-valuetext')).toBe('48 GiB of 64 GiB');
    expect(meter.dataset.level).toBe('free');
  });

  it('says what it means that all is used', () => {
    const full = { ...node, parked_memory_limit: 48 * GIB };
    show(GpusView, aStatus({ node: full }));
    expect(screen.getByText(/cannot be parked and keeps its GPU/)).toBeTruthy();
  });

  it('is shown without a limit, and not where there is nothing to say', () => {
    const { container, model } = show(GpusView, aStatus({ node }));
    expect(container.textContent).toContain('48 GiB, not limited');
    model.setStatus(aStatus());
    expect(container.textContent).not.toContain('Host memory');
  });
});
