import { execFileSync } from 'child_process';
import { mkdirSync, rmSync, writeFileSync } from 'fs';
import * as path from 'path';

import { expectAccessible } from '../support/axe';
import { expect, test } from '../support/fixtures';
import { GpuPanel } from '../support/panel';

const SHOWN =
  '/opt/envs/bare/bin/python -m pip install /opt/dist/jupyter_gpushare_client-0.1.0-py3-none-any.whl';
const PYTHON = process.env.PYTHON || 'python';

/** A virtual environment without the light client, and its kernelspec. */
test.beforeAll(({ gpushare }) => {
  const share = shareOf(gpushare.alice.root);
  const bare = path.join(share, 'bare');
  execFileSync(PYTHON, ['-m', 'venv', '--without-pip', bare]);
  const packages = execFileSync(PYTHON, [
    '-c',
    'import sysconfig; print(sysconfig.get_path("purelib"))'
  ]);
  const spec = path.join(share, 'kernels', 'bare');
  mkdirSync(spec, { recursive: true });
  writeFileSync(
    path.join(spec, 'kernel.json'),
    JSON.stringify({
      display_name: 'Python (bare)',
      language: 'python',
      argv: [
        ...[path.join(bare, 'bin', 'python'), '-m', 'ipykernel_launcher'],
        ...['-f', '{connection_file}']
      ],
      // ipykernel is there, start-up files are not run from here.
      env: { PYTHONPATH: packages.toString().trim() }
    })
  );
});

test.afterAll(({ gpushare }) => {
  const share = shareOf(gpushare.alice.root);
  rmSync(path.join(share, 'kernels'), { recursive: true });
  rmSync(path.join(share, 'bare'), { recursive: true });
});

test('a kernel whose environment lacks the light client is told of, until it is dismissed', async ({
  open,
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  await expect(panel.banner).toContainText('A kernel that you can start');
  const notebook = await open('bare.ipynb', ['6 * 7'], {
    kernelspec: {
      name: 'bare',
      display_name: 'Python (bare)',
      language: 'python'
    }
  });
  expect(await notebook.result(0)).toContain('42');
  await expect(panel.banner).toContainText('Python (bare): no GPU');
  await expect(panel.banner).toContainText('then restart the kernel');
  await expect(panel.banner.locator('code')).toHaveText(
    /\/bare\/bin\/python -m pip install \S+/
  );
  await expectAccessible(page, '.jp-gpushare-panel');
  // In the picture, a path that a person could have.
  await panel.banner.locator('code').evaluate((code, shown) => {
    code.textContent = shown;
  }, SHOWN);
  await shoot(page, 'lacking');
  await panel.banner.getByRole('button', { name: 'Copy the command' }).click();
  await expect(
    panel.banner.getByRole('button', { name: 'Copied' })
  ).toBeVisible();
  await panel.banner.getByRole('button', { name: 'Dismiss' }).click();
  await expect(panel.banner).toHaveCount(0);
});

/** Where the servers of these tests look for kernelspecs. */
function shareOf(root: string): string {
  return path.join(path.dirname(path.dirname(root)), 'share');
}
