import { ChildProcess, spawn } from 'child_process';
import { readdir, rm } from 'fs/promises';
import * as path from 'path';
import * as readline from 'readline';
import { APIRequest, APIRequestContext, expect } from '@playwright/test';

const FOLDER = path.dirname(__dirname);
/** The folder in which people work; like a person's own, since it is in pictures. */
export const PROJECT = 'project';

/** Milliseconds between two looks where something comes in a moment. */
const SOON = [50, 50, 100, 100, 200];

/** What servers.py says of one Jupyter server. */
interface IPlace {
  url: string;
  token: string;
  root: string;
  pid: number;
}

/** What servers.py says when all of them answer. */
interface IPlaces {
  servers: Record<'alice' | 'bob' | 'carol', IPlace>;
  node: { pid: number; socket: string };
  folder: string;
  logs: string;
}

/** The parts of the status document that the harness itself looks at. */
export interface IStatus {
  node: { simulated: boolean; time: number };
  environment: string;
  leases: {
    id: string;
    environment: string | null;
    mine: boolean;
    name: string | null;
    state: string;
    pinned_until: number | null;
  }[];
}

/** Memory in bytes, on each GPU. */
export interface IQuotaWish {
  gpus: number;
  memory?: number | null;
  weight?: number;
}

/** What the node manager of a test has that others have not. */
export interface INodeOptions {
  /** GPUs, as `jupyter gpushare node --simulate` takes them. */
  simulate?: string;
  /** Traits of its Policy. */
  policy?: Record<string, number>;
}

/** As most tests have it: what servers.py starts. */
const SIMULATE = '2x24GiB';

/** One Jupyter server of one person. */
export class Server implements IPlace {
  /** With a slash at the end. */
  readonly url: string;
  readonly token: string;
  /** The folder that its file browser shows. */
  readonly root: string;
  readonly pid: number;

  constructor(
    readonly name: string,
    place: IPlace,
    /** Speaks to the server with its token; paths are relative to its url. */
    readonly api: APIRequestContext
  ) {
    this.url = place.url;
    this.token = place.token;
    this.root = place.root;
    this.pid = place.pid;
  }

  /** The status that this person may see. */
  async status(): Promise<IStatus> {
    const answer = await this.api.get('gpushare/api/status');
    expect(answer.status(), await answer.text()).toBe(200);
    return answer.json();
  }

  /** So many are left: one that was released is there until a measurement finds its GPU empty. */
  async expectLeases(count: number): Promise<void> {
    await expect
      .poll(async () => (await this.status()).leases)
      .toHaveLength(count);
  }

  /** End all kernels, as the person would. */
  async endKernels(): Promise<void> {
    for (const kind of ['sessions', 'kernels']) {
      const answer = await this.api.get(`api/${kind}`);
      const all = (await answer.json()) as { id: string }[];
      await Promise.all(
        all.map(({ id }) => this.api.delete(`api/${kind}/${id}`))
      );
    }
  }
}

/** All servers of one worker. */
export class GpuShare {
  private constructor(
    private readonly process: ChildProcess,
    private readonly lines: AsyncIterator<string>,
    private readonly request: APIRequest,
    private readonly places: IPlaces,
    private readonly servers: Record<string, Server>
  ) {}

  /** Start them; their logs go into `logs`. */
  static async start(request: APIRequest, logs: string): Promise<GpuShare> {
    const child = spawn(
      process.env.PYTHON || 'python',
      [path.join(FOLDER, 'servers.py'), '--logs', logs, '--simulate', SIMULATE],
      { stdio: ['pipe', 'pipe', 'inherit'] }
    );
    const lines = readline
      .createInterface({ input: child.stdout! })
      [Symbol.asyncIterator]();
    const places = (await answer(lines)) as unknown as IPlaces;
    const gpushare = new GpuShare(child, lines, request, places, {});
    for (const [name, place] of Object.entries(places.servers)) {
      await gpushare.add(name, place);
    }
    await gpushare.connected();
    return gpushare;
  }

  /** A user: 2 GPUs, 16 GiB on each, weight 2. */
  get alice(): Server {
    return this.servers.alice;
  }

  /** A user: 1 GPU, 8 GiB. */
  get bob(): Server {
    return this.servers.bob;
  }

  /** An administrator: 1 GPU, 8 GiB. */
  get carol(): Server {
    return this.servers.carol;
  }

  /** Alice's Jupyter Notebook, with the folder of her JupyterLab; started for who asks first. */
  async notebook(): Promise<Server> {
    if (!this.servers.notebook) {
      const place = await this.command('start-notebook');
      await this.add('notebook', place as unknown as IPlace);
      await this.connected();
    }
    return this.servers.notebook;
  }

  get logs(): string {
    return this.places.logs;
  }

  /** `kill -9`. */
  killNode(): Promise<unknown> {
    return this.command('kill-node');
  }

  /** As a service manager does. */
  stopNode(): Promise<unknown> {
    return this.command('stop-node');
  }

  /** Return when it serves; the Jupyter servers find it by themselves. */
  startNode(): Promise<unknown> {
    return this.command('start-node');
  }

  /** Have a node manager with these options, which knows of no other test that wants others. */
  async useNode({ simulate, policy }: INodeOptions): Promise<void> {
    const wanted = JSON.stringify({
      simulate: simulate ?? SIMULATE,
      policy: Object.entries(policy ?? {}).map(pair => pair.join(' = '))
    });
    if (wanted !== this.wanted) {
      await this.command('new-node', wanted);
      this.wanted = wanted;
      await this.connected();
    }
  }

  /** As an administrator changes one trait of its Policy; undone after the test. */
  async restartNodeWith(trait: string, value: number): Promise<void> {
    await this.stopNode();
    await this.command('start-node', `${trait} = ${value}`);
    this.isChanged = true;
    await this.connected();
  }

  /** It hangs: SIGSTOP. */
  pauseNode(): Promise<unknown> {
    return this.command('pause-node');
  }

  resumeNode(): Promise<unknown> {
    return this.command('resume-node');
  }

  /** What a person does with the lease that is theirs: for how long it keeps its GPUs. */
  async keep(person: Server, seconds: number): Promise<void> {
    const { leases } = await person.status();
    const id = leases.find(lease => lease.mine)?.id;
    const answer = await person.api.post(`gpushare/api/leases/${id}/pin`, {
      data: { seconds }
    });
    expect(answer.status(), await answer.text()).toBe(200);
  }

  /** As the administrator does; undone after the test. */
  async setQuota(environment: string, quota: IQuotaWish): Promise<void> {
    const answer = await this.carol.api.put(
      `gpushare/api/quotas/${environment}`,
      { data: quota }
    );
    expect(answer.status(), await answer.text()).toBe(200);
  }

  /** Wait until every Jupyter server is connected to the node manager. */
  async connected(): Promise<void> {
    for (const server of Object.values(this.servers)) {
      await expect
        .poll(
          async () => (await server.api.get('gpushare/api/status')).status(),
          {
            message: `${server.name}'s connection to the node manager`,
            intervals: SOON
          }
        )
        .toBe(200);
    }
  }

  /** After a test: no kernels, no leases, no files, the quotas of the configuration. */
  async calm(): Promise<void> {
    if (this.nodeIs === 'paused') {
      await this.resumeNode();
    }
    if (this.isChanged) {
      this.isChanged = false;
      await this.stopNode();
    }
    if (this.nodeIs === 'down') {
      await this.startNode();
    }
    await this.connected();
    const servers = Object.values(this.servers);
    await Promise.all(servers.map(server => server.endKernels()));
    await expect
      .poll(async () => (await this.carol.status()).leases, {
        message: 'leases that are left when all kernels have ended',
        intervals: SOON
      })
      .toEqual([]);
    for (const { root } of [this.alice, this.bob, this.carol]) {
      // The folder itself stays: pages that stay, too, show it.
      for (const folder of [root, path.join(root, PROJECT)]) {
        for (const name of await readdir(folder).catch(() => [])) {
          if (folder !== root || name !== PROJECT) {
            await rm(path.join(folder, name), { recursive: true, force: true });
          }
        }
      }
    }
    const quotas = await (
      await this.carol.api.get('gpushare/api/quotas')
    ).json();
    for (const { environment, source } of quotas.quotas) {
      if (source === 'override') {
        await this.carol.api.delete(`gpushare/api/quotas/${environment}`);
      }
    }
  }

  /** Stop everything; returns when no process is left. */
  async stop(): Promise<void> {
    await Promise.all(Object.values(this.servers).map(s => s.api.dispose()));
    const ended = new Promise(resolve => this.process.once('exit', resolve));
    if (this.process.exitCode === null) {
      this.process.stdin!.end();
      await ended;
    }
  }

  private async command(
    name:
      | `${'kill' | 'stop' | 'start' | 'pause' | 'resume' | 'new'}-node`
      | 'start-notebook',
    more = ''
  ): Promise<Record<string, unknown>> {
    this.process.stdin!.write(`${name} ${more}\n`);
    const said = await answer(this.lines);
    if (name !== 'start-notebook') {
      this.nodeIs =
        name === 'pause-node'
          ? 'paused'
          : name === 'kill-node' || name === 'stop-node'
            ? 'down'
            : 'up';
    }
    return said;
  }

  private async add(name: string, place: IPlace): Promise<void> {
    const api = await this.request.newContext({
      baseURL: place.url,
      extraHTTPHeaders: { Authorization: `token ${place.token}` }
    });
    this.servers[name] = new Server(name, place, api);
  }

  private wanted = JSON.stringify({ simulate: SIMULATE, policy: [] });
  private nodeIs: 'up' | 'paused' | 'down' = 'up';
  private isChanged = false;
}

async function answer(
  lines: AsyncIterator<string>
): Promise<Record<string, unknown>> {
  const { value, done } = await lines.next();
  if (done) {
    throw new Error('servers.py ended');
  }
  const said = JSON.parse(value);
  if (said.ok === false) {
    throw new Error(said.error);
  }
  return said;
}
