import { expect, test } from '../support/fixtures';
import { GpuPanel, toolbarItem } from '../support/panel';

const SHOW =
  "import os, torch; print(len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')), 'GPUs')";

test('the first import gets what the notebook asks in its metadata; nonsense is told in the cell', async ({
  open,
  page
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('wishes.ipynb', [SHOW], {
    gpushare: { gpus: 2, memory: '4GiB' }
  });
  expect(await notebook.result(0)).toContain('2 GPUs');
  await expect(panel.lease('wishes.ipynb')).toContainText('GPU 0, GPU 1');
  await expect(panel.gpu(0)).toContainText('4 GiB yours');
  await expect(panel.gpu(1)).toContainText('4 GiB yours');
  // While the cell counts as running it would be asked first.
  await expect(toolbarItem(page)).toHaveText(/^GPU 0, GPU 1 .* idle$/);
  await toolbarItem(page).click();
  await page.getByRole('menuitem', { name: 'Release GPU' }).click();
  await expect(panel.leases).toHaveCount(0);

  const nonsense = await open('nonsense.ipynb', [SHOW], {
    gpushare: { gpus: 'many', memory: '8XB' }
  });
  const said = await nonsense.result(0);
  expect(said).toContain("gpushare.gpus='many' cannot be used");
  expect(said).toContain("gpushare.memory='8XB' cannot be used");
  expect(said).toContain('1 GPUs');
});
