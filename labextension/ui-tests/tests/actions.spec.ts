import { readFile } from 'fs/promises';
import * as path from 'path';
import { Locator, Page } from '@playwright/test';
import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { execute, GpuPanel, toolbarItem } from '../support/panel';

/** What a notification says, now or in a moment. */
function toast(page: Page, words: string | RegExp): Locator {
  return page.locator('.Toastify__toast').filter({ hasText: words });
}

async function choose(page: Page, item: string): Promise<void> {
  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: item }).click();
}

test('a form asks for GPUs; the panel parks and resumes; refusals are told; the notebook stays as it was', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('asks.ipynb', [
    'kept = 42',
    'kept',
    'input("until something is typed")'
  ]);
  await notebook.result(0);
  await execute(page, 'docmanager:save');
  const file = path.join(gpushare.alice.root, 'project', 'asks.ipynb');
  const before = await readFile(file, 'utf8');

  await choose(page, 'Request GPU…');
  const form = page.getByRole('dialog');
  await expect(form).toContainText('Request GPUs for asks.ipynb');
  await expect(form).toContainText('GPU 0: 24 GiB free');
  await expect(form).toContainText('GPU 1: 24 GiB free');
  await expect(form).toContainText('Quota2 GPUs, 16 GiB on each');
  await expect(form).toContainText('A size with its unit');
  const request = form.getByRole('button', { name: 'Request' });
  await form.getByLabel('GPUs', { exact: true }).fill('0');
  await expect(request).toBeDisabled();
  await form.getByLabel('GPUs', { exact: true }).fill('2');
  await expect(request).toBeEnabled();
  await form.getByLabel('Memory on each').fill('plenty');
  await expect(request).toBeDisabled();
  await expectAccessible(page, '.jp-gpushare-request');
  // What cannot be asked for is not asked: the form stays, with what was typed.
  await page.keyboard.press('Enter');
  await expect(form.getByLabel('Memory on each')).toHaveValue('plenty');
  await form.getByLabel('Memory on each').fill('8 GiB');
  await shoot(page, 'request');
  await request.click();
  await expect(toast(page, 'asks.ipynb: This kernel now holds')).toBeVisible();
  await expect(toolbarItem(page)).toHaveText(
    'GPU 0, GPU 1 · 8 GiB each · idle'
  );

  const row = panel.lease('asks.ipynb');
  await row.getByRole('button', { name: 'Park the GPU of asks.ipynb' }).click();
  await expect(toast(page, 'your variables are kept')).toBeVisible();
  await expect(row).toContainText('Parked');
  await expect(toolbarItem(page)).toHaveText('Parked');
  await panel.expectGpus('0 of 2');
  await shoot(page, 'parked-by-hand');
  await row
    .getByRole('button', { name: 'Resume the GPU of asks.ipynb' })
    .click();
  await expect(toast(page, /holds .* again/)).toBeVisible();
  await expect(toolbarItem(page)).toHaveText(
    'GPU 0, GPU 1 · 8 GiB each · idle'
  );

  // The document is as it was, and the next cell is the second one.
  await execute(page, 'docmanager:save');
  expect(await readFile(file, 'utf8')).toBe(before);
  expect(await notebook.result(1)).toContain('42');
  await expect(notebook.cell(1).locator('.jp-InputArea-prompt')).toHaveText(
    '[2]:'
  );

  await execute(page, 'gpushare:request', { gpus: 1, memory: '20GiB' });
  await expect(
    toast(page, 'asks.ipynb: ').filter({ hasText: '20 GiB' })
  ).toBeVisible();
  // A kernel that runs code is not asked.
  await notebook.run(2);
  // It asks: so it runs. The cell before may still count as work in the toolbar.
  await expect(notebook.cell(2).locator('.jp-Stdin-input')).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('GPU 0, GPU 1 · 8 GiB each');
  await choose(page, 'Park GPU');
  await expect(toast(page, 'asks.ipynb runs code now')).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('GPU 0, GPU 1 · 8 GiB each');
});

test('all see a request that waits, and its owner may cancel it', async ({
  gpushare,
  labOf,
  open,
  openOf,
  page,
  shoot
}) => {
  await gpushare.setQuota('alice', { gpus: 2, memory: 24 * 2 ** 30 });
  const alices = await open('all.ipynb', [
    '%gpushare request --gpus 2 --memory 24GiB'
  ]);
  await alices.result(0);
  const bobs = await labOf(gpushare.bob);
  const panel = await GpuPanel.open(bobs);
  await openOf(gpushare.bob, bobs, 'waits.ipynb', ['"after"']);
  await panel
    .section('leases')
    .getByRole('button', { name: /^Ask for GPUs/ })
    .click();
  const form = bobs.getByRole('dialog');
  await expect(form).toContainText('GPU 0: 24 GiB reserved by others');
  await expect(form).toContainText('the request waits');
  await form.getByRole('button', { name: 'Request' }).click();
  await expect(toolbarItem(bobs)).toHaveText('Number 1 in line');
  await expect(toast(bobs, 'asks for a GPU')).toBeVisible();
  await expect(
    panel.root.getByRole('button', { name: /Queue.*1 waiting/ })
  ).toBeVisible();
  await expect(panel.section('queue')).toContainText(/The longest: \d+ s/);
  await shoot(bobs, 'asked-and-waits');
  // Others see that somebody waits, and not who.
  const hers = await GpuPanel.open(page);
  await expect(hers.section('queue')).toContainText('someone else');
  await panel
    .lease('waits.ipynb')
    .getByRole('button', { name: 'Cancel waiting: waits.ipynb' })
    .click();
  await expect(toolbarItem(bobs)).toHaveText('No GPU');
  await expect(toast(bobs, 'asks for a GPU')).toHaveCount(0);
  await expect(toast(bobs, 'waits.ipynb: ')).toBeVisible();
});

test('a program in a terminal has a row until it ends; the palette has the actions, and releases what it holds', async ({
  gpushare,
  open,
  page
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('beside.ipynb', [
    [
      'import pathlib, subprocess, sys',
      'pathlib.Path("alone.py").write_text("import torch; input()")',
      'child = subprocess.Popen([sys.executable, "alone.py"], stdin=subprocess.PIPE)'
    ].join('\n'),
    'child.communicate(b"\\n")',
    '%gpushare request --memory 4GiB'
  ]);
  await notebook.result(0);
  await expect(panel.lease('alone.py')).toContainText('GPU 0');
  await notebook.result(1);
  await expect(panel.leases).toHaveCount(0);
  await gpushare.alice.expectLeases(0);

  await notebook.result(0);
  await expect(panel.lease('alone.py')).toContainText('GPU 0');
  await notebook.result(2);
  await expect(panel.leases).toHaveCount(2);
  // (What cannot be done now is not shown in the palette, and it closes when something else gets
  // the focus, as a cell does that has just ended.)
  await expect(panel.lease('beside.ipynb')).toContainText('Idle');
  for (const name of ['Request GPU…', 'Park GPU', 'Release GPU']) {
    await expect(async () => {
      await execute(page, 'apputils:activate-command-palette');
      await page
        .locator('.lm-CommandPalette-input')
        .fill(name, { timeout: 5000 });
      await expect(
        page.locator('.lm-CommandPalette-itemLabel').filter({ hasText: name })
      ).toBeVisible({ timeout: 5000 });
    }).toPass({ timeout: 60000 });
  }
  await page.keyboard.press('Escape');

  // Something is open that is no notebook: which of them is asked.
  await execute(page, 'launcher:create');
  const asked = execute(page, 'gpushare:release');
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('Release the GPU of');
  const items = dialog.getByRole('combobox');
  const program = await items
    .locator('option', { hasText: 'alone.py' })
    .innerText();
  await items.selectOption(program);
  await dialog.getByRole('button', { name: 'Ok' }).click();
  await page
    .getByRole('dialog')
    .filter({ hasText: 'It runs code now' })
    .getByRole('button', { name: 'Release' })
    .click();
  await asked;
  await expect(panel.lease('alone.py')).toHaveCount(0);
  await expect(panel.lease('beside.ipynb')).toHaveCount(1);
  await gpushare.alice.expectLeases(1);
});
