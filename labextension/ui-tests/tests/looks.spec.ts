import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { execute, GpuPanel, toolbarItem, useTheme } from '../support/panel';

const TAKE = '%gpushare request';
const THEMES = [
  ['JupyterLab Light', 'light'],
  ['JupyterLab Dark', 'dark'],
  ['JupyterLab Dark High Contrast', 'high-contrast']
];

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

    await execute(page, 'gpushare:show-admin');
    await shown.getByRole('button', { name: 'Edit the quota of bob' }).click();
    await expect(shown).toContainText('of the last');
    await expectAccessible(page, '.jp-gpushare-admin');
    await shoot(page, `admin-${name}`);
    await shown.getByRole('button', { name: 'Cancel' }).click();
  }
  await useTheme(page, THEMES[0][0]);
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
