import { readFile } from 'fs/promises';
import * as path from 'path';
import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { execute, GpuPanel, toolbarItem } from '../support/panel';

// One GPU that one person fills; who waits is helped by whoever is idle, after a warning. It
// comes long before: the test has to look at it and to press a button, however slow the machine.
// Above a minute, minutes are counted, too.
const NOTICE = 59;
/** Seconds to wait where there is nothing more to look at. */
const SHORT_NOTICE = 1;
const PIN_LIMIT = 7200;
test.use({
  node: {
    simulate: '1x16GiB',
    policy: {
      idle_timeout: 1.0,
      notify_before: NOTICE,
      keep_for: 600.0,
      pin_limit: PIN_LIMIT
    }
  }
});

const TAKE = 'import torch; kept = torch.arange(4)';
const LOOK = 'print("still", int(kept.sum()))';

interface IOutput {
  output_type: string;
  name?: string;
  text?: string | string[];
  data?: Record<string, string | string[]>;
}

/** What a saved cell shows, in words: what kind of output, and its text. */
function words(outputs: IOutput[]): string[] {
  return outputs.map(one => {
    const text = one.text ?? one.data?.['text/plain'] ?? '';
    return `${one.name ?? one.output_type}: ${[text].flat().join('').trim()}`;
  });
}

test('who is idle is warned, keeps the GPU, lets it go, and goes on with the next cell, which says nothing of it when saved', async ({
  gpushare,
  labOf,
  open,
  openOf,
  page,
  shoot,
  tmpPath
}) => {
  test.setTimeout(300_000);
  const alices = await open('lunch.ipynb', [TAKE, LOOK]);
  await alices.result(0);
  const panel = await GpuPanel.open(page);
  const row = panel.lease('lunch.ipynb');
  await expect(row).toContainText(/Idle for .* · GPU 0/);
  await expect(row).not.toContainText('taken back');

  const bobs = await labOf(gpushare.bob);
  const his = await openOf(gpushare.bob, bobs, 'eager.ipynb', [TAKE]);
  await his.run(0);

  // The warning is in three places, and each of them can be reached.
  await expect(row).toContainText(/Its GPU is taken back in \d+ s/);
  const countdown = page.locator(
    '.jp-NotebookPanel:not(.lm-mod-hidden) [data-warned="true"] .jp-gpushare-toolbar-text'
  );
  await expect(countdown).toHaveText(/^Taken back in \d+ s$/);
  await expect(countdown).toBeVisible();
  const left = async (): Promise<number> =>
    Number(/\d+/.exec(await countdown.innerText())?.[0]);
  const first = await left();
  expect(first).toBeLessThanOrEqual(NOTICE);
  const toast = page
    .locator('.Toastify__toast')
    .filter({ hasText: 'lunch.ipynb: Its GPU is taken back' });
  await expect(toast).toContainText('Its variables are kept.');
  await expect.poll(left).toBeLessThan(first);
  await shoot(page, 'warning');
  await expectAccessible(
    page,
    '.jp-gpushare-panel',
    '.jp-gpushare-toolbar-item'
  );

  // Kept with the keyboard alone: in a toolbar the arrows go from button to button.
  const keep = page.getByRole('button', {
    name: 'Keep the GPU of this notebook'
  });
  await page
    .getByRole('button', { name: 'Save and create checkpoint' })
    .focus();
  await expect(async () => {
    await page.keyboard.press('ArrowRight');
    await expect(keep).toBeFocused({ timeout: 100 });
  }).toPass({ intervals: [0], timeout: 10_000 });
  await page.keyboard.press('Enter');
  // It goes by itself, so it is looked for first.
  await expect(
    page.locator('.Toastify__toast').filter({ hasText: 'Its GPU is kept for' })
  ).toBeVisible();
  await expect(countdown).toHaveCount(0);
  await expect(toast).toHaveCount(0);
  await expect(row).toContainText(/Its GPU is kept for \d/);
  const { leases, node } = await gpushare.alice.status();
  const mine = leases.find(lease => lease.mine);
  expect(mine?.pinned_until).toBeGreaterThan(node.time + 500);
  expect(mine?.pinned_until).toBeLessThanOrEqual(node.time + 600);
  await expect(toolbarItem(bobs)).toHaveText('Number 1 in line');

  // Then for a time of her choice, and no longer.
  await row
    .getByRole('button', { name: 'How long lunch.ipynb keeps its GPU' })
    .click();
  await expect(
    page.getByRole('menuitem').filter({ hasText: /^Keep/ })
  ).toHaveText([
    'Keep GPU for 15 min',
    'Keep GPU for 30 min',
    'Keep GPU for 1 h',
    'Keep GPU for 2 h',
    'Keep GPU No Longer'
  ]);
  await shoot(page, 'keep');
  await page.getByRole('menuitem', { name: 'for 30 min' }).click();
  await expect
    .poll(async () => {
      const now = await gpushare.alice.status();
      const until = now.leases.find(lease => lease.mine)?.pinned_until ?? 0;
      return Math.round((until - now.node.time) / 60);
    })
    .toBe(30);
  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: 'Keep GPU No Longer' }).click();
  await expect(countdown).toBeVisible();
  await expect(toast).toBeVisible();

  // Nobody keeps it: it is parked, and he gets it. The warning outlives the node manager, which
  // has a shorter notice from now on, so that nobody has to wait here.
  await gpushare.restartNodeWith('notify_before', SHORT_NOTICE);
  await expect(toolbarItem(page)).toHaveText('Parked', { timeout: 30_000 });
  await expect(toast).toHaveCount(0);
  await expect(row).toContainText('It had nothing on its GPU.');
  await his.done(0);
  await expect(toolbarItem(bobs)).toHaveText(/^GPU \d · 8 GiB/);
  await shoot(page, 'parked');
  await expectAccessible(page, '.jp-gpushare-panel');

  // Her next cell asks for it again; he keeps it for a while, and lets it go.
  await gpushare.keep(gpushare.bob, 600);
  await alices.run(1);
  await expect(toolbarItem(page)).toHaveText('Number 1 in line');
  await expect(row).toContainText('Number 1 in line');
  await gpushare.keep(gpushare.bob, 0);
  expect(await alices.done(1, 90_000)).toContain('still 6');
  await expect(toolbarItem(page)).toHaveText(/^GPU \d · 16 GiB/);
  await expect(toolbarItem(bobs)).toHaveText('Parked');

  // Neither the warning nor the parking is in the notebook that is saved.
  const file = path.join(gpushare.alice.root, tmpPath, 'lunch.ipynb');
  const saved = async (): Promise<string[][]> =>
    JSON.parse(await readFile(file, 'utf-8')).cells.map(
      (cell: { outputs: IOutput[] }) => words(cell.outputs)
    );
  await execute(page, 'docmanager:save');
  await expect.poll(async () => (await saved())[1].length).toBeGreaterThan(0);
  const [taken, looked] = await saved();
  expect(taken).toEqual(['display_data: GPU 0 (16 GiB), simulated']);
  expect(looked.filter(line => line.startsWith('stderr'))).toEqual([]);
  expect(looked.pop()).toBe('stdout: still 6');
});
