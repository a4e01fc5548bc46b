/* eslint no-empty-pattern: off -- Playwright reads the names of what a fixture needs from it */
import { mkdir } from 'fs/promises';
import * as path from 'path';
import {
  Browser,
  BrowserContext,
  Page,
  expect,
  test as base
} from '@playwright/test';
import { Labs } from './labs';
import {
  openInLab,
  openInNotebook,
  OpenNotebook,
  writeNotebook
} from './notebook';
import { GpuShare, INodeOptions, PROJECT, Server } from './servers';

export { expect };
export type { GpuShare, OpenNotebook, Server };

interface IForAWorker {
  /** Real servers; started once, calmed after each test. */
  gpushare: GpuShare;

  /** The pages of JupyterLab that tests share. */
  labs: Labs;
}

interface IForATest {
  /** Set with `test.use` at the top of a file that needs another node manager. */
  node: INodeOptions;

  calm: void;

  /** Where notebooks are, in each person's folder. */
  tmpPath: string;

  /** JupyterLab in a browser of that person's own, as if it had just been opened. */
  labOf: (person: Server) => Promise<Page>;

  /** A page in a browser of that person's own, who is logged in there and nowhere yet. */
  pageOf: (person: Server) => Promise<Page>;

  /** Write a notebook with these cells into alice's folder and open it on her page. */
  open: (
    name: string,
    cells: string[],
    metadata?: object
  ) => Promise<OpenNotebook>;

  /** The same on a page of `labOf(person)`. */
  openOf: (
    person: Server,
    page: Page,
    name: string,
    cells: string[],
    metadata?: object
  ) => Promise<OpenNotebook>;

  /** Where PICTURES is set, take one: screenshots/NAME.png. */
  shoot: (page: Page, name: string) => Promise<void>;
}

/** Log in as a person does who follows the link that the server printed. */
async function logIn(context: BrowserContext, person: Server): Promise<void> {
  const answer = await context.request.get(
    `${person.url}api/status?token=${person.token}`
  );
  expect(answer.status()).toBe(200);
}

async function newContext(
  browser: Browser,
  person: Server
): Promise<BrowserContext> {
  const context = await browser.newContext({ baseURL: person.url });
  await logIn(context, person);
  return context;
}

/** `page` is alice's JupyterLab in the folder `tmpPath`, as if it had just been opened. */
export const test = base.extend<IForATest, IForAWorker>({
  node: [{}, { option: true }],

  gpushare: [
    async ({ playwright }, use, info) => {
      const logs = path.join(
        info.project.outputDir,
        `servers-${info.workerIndex}`
      );
      const gpushare = await GpuShare.start(playwright.request, logs);
      await use(gpushare);
      await gpushare.stop();
    },
    { scope: 'worker', timeout: 300_000 }
  ],

  labs: [
    async ({ browser }, use) => {
      const labs = new Labs(person => newContext(browser, person));
      await use(labs);
      await labs.close();
    },
    { scope: 'worker' }
  ],

  calm: [
    async ({ gpushare, labs, node }, use) => {
      await gpushare.useNode(node);
      await use();
      // First, so that nobody sees the kernels of open notebooks go.
      await labs.tidy();
      await gpushare.calm();
    },
    { auto: true, timeout: 60_000 }
  ],

  page: async ({ gpushare, labOf }, use) => use(await labOf(gpushare.alice)),

  tmpPath: async ({ gpushare }, use) => {
    for (const { root } of [gpushare.alice, gpushare.bob, gpushare.carol]) {
      await mkdir(path.join(root, PROJECT), { recursive: true });
    }
    await use(PROJECT);
  },

  labOf: async ({ labs, tmpPath }, use) => {
    await use(person => labs.of(person, tmpPath));
  },

  pageOf: async ({ browser }, use) => {
    const contexts: BrowserContext[] = [];
    await use(async person => {
      const context = await newContext(browser, person);
      contexts.push(context);
      return context.newPage();
    });
    for (const context of contexts) {
      await context.close();
    }
  },

  open: async ({ gpushare, openOf, page }, use) => {
    await use((name, cells, metadata) =>
      openOf(gpushare.alice, page, name, cells, metadata)
    );
  },

  openOf: async ({ tmpPath }, use) => {
    await use(async (person, page, name, cells, metadata) => {
      const file = `${tmpPath}/${name}`;
      await writeNotebook(person, file, cells, { ...metadata });
      return person.name === 'notebook'
        ? openInNotebook(page, person, file)
        : openInLab(page, file);
    });
  },

  shoot: async ({}, use) => {
    const folder = path.join(path.dirname(__dirname), 'screenshots');
    await use(async (page, name) => {
      if (!process.env.PICTURES) {
        return;
      }
      await page.screenshot({
        path: path.join(folder, `${name}.png`),
        animations: 'disabled',
        caret: 'hide'
      });
    });
  }
});
