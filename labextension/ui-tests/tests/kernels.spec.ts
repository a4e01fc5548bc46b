import { execFileSync } from 'child_process';
import { mkdirSync, rmSync, writeFileSync } from 'fs';
import * as path from 'path';

import { expectAccessible } from '../support/axe';
import { expect, GpuShare, test } from '../support/fixtures';
import { GpuPanel } from '../support/panel';

const SHOWN =
  '/opt/envs/bare/bin/python -m pip install /opt/dist/jupyter_gpushare_client-0.1.0-py3-none-any.whl';
const PYTHON = process.env.PYTHON || 'python';

/** A virtual environment without the light client, and its kernelspec. */
test.beforeAll(({ gpushare }) => {
  const share = dataOf(gpushare);
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

test('a kernel whose environment lacks the light client is told of, until it is dismissed', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  // It looks for new ones once a minute.
  const look = (): Promise<void> =>
    page.evaluate(() =>
      // eslint-disable-next-line @typescript-eslint/no-explicit-any
      (window as any).jupyterapp.serviceManager.kernelspecs.refreshSpecs()
    );
  await look();
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
  // The tests that have the page after this one find it as it was.
  rmSync(path.join(dataOf(gpushare), 'kernels'), { recursive: true });
  await look();
});

/** Where alice's server looks for her own kernelspecs. */
function dataOf({ alice }: GpuShare): string {
  return path.join(alice.root, '..', '..', 'alice', 'data');
}
