import { readFile } from 'fs/promises';
import * as path from 'path';
import { expect, test } from '../support/fixtures';
import { GpuPanel, toolbarItem } from '../support/panel';

// One GPU for one task at a time; who is idle for a second gives it to who waits, after a warning
// that lasts long enough to be seen.
test.use({
  node: {
    simulate: '1x16GiB',
    policy: { idle_timeout: 1.0, notify_before: 5.0, max_tasks_per_gpu: 1 }
  }
});

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

test('a warning and a parking leave nothing in the notebook that is saved', async ({
  gpushare,
  labOf,
  open,
  openOf,
  page,
  tmpPath
}) => {
  test.setTimeout(180_000);
  const alices = await open('saved.ipynb', [
    'import torch; kept = torch.arange(4)',
    'print("still", int(kept.sum()))'
  ]);
  await alices.result(0);
  const panel = await GpuPanel.open(page);
  const bobs = await labOf(gpushare.bob);
  const his = await openOf(gpushare.bob, bobs, 'eager.ipynb', ['import torch']);
  await his.run(0);
  await expect(
    page
      .locator('.Toastify__toast')
      .filter({ hasText: 'The GPU of saved.ipynb is taken back' })
  ).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('Parked', { timeout: 60_000 });
  await expect(panel.lease('saved.ipynb')).toContainText('Parked');
  await his.done(0);

  // Her next cell has the GPU again when bob is idle, and says only that it waited.
  expect(await alices.result(1, 90_000)).toContain('still 6');
  await page.evaluate(async () => {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    await (window as any).jupyterapp.commands.execute('docmanager:save');
  });
  const file = path.join(gpushare.alice.root, tmpPath, 'saved.ipynb');
  const saved = async (): Promise<string[][]> =>
    JSON.parse(await readFile(file, 'utf-8')).cells.map(
      (cell: { outputs: IOutput[] }) => words(cell.outputs)
    );
  await expect.poll(async () => (await saved())[1].length).toBeGreaterThan(0);
  const [first, second] = await saved();
  expect(first).toEqual(['display_data: GPU 0, 16 GiB (simulated)']);
  expect(second.filter(line => line.startsWith('stderr'))).toEqual([]);
  expect(second.pop()).toBe('stdout: still 6');
});
