import { expect, test } from '../support/fixtures';
import { GpuPanel, toolbarItem } from '../support/panel';

test('Jupyter Notebook takes leases for the same person, and has the toolbar item and the panel', async ({
  gpushare,
  openOf,
  pageOf,
  shoot
}) => {
  const server = await gpushare.notebook();
  const page = await pageOf(server);
  const complaints: string[] = [];
  page.on('console', message => {
    if (message.type() === 'error' && /gpushare/.test(message.text())) {
      complaints.push(message.text());
    }
  });
  const notebook = await openOf(server, page, 'seven.ipynb', ['import torch']);
  await expect(toolbarItem(page)).toHaveText('No GPU');
  await notebook.result(0);
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB · idle');
  const { leases } = await gpushare.alice.status();
  expect(leases).toHaveLength(1);
  expect(leases[0]).toMatchObject({ environment: 'alice', mine: true });

  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: 'Show GPUs' }).click();
  const panel = await GpuPanel.open(page);
  await panel.expectGpus('1 of 2');
  await expect(panel.lease('seven.ipynb')).toContainText('GPU 0');
  await shoot(page, 'notebook7');

  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: 'Release GPU' }).click();
  await expect(toolbarItem(page)).toHaveText('No GPU');
  expect(complaints).toEqual([]);
});

test('an administrator has the pages in a tab of the browser', async ({
  gpushare,
  pageOf
}) => {
  const page = await pageOf(gpushare.carol);
  await page.goto(`${gpushare.carol.url}tree`);
  const panel = await GpuPanel.open(page);
  const opened = page.context().waitForEvent('page');
  await panel.root
    .getByRole('button', { name: 'Quotas, leases and events of everybody' })
    .click();
  const admin = await opened;
  await expect(
    admin.getByRole('heading', { name: 'GPU administration' })
  ).toBeVisible();
  await admin.getByRole('link', { name: 'Edit the quota of alice' }).click();
  await expect(admin.getByLabel('GPUs', { exact: true })).toHaveValue('2');
});
