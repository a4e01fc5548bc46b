import { CommandRegistry } from '@lumino/commands';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import {
  canKeep,
  countdownStep,
  keepChoices,
  secondsLeft
} from '../model/parking';
import { ParkWarnings } from '../model/warnings';
import { keepMenu, leaseMenu } from '../widgets/leasemenu';
import { aLease, aStatus } from './support/builders';
import { FakeServer } from './support/server';

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
});
