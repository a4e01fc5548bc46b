import { expect, test } from '../support/fixtures';
import { GpuPanel, toolbarItem } from '../support/panel';

// A node manager of its own: who used a GPU less in other tests would go before who asked first.
test.use({ node: { simulate: '2x24GiB' } });

const ALL = '%gpushare request --gpus 2 --memory 24GiB';
const IMPORT = 'import torch';

test('who waits sees why, counts down, and is told when it is granted', async ({
  gpushare,
  labOf,
  open,
  openOf,
  page,
  shoot
}) => {
  test.setTimeout(180_000);
  await gpushare.setQuota('alice', { gpus: 2, memory: 24 * 2 ** 30 });
  const alices = await open('everything.ipynb', [ALL]);
  await alices.result(0);

  const bobs = await labOf(gpushare.bob);
  const his = await openOf(gpushare.bob, bobs, 'first.ipynb', [
    '%gpushare request'
  ]);
  await his.run(0);
  await expect(toolbarItem(bobs)).toHaveText('Number 1 in line');

  const carols = await labOf(gpushare.carol);
  const panel = await GpuPanel.open(carols);
  const hers = await openOf(gpushare.carol, carols, 'second.ipynb', [IMPORT]);
  await hers.run(0);
  await expect(toolbarItem(carols)).toHaveText('Number 2 in line');
  await expect(panel.lease('second.ipynb')).toContainText(
    'Number 2 in line for'
  );
  const queue = panel.section('queue');
  await expect(queue).toContainText('Number 2 in line');
  await expect(queue).toContainText('1 interactive ahead.');
  await expect(queue).toContainText(
    'You asked for 1 GPU with 8 GiB. No GPU is free for you now.'
  );
  await expect(queue).not.toContainText('nterrupt');
  await expect(queue).toContainText(
    'carol (you) · interactive · 1 GPU with 8 GiB'
  );
  await shoot(carols, 'waiting');

  // Bob leaves the queue through his panel; his cell goes on without a GPU.
  const bobsPanel = await GpuPanel.open(bobs);
  await bobsPanel
    .lease('first.ipynb')
    .getByRole('button', { name: 'Cancel waiting: first.ipynb' })
    .click();
  await expect(toolbarItem(bobs)).toHaveText('No GPU');
  await his.done(0);
  await expect(toolbarItem(carols)).toHaveText('Number 1 in line');
  await expect(queue).toContainText('Nobody is ahead.');

  // Alice gives everything back through the menu in her toolbar.
  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: 'Release GPU' }).click();
  await expect(toolbarItem(page)).toHaveText('No GPU');

  await expect(toolbarItem(carols)).toHaveText(/^GPU \d · 8 GiB/);
  // It goes by itself, which the import may outlast.
  await expect(
    carols.locator('.Toastify__toast').filter({ hasText: 'got 1 GPU' })
  ).toBeVisible();
  await hers.done(0);
  await expect(queue).toContainText(/[1-9]\d* after waiting/);
  await expect(
    bobs.locator('.Toastify__toast').filter({ hasText: 'got' })
  ).toHaveCount(0);
});
