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

test('a form asks for GPUs; parked and resumed in the panel; nothing is written into the notebook', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('asks.ipynb', ['kept = 42', 'kept']);
  await notebook.result(0);
  await execute(page, 'docmanager:save');
  const file = path.join(gpushare.alice.root, 'project', 'asks.ipynb');
  const before = await readFile(file, 'utf8');

  await choose(page, 'Request GPU…');
  const form = page.getByRole('dialog');
  await expect(form).toContainText('Request GPUs for asks.ipynb');
  await expect(form).toContainText('GPU 0: all of its 24 GiB free');
  await expect(form).toContainText('GPU 1: all of its 24 GiB free');
  await expect(form).toContainText('you get it at once');
  await form.getByLabel('GPUs', { exact: true }).fill('3');
  await expect(form).toContainText('You may hold 2 GPUs here');
  await form.getByLabel('GPUs', { exact: true }).fill('2');
  await form.getByLabel('Memory on each').fill('plenty');
  await expect(form).toContainText('A size with its unit');
  await expectAccessible(page, '.jp-gpushare-request');
  // What cannot be asked for is not asked: the form stays, with what was typed.
  await form.getByRole('button', { name: 'Request' }).click();
  await expect(form.getByLabel('Memory on each')).toHaveValue('plenty');
  await form.getByLabel('Memory on each').fill('8 GiB');
  await expect(form).toContainText('you get it at once');
  await shoot(page, 'request');
  await form.getByRole('button', { name: 'Request' }).click();
  await expect(toast(page, 'asks.ipynb: This kernel now holds')).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('2 GPUs · 8 GiB each · Idle');

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
  await expect(toolbarItem(page)).toHaveText('2 GPUs · 8 GiB each · Idle');

  // The document is as it was, and the next cell is the second one.
  await execute(page, 'docmanager:save');
  expect(await readFile(file, 'utf8')).toBe(before);
  expect(await notebook.result(1)).toContain('42');
  await expect(notebook.cell(1).locator('.jp-InputArea-prompt')).toHaveText(
    '[2]:'
  );
});

test('a kernel that runs code is not asked, and a refusal is told', async ({
  open,
  page
}) => {
  await GpuPanel.open(page);
  const notebook = await open('refused.ipynb', [
    '%gpushare request --memory 4GiB',
    'input("until something is typed")'
  ]);
  await execute(page, 'gpushare:request', { gpus: 1, memory: '20GiB' });
  await expect(
    toast(page, 'refused.ipynb: ').filter({ hasText: '20 GiB' })
  ).toBeVisible();

  await notebook.result(0);
  await notebook.run(1);
  await expect(toolbarItem(page)).toHaveText('1 GPU · 4 GiB');
  await choose(page, 'Park GPU');
  await expect(toast(page, 'refused.ipynb runs code now')).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('1 GPU · 4 GiB');
});

test('who asks and has to wait is seen by all, and may cancel', async ({
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
  await expect(form).toContainText('GPU 0: 0 B of 24 GiB free');
  await expect(form).toContainText('you wait');
  await form.getByRole('button', { name: 'Request' }).click();
  await expect(toolbarItem(bobs)).toHaveText('Waiting: 1');
  await expect(toast(bobs, 'asks for a GPU')).toBeVisible();
  await expect(
    panel.root.getByRole('button', { name: /Queue.*1 waiting/ })
  ).toBeVisible();
  await expect(panel.section('queue')).toContainText(/The longest: for \d+ s/);
  await shoot(bobs, 'asked-and-waits');
  // Others see that somebody waits, and not who.
  const hers = await GpuPanel.open(page);
  await expect(hers.section('queue')).toContainText('Someone');
  await panel
    .lease('waits.ipynb')
    .getByRole('button', { name: 'Cancel waiting: waits.ipynb' })
    .click();
  await expect(toolbarItem(bobs)).toHaveText('No GPU');
  await expect(toast(bobs, 'asks for a GPU')).toHaveCount(0);
  await expect(toast(bobs, 'waits.ipynb: ')).toBeVisible();
});

test('the palette has them, and releases what a program holds', async ({
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
    '%gpushare request --memory 4GiB'
  ]);
  await notebook.result(0);
  await expect(panel.lease('alone.py')).toContainText('GPU');
  await notebook.result(1);
  await expect(panel.leases).toHaveCount(2);
  await execute(page, 'apputils:activate-command-palette');
  // (What cannot be done now is not shown there.)
  for (const name of ['Request GPU…', 'Park GPU', 'Release GPU']) {
    await page.locator('.lm-CommandPalette-input').fill(name);
    await expect(
      page.locator('.lm-CommandPalette-itemLabel').filter({ hasText: name })
    ).toBeVisible();
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
  expect((await gpushare.alice.status()).leases).toHaveLength(1);
});
