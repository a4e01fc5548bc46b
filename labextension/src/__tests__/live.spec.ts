import { ServerConnection } from '@jupyterlab/services';

import { HIDDEN_FOR, type ILiveListener, LiveFeed, PAUSES } from '../api/live';
import type { Live } from '../api/types';
import type { BadAnswer } from '../api/validate';
import { aStatus } from './support/builders';
import { FakeWorld } from './support/world';

class Listener implements ILiveListener {
  readonly messages: Live[] = [];
  readonly nonsense: BadAnswer[] = [];
  lost = 0;
  paused = 0;

  onMessage(message: Live): void {
    this.messages.push(message);
  }
  onLost(): void {
    this.lost += 1;
  }
  onPaused(): void {
    this.paused += 1;
  }
  onNonsense(error: BadAnswer): void {
    this.nonsense.push(error);
  }
}

function start(token = ''): {
  world: FakeWorld;
  listener: Listener;
  feed: LiveFeed;
} {
  const world = new FakeWorld();
  const listener = new Listener();
  const settings = ServerConnection.makeSettings({
    wsUrl: 'ws://server.test/user/alice/',
    token,
    appendToken: Boolean(token)
  });
  const feed = new LiveFeed(settings, listener, world);
  feed.connect();
  return { world, listener, feed };
}

const news = { type: 'status', status: aStatus() };

it('connects under the base URL and passes messages on', () => {
  const { world, listener } = start();
  expect(world.socket.url).toBe(
    'ws://server.test/user/alice/gpushare/api/live'
  );
  world.socket.send(news);
  world.socket.send({
    type: 'unavailable',
    reason: 'unavailable',
    message: 'x'
  });
  expect(listener.messages.map(message => message.type)).toEqual([
    'status',
    'unavailable'
  ]);
});

it('sends its token only where the server wants it so', () => {
  expect(start('a b').world.socket.url).toMatch(/\?token=a%20b$/);
});

it('tells nonsense and goes on', () => {
  const { world, listener } = start();
  world.socket.send('{');
  world.socket.send({ type: 'status', status: { gpus: 'many' } });
  world.socket.send(news);
  expect(listener.nonsense).toHaveLength(2);
  expect(listener.messages).toHaveLength(1);
});

it('tries again with growing pauses, and from the start after a message', () => {
  const { world, listener } = start();
  for (const pause of [...PAUSES, PAUSES[PAUSES.length - 1]]) {
    const before = world.sockets.length;
    world.socket.lose();
    world.pass(pause - 1);
    expect(world.sockets).toHaveLength(before);
    world.pass(1);
    expect(world.sockets).toHaveLength(before + 1);
  }
  expect(listener.lost).toBe(PAUSES.length + 1);
  world.socket.send(news);
  world.socket.lose();
  world.pass(PAUSES[0]);
  expect(world.sockets).toHaveLength(PAUSES.length + 3);
});

it('keeps one connection however often it is asked', () => {
  const { world, feed } = start();
  feed.connect();
  feed.connect();
  expect(world.sockets).toHaveLength(1);
});

it('ignores the end of a connection that it has left behind', () => {
  const { world, listener } = start();
  const first = world.socket;
  world.hide(true);
  world.pass(HIDDEN_FOR);
  world.hide(false);
  first.lose();
  expect(listener.lost).toBe(0);
  expect(world.sockets).toHaveLength(2);
});

describe('a hidden page', () => {
  it('keeps its connection for a while', () => {
    const { world } = start();
    world.hide(true);
    world.pass(HIDDEN_FOR - 1);
    world.hide(false);
    world.pass(HIDDEN_FOR * 2);
    expect(world.sockets).toHaveLength(1);
    expect(world.socket.closed).toBe(false);
  });

  it('lets go of it, asks for nothing, and comes back when it is shown', () => {
    const { world, listener } = start();
    world.hide(true);
    world.pass(HIDDEN_FOR);
    expect(world.socket.closed).toBe(true);
    expect(listener.paused).toBe(1);
    world.pass(3_600_000);
    expect(world.sockets).toHaveLength(1);
    expect(world.timers).toBe(0);
    world.hide(false);
    expect(world.sockets).toHaveLength(2);
  });

  it('does not try again while it is hidden', () => {
    const { world, listener } = start();
    world.hide(true);
    world.socket.lose();
    world.pass(3_600_000);
    expect(world.sockets).toHaveLength(1);
    expect(listener.lost).toBe(0);
    world.hide(false);
    expect(world.sockets).toHaveLength(2);
  });
});

it('leaves nothing behind', () => {
  const { world, feed, listener } = start();
  world.socket.lose();
  feed.dispose();
  feed.dispose();
  world.pass(60_000);
  feed.connect();
  expect(world.sockets).toHaveLength(1);
  expect(world.watchers).toBe(0);
  expect(world.timers).toBe(0);
  expect(listener.lost).toBe(1);
});
