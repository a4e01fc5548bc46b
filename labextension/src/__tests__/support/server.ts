/** A server that answers as a test says, at the border where the network would be. */
import { ServerConnection } from '@jupyterlab/services';

import { GpuShareApi } from '../../api/rest';

export interface IAsked {
  readonly method: string;
  /** What follows `gpushare/api/`, with the query. */
  readonly path: string;
  readonly body: unknown;
}

export class FakeServer {
  readonly asked: IAsked[] = [];
  readonly api: GpuShareApi;

  constructor() {
    this.api = new GpuShareApi(
      ServerConnection.makeSettings({
        baseUrl: 'http://server.test/user/alice/',
        wsUrl: 'ws://server.test/user/alice/',
        fetch: (input, init) => this._answer(input, init)
      })
    );
  }

  /** Answer a path (without its query) from now on; a string is sent as it is, not as JSON. */
  on(method: string, path: string, status: number, body: unknown): void {
    this._answers.set(`${method} ${path}`, { status, body });
  }

  /** How often it was tried, reachable or not. */
  attempts = 0;

  /** Be unreachable. */
  down = false;

  private async _answer(
    input: RequestInfo | URL,
    init?: RequestInit
  ): Promise<Response> {
    this.attempts += 1;
    if (this.down) {
      throw new TypeError('Failed to fetch');
    }
    const request = input instanceof Request ? input : null;
    const url = new URL(request?.url ?? String(input));
    const method = init?.method ?? request?.method ?? 'GET';
    const path = url.pathname.replace('/user/alice/gpushare/api/', '');
    const text =
      (typeof init?.body === 'string' ? init.body : await request?.text()) ||
      '';
    this.asked.push({
      method,
      // without the number by which JupyterLab gets past caches
      path: path + url.search.replace(/[?&]\d+$/, ''),
      body: text ? JSON.parse(text) : null
    });
    const answer = this._answers.get(`${method} ${path}`) ?? {
      status: 404,
      body: '<html>Not found</html>'
    };
    const isText = typeof answer.body === 'string';
    return new Response(
      isText ? (answer.body as string) : JSON.stringify(answer.body),
      {
        status: answer.status,
        headers: { 'Content-Type': isText ? 'text/html' : 'application/json' }
      }
    );
  }

  private readonly _answers = new Map<
    string,
    { status: number; body: unknown }
  >();
}
