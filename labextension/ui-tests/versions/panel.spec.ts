import type { Page } from '@playwright/test';
import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { execute, GpuPanel, toolbarItem } from '../support/panel';

// Without Galata's page: its helpers are those of the newest JupyterLab.
const TAKE = '%gpushare request --memory 4GiB';

/** What the page complains of that has to do with us. */
function complaintsOf(page: Page): string[] {
  const complaints: string[] = [];
  page.on('console', message => {
    if (message.type() === 'error' && /gpushare/.test(message.text())) {
      complaints.push(message.text());
    }
  });
  page.on('pageerror', error => {
    // (Notebook 7.2 has errors of its own.)
    if (/gpushare/.test(error.stack ?? '')) {
      complaints.push(String(error));
    }
  });
  return complaints;
}

test('the panel, the toolbar and the commands work in JupyterLab', async ({
  gpushare,
  openOf,
  pageOf,
  shoot,
  tmpPath
}) => {
  test.setTimeout(240_000);
  const page = await pageOf(gpushare.alice);
  const complaints = complaintsOf(page);
  await page.goto(`${gpushare.alice.url}lab?reset`);
  await page.waitForFunction(() => 'jupyterapp' in window);
  const version = await page.evaluate(async () => {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    const app = (window as any).jupyterapp;
    await app.restored;
    return app.version;
  });
  expect(version).toBe(process.env.JUPYTERLAB_VERSION);
  expect(tmpPath).toBe('project');

  const panel = await GpuPanel.open(page);
  await panel.expectGpus('0 of 2');
  const notebook = await openOf(gpushare.alice, page, 'first.ipynb', [TAKE]);
  await expect(toolbarItem(page)).toHaveText('No GPU');
  await notebook.result(0);
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 4 GiB · idle');
  const row = panel.lease('first.ipynb');
  await expect(row).toContainText(/Idle for .* · GPU 0/);
  await row
    .getByRole('button', { name: 'Park the GPU of first.ipynb' })
    .click();
  await expect(
    page.locator('.Toastify__toast').filter({ hasText: 'variables are kept' })
  ).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('Parked');
  await shoot(page, `versions-${version}`);
  await expectAccessible(page, '.jp-gpushare-panel');
  await row.getByRole('button', { name: /^Resume/ }).click();
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 4 GiB · idle');
  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: 'Release GPU' }).click();
  await expect(toolbarItem(page)).toHaveText('No GPU');

  await panel
    .section('leases')
    .getByRole('button', { name: /^Ask for GPUs/ })
    .click();
  const form = page.getByRole('dialog');
  await expect(form).toContainText('No other request waits now.');
  await form.getByLabel('GPUs', { exact: true }).fill('2');
  await form.getByRole('button', { name: 'Request' }).click();
  // As much memory as the notebook has asked for before.
  await expect(toolbarItem(page)).toHaveText(
    'GPU 0, GPU 1 · 4 GiB each · idle'
  );

  await execute(page, 'gpushare:show-history');
  await expect(page.locator('.jp-gpushare-page:visible')).toContainText(
    'GPU-hours in these'
  );
  await execute(page, 'running:show-panel');
  await expect(page.locator('#jp-running-sessions')).toContainText(
    'GPU Leases'
  );
  expect(complaints).toEqual([]);
});

test('so do those that Jupyter Notebook has', async ({
  gpushare,
  openOf,
  pageOf,
  tmpPath
}) => {
  expect(tmpPath).toBe('project');
  const server = await gpushare.notebook();
  const page = await pageOf(server);
  const complaints = complaintsOf(page);
  const notebook = await openOf(server, page, 'second.ipynb', [TAKE]);
  await notebook.result(0);
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 4 GiB · idle');
  const panel = await GpuPanel.open(page);
  await expect(panel.lease('second.ipynb')).toContainText('GPU 0');
  const version = await page.evaluate(
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    () => (window as any).jupyterapp.version
  );
  expect(version).toBe(process.env.NOTEBOOK_VERSION);
  expect(complaints).toEqual([]);
});
