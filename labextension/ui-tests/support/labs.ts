import { BrowserContext, Page, expect } from '@playwright/test';
import type { Server } from './servers';

const VIEWPORT = { width: 1280, height: 800 };
const THEME = 'JupyterLab Light';

/** What a page that is open for a while has kept, and how it is taken back. */
interface IKept {
  /** The panel's sections, by name: whether they are open. */
  sections: Record<string, boolean>;
}

/**
 * One page of JupyterLab for each person, for all tests of a worker: its start takes longer than
 * most tests. Between two of them it is made as it was when it was new. A test that needs one of
 * its own, since it stands in for the server or loads it anew, has `pageOf`. (After a test that
 * fails Playwright starts another worker.)
 */
export class Labs {
  constructor(
    private readonly newContext: (person: Server) => Promise<BrowserContext>
  ) {}

  /** That person's page, in that folder. */
  async of(person: Server, folder: string): Promise<Page> {
    let page = this.pages.get(person);
    if (!page) {
      const context = await this.newContext(person);
      page = await context.newPage();
      this.pages.set(person, page);
      await loadLab(page, `${person.url}lab/tree/${folder}?reset`);
    }
    // It has heard of what the test before has left, which is nothing.
    await expect(page.locator('.jp-gpushare-status-item')).toHaveText(
      /^0\/\d+$/
    );
    if (!this.kept.has(page)) {
      this.kept.set(page, { sections: await page.evaluate(sections) });
    }
    this.used.add(page);
    return page;
  }

  /** Make the pages that a test has used as they were. */
  async tidy(): Promise<void> {
    const used = [...this.used];
    this.used.clear();
    await Promise.all(
      used.map(async page => {
        await page.setViewportSize(VIEWPORT);
        await page.mouse.move(0, 0);
        // A question that a test has left, as whether to save.
        while (await page.locator('.jp-Dialog').first().isVisible()) {
          await page.keyboard.press('Escape');
        }
        await page.evaluate(tidy, {
          theme: THEME,
          ...this.kept.get(page)!
        });
        await expect(page.locator('.Toastify__toast')).toHaveCount(0);
      })
    );
  }

  async close(): Promise<void> {
    for (const page of this.pages.values()) {
      await page.context().close();
    }
    this.pages.clear();
  }

  private readonly pages = new Map<Server, Page>();
  private readonly kept = new Map<Page, IKept>();
  private readonly used = new Set<Page>();
}

/** Go to JupyterLab and wait until it has started, with nothing but its launcher. */
export async function loadLab(page: Page, url: string): Promise<void> {
  await page.goto(url, { waitUntil: 'commit' });
  await page.waitForFunction(() => 'jupyterapp' in window, undefined, {
    timeout: 90_000
  });
  // A click before this would be undone by the layout that is restored.
  await page.evaluate(() => {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    return (window as any).jupyterapp.restored.then(() => undefined);
  });
  await expect(page.locator('#jupyterlab-splash')).toHaveCount(0);
  await expect(page.locator('.jp-Launcher')).toBeVisible();
}

function sections(): Record<string, boolean> {
  return Object.fromEntries(
    [...document.querySelectorAll('.jp-gpushare-panel [data-section]')].map(
      node => [
        (node as HTMLElement).dataset.section,
        node.querySelector('[aria-expanded="true"]') !== null
      ]
    )
  );
}

/** Runs in the page. */
async function tidy({
  theme,
  sections
}: IKept & { theme: string }): Promise<void> {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  const app = (window as any).jupyterapp;
  const { commands, shell } = app;
  for (const area of ['main', 'down']) {
    for (const widget of [...shell.widgets(area)]) {
      // Nobody is asked whether to save: the files are removed.
      widget.dispose();
    }
  }
  const panel = document.querySelector('.jp-gpushare-panel')!;
  for (const node of panel.querySelectorAll<HTMLElement>('[data-section]')) {
    const head = node.querySelector<HTMLElement>('.jp-gpushare-section-title')!;
    const open = head.getAttribute('aria-expanded') === 'true';
    if (open !== (sections[node.dataset.section!] ?? open)) {
      head.click();
    }
  }
  for (const details of panel.querySelectorAll('details')) {
    details.open = false;
  }
  for (const shown of panel.querySelectorAll<HTMLElement>(
    '[data-gpu] button[aria-expanded="true"]'
  )) {
    shown.click();
  }
  shell.activateById('filebrowser');
  shell.collapseRight();
  if (document.body.dataset.jpThemeName !== theme) {
    await commands.execute('apputils:change-theme', { theme });
  }
  await commands.execute('apputils:dismiss-notification', {});
  (document.activeElement as HTMLElement | null)?.blur();
}
