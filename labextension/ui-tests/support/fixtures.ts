/* eslint no-empty-pattern: off -- Playwright reads the names of what a fixture needs from it */
import { mkdir } from 'fs/promises';
import * as path from 'path';
import {
  IJupyterLabPageFixture,
  galata,
  test as base
} from '@jupyterlab/galata';
import * as galataUtils from '@jupyterlab/galata/lib/utils';
import { Browser, BrowserContext, Page, expect } from '@playwright/test';
import {
  openInLab,
  openInNotebook,
  OpenNotebook,
  writeNotebook
} from './notebook';
import { GpuShare, INodeOptions, Server } from './servers';

// Galata gives up after 15 s, which a page takes on a machine with more to do.
const { waitForCondition } = galataUtils;
Object.assign(galataUtils, {
  waitForCondition: (condition: () => boolean, timeout = 60_000) =>
    waitForCondition(condition, timeout)
});

export { expect };
export type { GpuShare, OpenNotebook, Server };

interface IForAWorker {
  /** Set with `test.use` at the top of a file that needs another node manager. */
  node: INodeOptions;

  /** Real servers; started once, calmed after each test. */
  gpushare: GpuShare;
}

interface IForATest {
  calm: void;

  /** A page of JupyterLab in a browser of that person's own. */
  labOf: (person: Server) => Promise<IJupyterLabPageFixture>;

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

  /** Take a picture: screenshots/NAME.png. */
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

/** Galata's test; `page` is alice's JupyterLab in the folder `tmpPath`. */
export const test = base.extend<IForATest, IForAWorker>({
  node: [{}, { option: true, scope: 'worker' }],

  gpushare: [
    async ({ playwright, node }, use, info) => {
      const logs = path.join(
        info.project.outputDir,
        `servers-${info.workerIndex}`
      );
      const gpushare = await GpuShare.start(playwright.request, logs, node);
      await use(gpushare);
      await gpushare.stop();
    },
    { scope: 'worker', timeout: 300_000 }
  ],

  calm: [
    async ({ gpushare }, use) => {
      await use();
      await gpushare.calm();
    },
    { auto: true, timeout: 60_000 }
  ],

  // Galata's addresses have no slash at the end.
  baseURL: async ({ gpushare }, use) => use(gpushare.alice.url.slice(0, -1)),
  request: async ({ gpushare }, use) => use(gpushare.alice.api),
  context: async ({ browser, gpushare }, use) => {
    const context = await newContext(browser, gpushare.alice);
    await use(context);
    await context.close();
  },
  // The servers' own lists; `calm` tidies up.
  kernels: async ({}, use) => use(null),
  sessions: async ({}, use) => use(null),
  terminals: async ({}, use) => use(null),
  mockUser: false,

  // Like a person's folder (it is in pictures); `calm` removes it.
  tmpPath: async ({ gpushare }, use) => {
    for (const { root } of [gpushare.alice, gpushare.bob, gpushare.carol]) {
      await mkdir(path.join(root, 'project'), { recursive: true });
    }
    await use('project');
  },

  labOf: async (
    { pageOf, mockConfig, mockSettings, tmpPath, waitForApplication },
    use
  ) => {
    await use(async person =>
      galata.initTestPage(
        '/lab',
        true,
        person.url.slice(0, -1),
        mockConfig,
        mockSettings,
        true,
        false,
        await pageOf(person),
        null,
        null,
        tmpPath,
        waitForApplication,
        null
      )
    );
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
      await page.screenshot({
        path: path.join(folder, `${name}.png`),
        animations: 'disabled',
        caret: 'hide'
      });
    });
  }
});
