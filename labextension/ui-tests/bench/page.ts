/** What runs in the page: a stand-in for the live connection, and statuses to send through it. */
import type { Gpu, Lease, Live, Status, Waiting } from '../../src/api/types';

/** How large the node of the benchmark is. */
export interface ISize {
  gpus: number;
  leases: number;
  /** Of the leases, those that are the viewer's own. */
  mine: number;
  waiting: number;
  /** Leases whose state is another in the next status. */
  changes: number;
}

/** Whole documents, of which each status changes some fields. Only data goes into the page. */
export interface IDocuments {
  gpu: Gpu;
  lease: Lease;
  waiting: Waiting;
  status: Status;
}

/** What the page offers the benchmark. */
export interface IBench {
  /** Send the next status; milliseconds until what it changed is painted. */
  next(): Promise<number>;
}

declare global {
  interface Window {
    gpushareBench: IBench;
  }
}

/** Run in the page before anything else of it. */
export function install({
  size,
  like
}: {
  size: ISize;
  like: IDocuments;
}): void {
  const GIB = 2 ** 30;
  let socket: { onmessage?: (event: { data: string }) => void } | null = null;
  const Real = window.WebSocket;
  const Either = function (url: string, protocols?: string[]): object {
    if (!url.includes('gpushare/api/live')) {
      return new Real(url, protocols);
    }
    socket = {
      onmessage: undefined,
      ...{ close: () => undefined, readyState: 1 }
    };
    return socket;
  };
  Either.prototype = Real.prototype;
  window.WebSocket = Object.assign(Either, {
    CONNECTING: 0,
    OPEN: 1,
    CLOSING: 2,
    CLOSED: 3
  }) as unknown as typeof WebSocket;

  let round = 0;
  const uuid = (index: number): string =>
    `GPU-00000000-0000-0000-0000-${String(index).padStart(12, '0')}`;
  const start = Date.now() / 1000;

  const status = (): Status => {
    const time = start + round * 0.2;
    const gpus = Array.from({ length: size.gpus }, (_, index): Gpu => ({
      ...like.gpu,
      uuid: uuid(index),
      index,
      name: 'NVIDIA H200',
      memory: 140 * GIB,
      reserved: (((index + round) % 7) + 1) * 16 * GIB,
      unleased: index % 5 ? 0 : GIB,
      free: 12 * GIB,
      used: (((index * 3 + round) % 11) + 1) * GIB,
      mine: index % 3 ? 0 : 16 * GIB,
      utilisation: ((index * 13 + round * 7) % 100) / 100,
      tasks: 12
    }));
    const first = (round * size.changes) % size.leases;
    const leases = Array.from({ length: size.leases }, (_, place): Lease => {
      const mine = place < size.mine;
      const queued = place >= size.leases - size.waiting;
      const changed =
        (place - first + size.leases) % size.leases < size.changes;
      return {
        ...like.lease,
        id: `lease-${place}`,
        environment: mine ? 'bench' : `person-${place % 40}`,
        mine,
        state: queued ? 'queued' : changed ? 'active' : 'idle',
        phase: queued ? 'queued' : 'held',
        activity: changed ? 'busy' : 'idle',
        name: `notebook-${place}.ipynb`,
        kernel_id: `kernel-${place}`,
        path: `projects/${place % 10}/notebook-${place}.ipynb`,
        pid: 1000 + place,
        gpus: queued
          ? []
          : [
              {
                ...like.lease.gpus[0],
                uuid: uuid(place % size.gpus),
                index: place % size.gpus,
                memory: 16 * GIB,
                measured: ((place + round) % 16) * GIB
              }
            ],
        requested: start - place,
        granted: queued ? null : start - place,
        since: start - place,
        age: time - start,
        position: queued ? place - size.leases + size.waiting + 1 : null
      };
    });
    const waits = { granted: 40, waited: 9, median: 33, longest: 240 };
    return {
      ...like.status,
      node: { ...like.status.node, time, started: start },
      environment: 'bench',
      admin: true,
      gpus,
      leases,
      queue: leases
        .filter(lease => lease.state === 'queued')
        .map((lease): Waiting => ({
          ...like.waiting,
          position: lease.position ?? 1,
          lease: lease.id,
          mine: lease.mine,
          environment: lease.environment,
          waiting: time - lease.requested,
          ahead: { interactive: (lease.position ?? 1) - 1, batch: 0 },
          message: '1 GPU asked, 0 free for you now.'
        })),
      waits: { window: 3600, interactive: waits, batch: waits }
    };
  };

  window.gpushareBench = {
    next: () => {
      round += 1;
      const message: Live = { type: 'status', status: status() };
      const data = JSON.stringify(message);
      const sent = performance.now();
      socket?.onmessage?.({ data });
      return new Promise(resolve => {
        // The frame callback comes before the paint, the message after it.
        requestAnimationFrame(() => {
          const channel = new MessageChannel();
          channel.port1.onmessage = () => resolve(performance.now() - sent);
          channel.port2.postMessage(null);
        });
      });
    }
  };
}
