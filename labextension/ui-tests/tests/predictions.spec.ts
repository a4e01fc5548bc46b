import { expect, test } from '../support/fixtures';
import { toolbarItem } from '../support/panel';

const MODEL = [
  'import torch',
  'model = torch.nn.Linear(1024, 1024)',
  'batch = torch.randn(32, 1024)'
].join('\n');
const ASK = '%gpushare predict model, batch --iterations 1000 --optimizer adam';

test('a notebook whose model was asked about says in its toolbar what that needs', async ({
  open,
  page,
  shoot
}) => {
  test.setTimeout(240_000);
  const notebook = await open('predicted.ipynb', [MODEL, ASK]);
  await notebook.result(0, 120_000);
  const item = page.locator('.jp-gpushare-prediction-item');
  await expect(item).toBeHidden();
  const table = await notebook.result(1, 120_000);
  expect(table).toContain('Expected for 1000 iterations with a batch of 32');
  expect(table).toContain('Simulated GPU');
  const button = item.getByRole('button', {
    name: /^Expected of this notebook: ≈ .* on Simulated GPU .*; would start now$/
  });
  await expect(button).toBeVisible();
  await shoot(page, 'predicted');
  // It leaves the lease's own item alone, and opens the panel.
  await expect(toolbarItem(page)).toHaveText(/^GPU \d/);
  await button.click();
  await expect(page.locator('.jp-gpushare-panel')).toBeVisible();
});
