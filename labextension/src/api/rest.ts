import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type {
  DailyUsage,
  Kernels,
  LeaseAnswer,
  MovedKernel,
  Readings,
  Server,
  Status
} from './types';
import { BadAnswer, validated } from './validate';

/** Why a request did not give what was asked. */
export enum Failure {
  /** The Jupyter server itself does not answer. */
  Offline = 'offline',
  /** The server does not know gpushare: the server extension is not enabled. */
  NotEnabled = 'not-enabled',
  /** Not logged in, or not allowed. */
  Forbidden = 'forbidden',
  /** The server extension is there, the node manager is not. */
  NodeDown = 'node-down',
  /** Something answered in a way that we do not understand. */
  BadAnswer = 'bad-answer',
  /** gpushare refused; its message says why. */
  Refused = 'refused'
}

/** A request that failed. `message` is for people; it is gpushare's own where it gave one. */
export class ApiError extends Error {
  constructor(
    readonly failure: Failure,
    message: string,
    /** gpushare's word for programs, where it gave one. */
    readonly reason: string | null = null
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

/** The REST interface of the server extension, one method an operation. */
export class GpuShareApi {
  constructor(
    readonly serverSettings: ServerConnection.ISettings = ServerConnection.makeSettings()
  ) {}

  async status(): Promise<Status> {
    return validated('Status', await this._ask('GET', 'status'));
  }

  /** The GPUs' utilisation and memory over the last `since` seconds. */
  async readings(since: number): Promise<Readings> {
    return validated('Readings', await this._ask('GET', 'readings', { since }));
  }

  /** The kernels of this server that get no GPU. */
  async kernels(): Promise<Kernels> {
    return validated('Kernels', await this._ask('GET', 'kernels'));
  }

  /** Start a kernel again on another host of the pool; its variables are lost. */
  async startOn(kernel: string, host: string): Promise<MovedKernel> {
    return validated(
      'MovedKernel',
      await this._ask('POST', ['kernels', kernel, 'host'], {}, { host })
    );
  }

  /** One GPU's memory, turns and sensors over the last `since` seconds, as finely as is kept. */
  async gpuReadings(gpu: string, since: number): Promise<Readings> {
    return validated(
      'Readings',
      await this._ask('GET', 'readings', { gpu, since, step: 0 })
    );
  }

  /** My GPU-seconds and the node's by day of the node's zone, as its budgets; oldest first. */
  async dailyUsage(days: number): Promise<DailyUsage> {
    return validated(
      'DailyUsage',
      await this._ask('GET', 'usage/daily', { days })
    );
  }

  /** The model servers that I may use: mine, and those shared with a group of mine. */
  async servers(): Promise<Server[]> {
    return validated('Servers', await this._ask('GET', 'servers')).servers;
  }

  /** Give a lease of mine back, or leave the queue. */
  async release(lease: string): Promise<LeaseAnswer> {
    return validated(
      'LeaseState',
      await this._ask('DELETE', ['leases', lease])
    );
  }

  /** Give several leases of mine back; one that has ended meanwhile is given back. */
  async releaseAll(leases: readonly string[]): Promise<void> {
    const answers = await Promise.allSettled(
      leases.map(lease => this.release(lease))
    );
    for (const answer of answers) {
      if (
        answer.status === 'rejected' &&
        !(
          answer.reason instanceof ApiError &&
          answer.reason.reason === 'unknown_lease'
        )
      ) {
        throw answer.reason;
      }
    }
  }

  /** Keep an idle lease's GPUs for `seconds`: 0 is no longer, absent the usual time. */
  async keep(lease: string, seconds?: number): Promise<LeaseAnswer> {
    return validated(
      'LeaseState',
      await this._ask(
        'POST',
        ['leases', lease, 'pin'],
        {},
        seconds === undefined ? {} : { seconds }
      )
    );
  }

  private async _ask(
    method: string,
    path: string | string[],
    query: Record<string, number | string> = {},
    body?: object
  ): Promise<unknown> {
    const parts = typeof path === 'string' ? path.split('/') : path;
    const url =
      URLExt.join(
        this.serverSettings.baseUrl,
        'gpushare/api',
        ...parts.map(encodeURIComponent)
      ) + URLExt.objectToQueryString(query);
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(
        url,
        { method, ...(body ? { body: JSON.stringify(body) } : {}) },
        this.serverSettings
      );
    } catch (error) {
      throw new ApiError(
        Failure.Offline,
        error instanceof Error ? error.message : String(error)
      );
    }
    const answer = await jsonOf(response);
    if (response.ok && answer !== undefined) {
      return answer;
    }
    throw failureOf(response.status, answer);
  }
}

async function jsonOf(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch {
    return undefined; // an HTML page of a proxy, or of a server without gpushare
  }
}

/** Say which failure an answer is. Pure. */
export function failureOf(status: number, answer: unknown): ApiError {
  let said: { reason: string; message: string } | null = null;
  try {
    said = validated('Error', answer);
  } catch (error) {
    if (!(error instanceof BadAnswer)) {
      throw error;
    }
  }
  const message = said?.message ?? `HTTP ${status}`;
  const reason = said?.reason ?? null;
  if (status === 403 || status === 401) {
    return new ApiError(Failure.Forbidden, message, reason);
  }
  if (status === 404 && said === null) {
    return new ApiError(Failure.NotEnabled, message, reason);
  }
  if (said === null) {
    return new ApiError(Failure.BadAnswer, message, reason);
  }
  if (status === 503 || status === 504) {
    return new ApiError(Failure.NodeDown, message, reason);
  }
  return new ApiError(
    status === 502 ? Failure.BadAnswer : Failure.Refused,
    message,
    reason
  );
}
