import type { Locator } from '@playwright/test';
import { expectAccessible, expectFrameAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import {
  administration,
  execute,
  GpuPanel,
  toolbarItem,
  useTheme
} from '../support/panel';

const TAKE = '%gpushare request';
const THEMES = [
  ['JupyterLab Light', 'light'],
  ['JupyterLab Dark', 'dark'],
  ['JupyterLab Dark High Contrast', 'high-contrast']
];

/** What is behind its text. */
function colourOf(what: Locator): Promise<string> {
  return what.evaluate(node => getComputedStyle(node).backgroundColor);
}

test('everything can be read and reached in each theme', async ({
  gpushare,
  labOf,
  openOf,
  shoot
}) => {
  test.setTimeout(300_000);
  const page = await labOf(gpushare.carol);
  const panel = await GpuPanel.open(page);
  const notebook = await openOf(gpushare.carol, page, 'looks.ipynb', [TAKE]);
  await notebook.result(0);
  await expect(panel.leases).toHaveCount(1);
  for (const [theme, name] of THEMES) {
    await useTheme(page, theme);
    await execute(page, 'docmanager:open', { path: 'project/looks.ipynb' });
    await expect(toolbarItem(page)).toBeVisible();
    await expectAccessible(
      page,
      '.jp-gpushare-panel',
      '.jp-gpushare-toolbar-item',
      '.jp-gpushare-status-item'
    );
    await shoot(page, `panel-${name}`);

    await execute(page, 'gpushare:show-history');
    const shown = page.locator('.jp-gpushare-page:visible');
    await expect(shown).toContainText('GPU-hours in these');
    await expectAccessible(page, '.jp-gpushare-page:not(.lm-mod-hidden)');
    await shoot(page, `history-${name}`);

    const admin = await administration(page);
    const main = admin.locator('main');
    await expect(admin.locator('html')).toHaveAttribute(
      'data-bs-theme',
      name === 'light' ? 'light' : 'dark'
    );
    expect(await colourOf(admin.locator('body'))).toBe(
      await colourOf(page.locator('.jp-gpushare-panel'))
    );
    await expectFrameAccessible(admin);
    await shoot(page, `admin-${name}`);
    await admin.getByRole('link', { name: 'Edit the quota of bob' }).click();
    await expect(main).toContainText('The quota of bob');
    await expectFrameAccessible(admin);
    await shoot(page, `admin-quota-${name}`);
    await admin.getByRole('link', { name: 'Cancel' }).click();
  }
  await useTheme(page, THEMES[0][0]);

  // Beside the panel little is left: the page never scrolls sideways.
  await page.setViewportSize({ width: 960, height: 800 });
  const admin = await administration(page);
  const [wide, there] = await admin
    .locator('html')
    .evaluate(page => [page.scrollWidth, page.clientWidth]);
  expect(there).toBeLessThan(480);
  expect(wide).toBeLessThanOrEqual(there);
  await expectFrameAccessible(admin);
  await shoot(page, 'admin-narrow');
  await page.setViewportSize({ width: 1280, height: 800 });
});

test('a lease is released by the keyboard alone', async ({ open, page }) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('keys.ipynb', [TAKE]);
  await notebook.result(0);
  // While the cell counts as running there is nothing to park, and it would be asked first.
  await expect(panel.lease('keys.ipynb')).toContainText('Idle');
  const release = panel
    .lease('keys.ipynb')
    .getByRole('button', { name: /^Release/ });
  await panel
    .lease('keys.ipynb')
    .getByRole('button', { name: 'keys.ipynb', exact: true })
    .focus();
  // After its name come what keeps it, what parks it and what releases it.
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await expect(release).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(panel.leases).toHaveCount(0);

  await toolbarItem(page).focus();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('menuitem', { name: 'Show GPUs' })).toBeVisible();
  await page.keyboard.press('Escape');
});
