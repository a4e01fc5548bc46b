import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';

import type { Live } from './types';
import { BadAnswer, validated } from './validate';

/** The feed's messages to its owner. */
export interface ILiveListener {
  /** A message came. */
  onMessage(message: Live): void;
  /** The connection could not be made, or was lost; it is tried again by itself. */
  onLost(): void;
  /** The page is hidden, so the connection was closed; it is opened again when the page is shown.
  /** */
  onPaused(): void;
  /** A received message made no sense. */
  onNonsense(error: BadAnswer): void;
}

/** The feed's view of the browser, which tests can replace. */
export interface ILiveWorld {
  makeSocket(url: string): WebSocket;
  setTimer(run: () => void, milliseconds: number): number;
  clearTimer(timer: number): void;
  /** From 0 to 1. */
  random(): number;
  isHidden(): boolean;
  /** Call `run` when the page is hidden or shown; returns how to stop that. */
  onVisibility(run: () => void): () => void;
}

/** Pauses before another try, milliseconds; each is varied by a quarter up or down. */
export const PAUSES = [250, 500, 1000, 2000, 4000, 8000, 15000, 30000];
/** How long a hidden page keeps its connection, so that a short look at another tab does not close
/** it. */
export const HIDDEN_FOR = 60_000;

/**
 * The status, as the server pushes it.
 *
 * Reconnects by itself with growing pauses; a page that is hidden for a minute lets go of its
 * connection, and takes it again when it is looked at.
 */
export class LiveFeed implements IDisposable {
  constructor(
    settings: ServerConnection.ISettings,
    private readonly _listener: ILiveListener,
    private readonly _world: ILiveWorld = browserWorld(settings)
  ) {
    const token = settings.appendToken && settings.token;
    this._url =
      URLExt.join(settings.wsUrl, 'gpushare/api/live') +
      (token ? `?token=${encodeURIComponent(settings.token)}` : '');
    this._unwatch = this._world.onVisibility(() => this._visibilityChanged());
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    this._unwatch();
    this._stopTimer();
    this._leave();
  }

  /** Connect now, without the rest of a pause. */
  connect(): void {
    if (this._disposed || this._socket) {
      return;
    }
    this._stopTimer();
    const socket = this._world.makeSocket(this._url);
    this._socket = socket;
    socket.onmessage = event => this._received(event.data);
    socket.onclose = () => this._closed(socket);
  }

  private _received(data: unknown): void {
    let message: Live;
    try {
      message = validated('Live', JSON.parse(String(data)));
    } catch (error) {
      this._listener.onNonsense(
        error instanceof BadAnswer
          ? error
          : new BadAnswer('Live', 'it is not JSON')
      );
      return;
    }
    this._failures = 0; // only a message shows that it works: proxies accept, then close
    this._listener.onMessage(message);
  }

  private _closed(socket: WebSocket): void {
    if (socket !== this._socket) {
      return;
    }
    this._socket = null;
    if (this._world.isHidden()) {
      this._listener.onPaused();
      return;
    }
    this._listener.onLost();
    const pause = PAUSES[Math.min(this._failures, PAUSES.length - 1)];
    this._failures += 1;
    this._timer = this._world.setTimer(
      () => {
        this._timer = null;
        this.connect();
      },
      pause * (0.75 + this._world.random() / 2)
    );
  }

  private _visibilityChanged(): void {
    if (!this._world.isHidden()) {
      if (this._socket) {
        this._stopTimer();
      } else {
        this._failures = 0;
        this.connect();
      }
      return;
    }
    this._stopTimer();
    this._timer = this._world.setTimer(() => {
      this._timer = null;
      this._leave();
      this._listener.onPaused();
    }, HIDDEN_FOR);
  }

  private _leave(): void {
    const socket = this._socket;
    this._socket = null;
    if (socket) {
      socket.onmessage = null;
      socket.onclose = null;
      socket.close();
    }
  }

  private _stopTimer(): void {
    if (this._timer !== null) {
      this._world.clearTimer(this._timer);
      this._timer = null;
    }
  }

  private readonly _url: string;
  private readonly _unwatch: () => void;
  private _socket: WebSocket | null = null;
  private _timer: number | null = null;
  private _failures = 0;
  private _disposed = false;
}

function browserWorld(settings: ServerConnection.ISettings): ILiveWorld {
  return {
    makeSocket: url => new settings.WebSocket(url),
    setTimer: (run, milliseconds) => window.setTimeout(run, milliseconds),
    clearTimer: timer => window.clearTimeout(timer),
    random: () => Math.random(),
    isHidden: () => document.visibilityState === 'hidden',
    onVisibility: run => {
      document.addEventListener('visibilitychange', run);
      return () => document.removeEventListener('visibilitychange', run);
    }
  };
}
