/* eslint no-empty-pattern: off -- Playwright reads the names of what a fixture needs from it */
import { ChildProcess, spawn } from 'child_process';
import * as path from 'path';
import * as readline from 'readline';
import { Browser, BrowserContext, Page, test as base } from '@playwright/test';

const FOLDER = path.dirname(__dirname);

/** What hub.py does on demand. */
type Wish =
  | { do: 'kernel'; who: string }
  | {
      do: 'ask';
      who: string;
      name: string;
      gpus?: number;
      until_held?: boolean;
    }
  | { do: 'calm' | 'kill_node' | 'start_node' };

/** What pool.py does on demand. */
type PoolWish =
  | { do: 'server'; who: string; kind: string }
  | { do: 'notebook'; who: string; name: string; cells: string[] }
  | { do: 'take'; who: string; host: string; name: string }
  | { do: 'verb'; words: string[] };

type IState = Awaited<ReturnType<BrowserContext['storageState']>>;

/** A real JupyterHub: alice and bob are students, carol is an administrator. */
export class Hub<W = Wish> {
  private constructor(
    private readonly process: ChildProcess,
    private readonly lines: AsyncIterator<string>,
    readonly url: string,
    /** Why it cannot run on this machine; empty: it runs. */
    readonly impossible: string
  ) {}

  /** Of those who have logged in. */
  readonly cookies = new Map<string, IState>();

  /** `program`: hub.py, or pool.py for one with several hosts. */
  static async start<W = Wish>(program = 'hub.py'): Promise<Hub<W>> {
    const child = spawn(
      process.env.PYTHON || 'python',
      [path.join(FOLDER, program)],
      { stdio: ['pipe', 'pipe', 'inherit'] }
    );
    const lines = readline
      .createInterface({ input: child.stdout! })
      [Symbol.asyncIterator]();
    const { url = '', impossible = '' } = await answer(lines);
    return new Hub(child, lines, url as string, impossible as string);
  }

  async do(wish: W): Promise<void> {
    this.process.stdin!.write(`${JSON.stringify(wish)}\n`);
    await answer(this.lines);
  }

  async stop(): Promise<void> {
    const ended = new Promise(resolve => this.process.once('exit', resolve));
    if (this.process.exitCode === null) {
      this.process.stdin!.end();
      await ended;
    }
  }
}

async function answer(
  lines: AsyncIterator<string>
): Promise<Record<string, unknown>> {
  const { value, done } = await lines.next();
  if (done) {
    throw new Error('the servers ended');
  }
  const said = JSON.parse(value);
  if (said.ok === false) {
    throw new Error(said.error);
  }
  return said;
}

interface IForATest {
  /** The GPU pages of the pool in a browser of that person's own. */
  poolPageOf: (who: string) => Promise<Page>;

  /** The GPU pages in a browser of that person's own, who logged in at the Hub for it. */
  gpusOf: (who: string) => Promise<Page>;

  /** Where PICTURES is set, take one: screenshots/NAME.png. */
  shoot: (page: Page, name: string) => Promise<void>;
}

/**
 * Log in at the Hub's own form, as a person who was sent there does. Another browser of theirs has
 * the cookies of the first.
 */
async function enter<W>(
  browser: Browser,
  hub: Hub<W>,
  who: string
): Promise<Page> {
  const storageState = hub.cookies.get(who);
  const context = await browser.newContext({ baseURL: hub.url, storageState });
  const page = await context.newPage();
  await page.goto('/services/gpushare/');
  if (storageState) {
    return page;
  }
  await page.getByLabel('Username').fill(who);
  await page.getByLabel('Password').fill('any');
  await page.getByRole('button', { name: /sign in/i }).click();
  await page.waitForURL('**/services/gpushare/');
  hub.cookies.set(who, await context.storageState());
  return page;
}

interface IForAWorker {
  hub: Hub;

  /** A Hub with a pool: host a has one GPU of 24 GiB, host b three of 40 GiB. */
  pool: Hub<PoolWish>;
}

export const test = base.extend<IForATest, IForAWorker>({
  hub: [
    async ({}, use) => {
      const hub = await Hub.start();
      await use(hub);
      await hub.stop();
    },
    { scope: 'worker', timeout: 300_000 }
  ],

  pool: [
    async ({}, use) => {
      const pool = await Hub.start<PoolWish>('pool.py');
      await use(pool);
      await pool.stop();
    },
    { scope: 'worker', timeout: 300_000 }
  ],

  poolPageOf: async ({ browser, pool }, use) => {
    const pages: Page[] = [];
    await use(async who => {
      pages.push(await enter(browser, pool, who));
      return pages[pages.length - 1];
    });
    for (const page of pages) {
      await page.context().close();
    }
  },

  gpusOf: async ({ browser, hub }, use) => {
    const pages: Page[] = [];
    await use(async who => {
      const page = await enter(browser, hub, who);
      pages.push(page);
      return page;
    });
    for (const page of pages) {
      await page.context().close();
    }
    await hub.do({ do: 'calm' });
  },

  shoot: async ({}, use) => {
    await use(async (page, name) => {
      if (!process.env.PICTURES) {
        return;
      }
      await page.screenshot({
        path: path.join(FOLDER, 'screenshots', `${name}.png`),
        animations: 'disabled',
        fullPage: true
      });
    });
  }
});
