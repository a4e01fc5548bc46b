import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { execute, GpuPanel, useTheme } from '../support/panel';

test.use({ node: { simulate: '1x24GiB' } });

const TAKE = '%gpushare request --memory 8GiB';
const COMPUTE =
  "import os, time\nwhile not os.path.exists('enough'):\n    time.sleep(0.05)";

test('memory and time of a GPU are two things, with live plots', async ({
  gpushare,
  labOf,
  open,
  openOf,
  page,
  shoot
}) => {
  test.setTimeout(300_000);
  await page.setViewportSize({ width: 1280, height: 1000 });
  const panel = await GpuPanel.open(page);
  const notebook = await open('computes.ipynb', [TAKE, COMPUTE]);
  await notebook.result(0);
  const bobs = await labOf(gpushare.bob);
  const diary = await openOf(gpushare.bob, bobs, 'bobs-diary.ipynb', [
    '%gpushare request --memory 4GiB'
  ]);
  await diary.result(0);
  await notebook.run(1);

  // Who is there, and who computes.
  const gpu = panel.gpu(0);
  await gpu.getByText('2 tasks', { exact: true }).click();
  await expect(gpu).toContainText(
    /your computes\.ipynb has 8 GiB for \d+ (s|min)/
  );
  await expect(gpu).toContainText(
    /someone else's notebook has 4 GiB for \d+ (s|min)/
  );
  await expect(gpu).toContainText('no turns; your computes.ipynb computes');

  // The plots, opened and read by the keyboard.
  const button = gpu.getByRole('button', { name: 'Plots of GPU 0' });
  await button.focus();
  await page.keyboard.press('Enter');
  await expect(button).toHaveAttribute('aria-expanded', 'true');
  const plot = gpu.getByRole('slider', { name: 'GPU 0 over the last 5 min' });
  await expect(plot).toHaveAttribute(
    'aria-valuetext',
    /^now: memory: mine 8 GiB, others 4 GiB, without a lease 0 B, free 12 GiB; computing: mine yes, others no; utilisation 100 %/
  );
  const before = Number(await plot.getAttribute('aria-valuemax'));
  const height = (await plot.boundingBox())?.height;
  await plot.focus();
  await page.keyboard.press('Home');
  await expect(plot).toHaveAttribute('aria-valuetext', / ago: memory: mine/);
  await page.keyboard.press('End');
  // It goes on by itself.
  await expect
    .poll(async () => Number(await plot.getAttribute('aria-valuemax')))
    .toBeGreaterThan(before + 3);
  expect((await plot.boundingBox())?.height).toBe(height);
  await expect(gpu.locator('path[data-part="mine"]')).toHaveAttribute(
    'd',
    /^M.*Z$/
  );
  await expect(gpu).toContainText('Memory as reserved');
  expect(await page.content()).not.toContain('bobs-diary');

  for (const [theme, name] of [
    ['JupyterLab Light', 'plots'],
    ['JupyterLab Dark', 'plots-dark'],
    ['JupyterLab Dark High Contrast', 'plots-high-contrast']
  ]) {
    await useTheme(page, theme);
    await execute(page, 'docmanager:open', { path: 'computes.ipynb' }).catch(
      () => undefined
    );
    await expectAccessible(page, '.jp-gpushare-panel');
    await gpu.scrollIntoViewIfNeeded();
    await shoot(page, name);
  }
  await useTheme(page, 'JupyterLab Light');

  // Another span, and a step of it after the other one's end.
  await gpu.getByRole('button', { name: '1 h' }).click();
  const hour = gpu.getByRole('slider', { name: 'GPU 0 over the last 1 h' });
  await expect(hour).toHaveAttribute('aria-valuetext', /^now: memory: mine/);
  await shoot(page, 'plots-hour');

  // An administrator reads whose memory it is.
  const carols = await labOf(gpushare.carol);
  const all = await GpuPanel.open(carols);
  await all.gpu(0).getByRole('button', { name: 'Plots of GPU 0' }).click();
  await expect(all.gpu(0).getByRole('slider')).toHaveAttribute(
    'aria-valuetext',
    /mine 0 B, others 12 GiB.*alice: 8 GiB, computes; bob: 4 GiB/
  );
  await expect(all.gpu(0)).toContainText('bob: 4 GiB');
  await shoot(carols, 'plots-admin');
});
