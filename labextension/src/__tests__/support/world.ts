/** Sockets, timers and a page that a test moves by hand. */
import type { ILiveWorld } from '../../api/live';

export class FakeSocket {
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;
  closed = false;

  constructor(readonly url: string) {}

  /** The server sends a message. */
  send(message: unknown): void {
    this.onmessage?.({
      data: typeof message === 'string' ? message : JSON.stringify(message)
    });
  }

  /** The connection is lost. */
  lose(): void {
    this.onclose?.();
  }

  close(): void {
    this.closed = true;
  }
}

export class FakeWorld implements ILiveWorld {
  readonly sockets: FakeSocket[] = [];
  /** Milliseconds. */
  now = 0;

  get socket(): FakeSocket {
    return this.sockets[this.sockets.length - 1];
  }

  makeSocket(url: string): WebSocket {
    const socket = new FakeSocket(url);
    this.sockets.push(socket);
    return socket as unknown as WebSocket;
  }

  setTimer(run: () => void, milliseconds: number): number {
    this._count += 1;
    this._timers.set(this._count, { at: this.now + milliseconds, run });
    return this._count;
  }

  clearTimer(timer: number): void {
    this._timers.delete(timer);
  }

  random(): number {
    return 0.5; // neither more nor less than the pause
  }

  isHidden(): boolean {
    return this._hidden;
  }

  onVisibility(run: () => void): () => void {
    this._watchers.add(run);
    return () => this._watchers.delete(run);
  }

  get watchers(): number {
    return this._watchers.size;
  }

  get timers(): number {
    return this._timers.size;
  }

  hide(hidden: boolean): void {
    this._hidden = hidden;
    for (const run of [...this._watchers]) {
      run();
    }
  }

  /** Let time pass, running what falls due. */
  pass(milliseconds: number): void {
    const until = this.now + milliseconds;
    for (;;) {
      const due = [...this._timers.entries()]
        .filter(([, timer]) => timer.at <= until)
        .sort(([, a], [, b]) => a.at - b.at)[0];
      if (!due) {
        break;
      }
      this._timers.delete(due[0]);
      this.now = due[1].at;
      due[1].run();
    }
    this.now = until;
  }

  private _hidden = false;
  private _count = 0;
  private readonly _timers = new Map<number, { at: number; run: () => void }>();
  private readonly _watchers = new Set<() => void>();
}
