import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { GpuPanel, toolbarItem } from '../support/panel';

const TAKE = '%gpushare request --memory 4GiB';

test('three leases, the queue and both GPUs are seen at once at 1360×900', async ({
  open,
  page,
  shoot
}) => {
  await page.setViewportSize({ width: 1360, height: 900 });
  const panel = await GpuPanel.open(page);
  for (const name of ['first', 'second', 'third']) {
    const notebook = await open(`${name}.ipynb`, [TAKE]);
    await notebook.result(0);
  }
  await expect(panel.leases).toHaveCount(3);
  for (const name of ['first', 'second', 'third']) {
    await expect(panel.lease(`${name}.ipynb`)).toBeInViewport({ ratio: 1 });
  }
  await expect(panel.section('queue')).toBeInViewport({ ratio: 1 });
  await expect(panel.gpu(0)).toBeInViewport({ ratio: 1 });
  await expect(panel.gpu(1)).toBeInViewport({ ratio: 1 });
  await shoot(page, 'layout-1360');
  await expectAccessible(page, '.jp-gpushare-panel');

  // No section scrolls by itself, however low the window; all of them do as one.
  await page.setViewportSize({ width: 1024, height: 500 });
  const scrolling = await panel.root.evaluate(root =>
    [...root.querySelectorAll('*')]
      .filter(
        node =>
          node.scrollHeight > node.clientHeight + 1 &&
          /auto|scroll/.test(getComputedStyle(node).overflowY)
      )
      .map(node => node.className)
  );
  expect(scrolling).toHaveLength(1);
  expect(scrolling[0]).toContain('jp-gpushare-sections');
  await panel.gpu(1).scrollIntoViewIfNeeded();
  await expect(panel.gpu(1)).toBeInViewport({ ratio: 1 });
  await shoot(page, 'layout-low');
});

test('sections are opened, collapsed and walked by the keyboard', async ({
  page
}) => {
  const panel = await GpuPanel.open(page);
  const heading = (name: string | RegExp) =>
    panel.root.getByRole('button', { name, exact: true });
  await heading('My quota').focus();
  await page.keyboard.press('ArrowDown');
  await expect(heading('My leases')).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(heading('My leases')).toHaveAttribute('aria-expanded', 'false');
  await expect(panel.section('leases').getByText('import torch')).toBeHidden();
  await page.keyboard.press('Space');
  await expect(panel.section('leases').getByText('import torch')).toBeVisible();
  await page.keyboard.press('End');
  await expect(heading('History')).toBeFocused();
  await page.keyboard.press('Home');
  await expect(heading('My quota')).toBeFocused();
});

test('the button stays in the toolbar of a narrow notebook, without its words', async ({
  open,
  page,
  shoot
}) => {
  await page.setViewportSize({ width: 1600, height: 900 });
  const notebook = await open('narrow.ipynb', [TAKE]);
  await notebook.result(0);
  const words = toolbarItem(page).locator('.jp-gpushare-toolbar-text');
  await expect(words).toBeInViewport({ ratio: 1 });
  await expect(words).toHaveText('GPU 0 · 4 GiB · idle');
  await GpuPanel.open(page);
  for (const width of [1024, 940]) {
    await page.setViewportSize({ width, height: 700 });
    await expect(toolbarItem(page)).toBeInViewport({ ratio: 1 });
    await expect(words).not.toBeInViewport();
    // It still says so to people who cannot see, or who point at it.
    await expect(toolbarItem(page)).toHaveAccessibleName(
      /GPU 0 · 4 GiB · idle/
    );
    await expect(toolbarItem(page)).toHaveAttribute('title', /GPU 0 · 4 GiB/);
    await shoot(page, `narrow-${width}`);
  }
  await expectAccessible(page, '.jp-gpushare-toolbar-item');
  await toolbarItem(page).click();
  await expect(
    page.getByRole('menuitem', { name: 'Release GPU' })
  ).toBeVisible();
  await page.keyboard.press('Escape');
  await page.setViewportSize({ width: 1600, height: 900 });
  await expect(words).toBeInViewport({ ratio: 1 });
  // Nothing is pushed out of the toolbar by them.
  const clipped = await page
    .locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-NotebookPanel-toolbar')
    .evaluate(bar => bar.scrollWidth - bar.clientWidth);
  expect(clipped).toBeLessThanOrEqual(1);
});
