import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { execute, GpuPanel, toolbarItem, useTheme } from '../support/panel';

test.use({ node: { simulate: '3x24GiB' } });

/** A small model that learns until a file tells it to be quick. */
const TRAIN = `\
import os
os.environ["OMP_NUM_THREADS"] = "1"
from jupyter_gpushare import elastic

def train():
    import torch
    import time

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
    net = elastic.keep(model, optimizer)
    x = torch.randn(240, 8)
    data = torch.utils.data.TensorDataset(x, x.mean(1, keepdim=True) + 1)
    for x, y in elastic.batches(data, batch=24, epochs=100_000):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        elastic.report(loss=loss)
        time.sleep(0.05)`;
const RUN =
  'job = elastic.run(train, max_gpus=3, memory="8GiB", name="digits")';

const SWEEP = `\
from jupyter_gpushare import sweep

def train(lr, depth):
    import os
    import time

    if lr > 1:
        raise ValueError(f"lr={lr} is too large")
    loss = 1.0
    for step in range(40):
        loss *= 1 - lr * depth / 10
        sweep.report(loss=loss, step=step)
        if step > 20:
            while not os.path.exists("enough"):
                time.sleep(0.05)
    return {"loss": loss}`;
const TRY = `\
tried = [{"lr": lr, "depth": depth} for lr in (2.0, 0.05, 0.1, 0.2) for depth in (1, 2)]
running = sweep(train, tried, memory="8GiB", name="depths")`;

const THEMES = [
  ['JupyterLab Light', ''],
  ['JupyterLab Dark', '-dark'],
  ['JupyterLab Dark High Contrast', '-high-contrast']
];

test('an elastic job is one row that grows, and is released as a whole', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  await page.setViewportSize({ width: 1360, height: 900 });
  const panel = await GpuPanel.open(page);
  const notebook = await open('elastic.ipynb', [TRAIN, RUN, 'job.wait()']);
  await notebook.result(0);
  await notebook.run(1);
  const picture = notebook
    .cell(1)
    .getByRole('img', { name: /^Workers: 2 from / });
  await expect(picture).toBeVisible({ timeout: 150_000 });
  const row = panel.lease('digits');
  await expect(panel.leases).toHaveCount(1);
  await expect(row).toContainText('Elastic job digits, 2 workers');
  await expect(row).toContainText(/Active for \d+/);
  await expect(row).toContainText('May use 8 GiB each');
  await panel.expectGpus('2 of 2');

  // It grows, and what was opened by the keyboard stays open.
  await row.locator('summary').focus();
  await page.keyboard.press('Enter');
  const workers = row.getByRole('list', { name: 'Workers of digits' });
  await expect(workers.getByRole('listitem')).toHaveCount(2);
  await gpushare.setQuota('alice', { gpus: 3, memory: 16 * 2 ** 30 });
  await expect(row).toContainText('GPU 0, GPU 1, GPU 2', {
    timeout: 150_000
  });
  await expect(workers.getByRole('listitem')).toHaveCount(3);
  await expect(panel.leases).toHaveCount(1);
  await expect(
    notebook.cell(1).getByRole('img', { name: /3 from / })
  ).toBeVisible({ timeout: 150_000 });
  for (const [theme, suffix] of THEMES) {
    await useTheme(page, theme);
    await execute(page, 'docmanager:open', { path: 'project/elastic.ipynb' });
    await notebook.cell(1).scrollIntoViewIfNeeded();
    await expectAccessible(page, '.jp-gpushare-panel', '.jp-gpushare-job');
    await shoot(page, `elastic${suffix}`);
  }
  await useTheme(page, THEMES[0][0]);

  // It is asked first, and nothing happens where the answer is no.
  const release = row.getByRole('button', {
    name: 'Release all GPUs of digits'
  });
  await release.focus();
  await page.keyboard.press('Enter');
  const question = page.getByRole('dialog');
  await expect(question).toContainText('Release all 3 GPUs of digits?');
  await expect(question).toContainText('elastic.load("digits") goes on');
  await page.keyboard.press('Escape');
  await expect(question).toHaveCount(0);
  await expect(row).toContainText('3 workers');
  await release.click();
  await question.getByRole('button', { name: 'Release' }).click();
  await expect(panel.leases).toHaveCount(0, { timeout: 60_000 });
  await gpushare.alice.expectLeases(0);
  const output = notebook.cell(1).locator('.jp-OutputArea-output');
  await expect(output).toContainText('stopped', { timeout: 60_000 });
  await expect(output).toContainText('The lease was released.');
  expect(await notebook.result(2)).toContain('True');
  await expect(toolbarItem(page)).toHaveText('No GPU');
  await shoot(page, 'elastic-released');
});

test('a sweep is one row, with a live table that is sorted by the keyboard', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  await page.setViewportSize({ width: 1360, height: 900 });
  const panel = await GpuPanel.open(page);
  const notebook = await open('sweep.ipynb', [
    SWEEP,
    TRY,
    'open("enough", "w").close(); running.wait()'
  ]);
  await notebook.result(0);
  await notebook.run(1);
  await expect(panel.lease('depths')).toContainText('Sweep depths, 2 workers', {
    timeout: 60_000
  });
  await expect(panel.leases).toHaveCount(1);
  const output = notebook.cell(1).locator('.jp-OutputArea-output');
  await expect(output).toContainText('2 failed', { timeout: 60_000 });
  await expect(
    output.getByRole('img', { name: /^loss by report, \d models/ })
  ).toBeVisible({ timeout: 60_000 });

  // Sorted by the keyboard; the table is made anew meanwhile, and stays so.
  const rate = output.getByRole('columnheader', { name: 'lr' });
  const first = output.getByRole('row').nth(1);
  await rate.getByRole('button').focus();
  await page.keyboard.press('Enter');
  await expect(rate).toHaveAttribute('aria-sort', 'ascending');
  await expect(first).toContainText('0.05');
  const before = await output.locator('table').elementHandle();
  await gpushare.setQuota('alice', { gpus: 3, memory: 16 * 2 ** 30 });
  await expect(output).toContainText('3 running', { timeout: 60_000 });
  await expect
    .poll(() => before?.evaluate(table => table.isConnected))
    .toBe(false);
  await expect(rate).toHaveAttribute('aria-sort', 'ascending');
  await expect(rate.getByRole('button')).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(first).toContainText('lr=2.0 is too large');
  for (const [theme, suffix] of THEMES) {
    await useTheme(page, theme);
    await execute(page, 'docmanager:open', { path: 'project/sweep.ipynb' });
    await notebook.cell(1).scrollIntoViewIfNeeded();
    await expectAccessible(page, '.jp-gpushare-panel', '.jp-gpushare-job');
    await shoot(page, `sweep${suffix}`);
  }
  await useTheme(page, THEMES[0][0]);
  expect(await notebook.result(2)).toContain('True');
  await shoot(page, 'sweep-done');
  await gpushare.alice.expectLeases(0);
});
