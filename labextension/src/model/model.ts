import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { type ILiveWorld, LiveFeed } from '../api/live';
import { ApiError, Failure, GpuShareApi } from '../api/rest';
import type { Live } from '../api/types';
import {
  EMPTY,
  type IProblem,
  type ISnapshot,
  SAMPLES_FOR,
  withoutConnection,
  withProblem,
  withReadings,
  withStatus
} from './snapshot';

/** This page's knowledge of the node; all views read from it. */
export interface IGpuShareModel {
  /** Everything that is known now; another object after each change. */
  readonly snapshot: ISnapshot;
  /** Emitted after each change of `snapshot`. */
  readonly changed: ISignal<IGpuShareModel, void>;
  readonly api: GpuShareApi;
  /** The time by the node's clock, Unix seconds: so ages are right even if this computer's clock is
  /** wrong. */
  now(): number;
  /** Ask again now. */
  refresh(): Promise<void>;
}

export class GpuShareModel implements IGpuShareModel, IDisposable {
  /** `clock` gives seconds that only ever go forward. */
  constructor(
    readonly api: GpuShareApi,
    private readonly _clock: () => number = () => performance.now() / 1000,
    world?: ILiveWorld
  ) {
    this._feed = new LiveFeed(
      api.serverSettings,
      {
        onMessage: message => this._received(message),
        onLost: () => this._lost(),
        onPaused: () => this._set(withoutConnection(this._snapshot)),
        onNonsense: error =>
          this._set(withProblem(this._snapshot, ofError(error)))
      },
      world
    );
  }

  get snapshot(): ISnapshot {
    return this._snapshot;
  }

  get changed(): ISignal<IGpuShareModel, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._feed.isDisposed;
  }

  /** Begin to listen. */
  start(): void {
    this._feed.connect();
  }

  dispose(): void {
    this._feed.dispose();
    Signal.clearData(this);
  }

  now(): number {
    const status = this._snapshot.status;
    return status === null
      ? Date.now() / 1000
      : status.node.time + this._clock() - this._receivedAt;
  }

  async refresh(): Promise<void> {
    this._feed.connect();
    await this._ask(null);
  }

  private _received(message: Live): void {
    if (message.type === 'unavailable') {
      this._set(
        withProblem(this._snapshot, {
          failure: Failure.NodeDown,
          message: message.message
        })
      );
      return;
    }
    this._receivedAt = this._clock();
    this._set(withStatus(this._snapshot, message.status));
    if (
      !this._asksReadings &&
      this._readingsOf !== message.status.node.started
    ) {
      void this._askReadings(message.status.node.started);
    }
  }

  private _lost(): void {
    this._set(withoutConnection(this._snapshot));
    // A WebSocket that fails does not say why; the same question by HTTP does.
    void this._ask({
      failure: 'not-live',
      message: ''
    });
  }

  /** Ask for the status by HTTP; if that works, `problem` is what remains. */
  private async _ask(problem: IProblem | null): Promise<void> {
    const before = this._receivedAt;
    try {
      const status = await this.api.status();
      if (this._receivedAt !== before || this.isDisposed) {
        return; // the feed was quicker
      }
      this._receivedAt = this._clock();
      const now = withStatus(this._snapshot, status);
      this._set(problem ? withProblem(now, problem) : now);
    } catch (error) {
      if (this._receivedAt === before && !this.isDisposed) {
        this._set(withProblem(this._snapshot, ofError(error)));
      }
    }
  }

  private async _askReadings(started: number): Promise<void> {
    this._asksReadings = true;
    try {
      const readings = await this.api.readings(SAMPLES_FOR);
      this._readingsOf = started;
      if (!this.isDisposed) {
        this._set(withReadings(this._snapshot, readings));
      }
    } catch {
      // The curves then begin now: no reason to trouble anyone. The next status tries again
      // only after the node manager was started anew.
      this._readingsOf = started;
    } finally {
      this._asksReadings = false;
    }
  }

  private _set(snapshot: ISnapshot): void {
    if (snapshot !== this._snapshot) {
      this._snapshot = snapshot;
      this._changed.emit();
    }
  }

  private readonly _feed: LiveFeed;
  private readonly _changed = new Signal<this, void>(this);
  private _snapshot: ISnapshot = EMPTY;
  private _receivedAt = -1;
  private _asksReadings = false;
  private _readingsOf: number | null = null;
}

function ofError(error: unknown): IProblem {
  if (error instanceof ApiError) {
    return { failure: error.failure, message: error.message };
  }
  return {
    failure: Failure.BadAnswer,
    message: error instanceof Error ? error.message : String(error)
  };
}
