/** Whole documents with what a test does not care about filled in. */
import type { Gpu, Lease, Quota, Said, Status, Waiting } from '../../api/types';

export const GIB = 2 ** 30;

/** A fact, as the node manager says it. */
export function aSaid(
  about: Said['about'],
  text: string,
  given: Partial<Said> = {}
): Said {
  return { about, tone: 'plain', text, ...given };
}

export function aGpu(index: number, given: Partial<Gpu> = {}): Gpu {
  return {
    uuid: `GPU-0000000${index}`,
    index,
    name: 'Simulated 24 GiB',
    memory: 24 * GIB,
    reserved: 0,
    unleased: 0,
    free: 24 * GIB,
    used: 0,
    mine: 0,
    utilisation: 0,
    tasks: 0,
    health: 'ok',
    problem: null,
    squatters: [],
    share_mode: 'space',
    shared: 0,
    persistent: 0,
    temporary: 0,
    in_turns: false,
    lifted: 0,
    ...given
  };
}

export function aLease(id: string, given: Partial<Lease> = {}): Lease {
  return {
    id,
    environment: 'alice',
    mine: true,
    state: 'active',
    phase: 'held',
    activity: 'busy',
    name: 'train.ipynb',
    kind: 'kernel',
    kernel_id: `kernel-of-${id}`,
    path: 'work/train.ipynb',
    pid: 4711,
    gpus: [
      {
        uuid: 'GPU-00000000',
        index: 0,
        memory: 8 * GIB,
        measured: GIB,
        persistent: null,
        temporary: null,
        cache: null,
        limit: 8 * GIB
      }
    ],
    asked: { gpus: 1, memory: null },
    priority_class: 'interactive',
    requested: 1000,
    granted: 1001,
    since: 1001,
    age: 60,
    says: [
      aSaid('what', given.job ?? given.path?.split('/').pop() ?? 'train.ipynb'),
      aSaid('state', `${given.state ?? 'active'} for a while`)
    ],
    position: null,
    reason: null,
    kept: null,
    turn: null,
    turn_since: null,
    turn_place: null,
    overran: false,
    live_limits: null,
    over_limit: null,
    stall: null,
    rung: null,
    parked_memory: null,
    warning: null,
    pinned_until: null,
    ability: null,
    ...given
  };
}

/** A lease that waits. */
export function aQueuedLease(
  id: string,
  position: number,
  given: Partial<Lease> = {}
): Lease {
  return aLease(id, {
    state: 'queued',
    phase: 'queued',
    activity: 'idle',
    gpus: [],
    granted: null,
    position,
    ...given
  });
}

export function aWaiting(
  position: number,
  given: Partial<Waiting> = {}
): Waiting {
  return {
    position,
    lease: null,
    mine: false,
    environment: null,
    priority_class: 'interactive',
    gpus: 1,
    memory: null,
    waiting: 30,
    message: null,
    reason: null,
    ahead: { interactive: position - 1, batch: 0 },
    ...given
  };
}

export function aQuota(given: Partial<Quota> = {}): Quota {
  return {
    gpus: 2,
    memory: 8 * GIB,
    weight: 1,
    source: 'default',
    used_gpus: 0,
    budget: null,
    ...given
  };
}

export function aStatus(given: Partial<Status> = {}): Status {
  const none = { granted: 0, waited: 0, median: null, longest: null };
  return {
    node: {
      name: 'gpuhost',
      version: '0.1.0',
      simulated: true,
      problem: null,
      time: 2000,
      started: 900,
      max_tasks_per_gpu: 4,
      heartbeat_timeout: 60,
      parked_memory: 0,
      parked_memory_limit: null,
      notify_before: 60,
      pin_limit: 7200,
      keep_for: 900,
      quantum: 10
    },
    environment: 'alice',
    admin: false,
    quota: aQuota(),
    gpus: [aGpu(0), aGpu(1)],
    leases: [],
    queue: [],
    waits: { window: 3600, interactive: none, batch: none },
    says: [],
    ...given
  };
}
