import { expect, test } from '../support/fixtures';
import { GpuPanel } from '../support/panel';

test('two people in two browsers see only what they may', async ({
  gpushare,
  labOf,
  open,
  page
}) => {
  const notebook = await open('secret-plan.ipynb', ['%gpushare request']);
  await notebook.result(0);
  const alices = await GpuPanel.open(page);
  await expect(alices.lease('secret-plan.ipynb')).toBeVisible();

  const bobs = await labOf(gpushare.bob);
  const panel = await GpuPanel.open(bobs);
  await expect(panel.gpu(0)).toContainText('16 GiB reserved by others');
  await panel.gpu(0).getByText('1 task', { exact: true }).click();
  await expect(panel.gpu(0)).toContainText("someone else's notebook");
  await expect(panel.leases).toHaveCount(0);
  await panel.expectGpus('0 of 1');
  const html = await bobs.content();
  for (const hidden of ['secret-plan', 'alice']) {
    expect(html).not.toContain(hidden);
  }

  const carols = await labOf(gpushare.carol);
  const all = await GpuPanel.open(carols);
  await all.gpu(0).getByText('1 task', { exact: true }).click();
  await expect(all.gpu(0)).toContainText("alice's secret-plan.ipynb");
});
