import { expect } from '@playwright/test';
import { expectAccessible } from '../support/axe';
import { test } from '../support/hub';
import { openInLab } from '../support/notebook';
import { GpuPanel, toolbarItem } from '../support/panel';

const ASK =
  'from jupyter_gpushare.client import api\napi.request(gpus=1) is not None';

test.beforeEach(({ pool }) => {
  test.skip(pool.impossible !== '', pool.impossible);
});

test('who waits is told of a free host, and one click starts the kernel there', async ({
  pool,
  poolPageOf,
  shoot
}) => {
  await pool.do({ do: 'server', who: 'bob', kind: 'Simulated GPU (24 GiB)' });
  await pool.do({ do: 'take', who: 'carol', host: 'a', name: 'train.py' });
  await pool.do({
    do: 'notebook',
    who: 'bob',
    name: 'work.ipynb',
    cells: ['x = 1', ASK, 'import os; os.uname().nodename', '%gpushare status']
  });
  const hosts = await poolPageOf('bob');
  const a = hosts.getByRole('row').filter({ hasText: '24 GiB' });
  const b = hosts.getByRole('row').filter({ hasText: '40 GiB' });
  await expect(a).toContainText('your work runs here');
  await expect(b).not.toContainText('your work runs here');
  await expectAccessible(hosts, 'main');

  const page = await poolPageOf('bob');
  await page.goto('/user/bob/lab');
  await expect(
    page.locator('.jp-LauncherCard').filter({ hasText: 'any GPU in the pool' })
  ).toHaveCount(2);
  const notebook = await openInLab(page, 'work.ipynb');
  const panel = await GpuPanel.open(page);
  await notebook.run(0);
  await notebook.run(1);
  const queue = panel.section('queue');
  await expect(queue).toContainText(
    'Host b has a free GPU now (Simulated GPU (40 GiB)): start your kernel there.'
  );
  await shoot(page, 'pool-waiting');
  await queue.getByRole('button', { name: 'Start on b' }).click();
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('All its variables will be lost');
  await dialog.getByRole('button', { name: 'Start on b' }).click();

  await expect(panel.banner).toContainText('A kernel of yours runs on host b');
  await expect(toolbarItem(page)).toHaveText('On host b');
  await notebook.ready();
  expect(await notebook.result(1)).toContain('True');
  expect(await notebook.result(2)).toContain("'b'");
  expect(await notebook.result(3)).toContain(
    'This kernel runs on host b, and its Jupyter server on a'
  );
  await expect(panel.section('leases')).toContainText(
    'You hold no GPU of this host'
  );
  await expectAccessible(page, '.jp-gpushare-panel');
  await shoot(page, 'pool-elsewhere');
  await expect(b).toContainText('your work runs here');
  await expect(hosts.locator('#own')).toContainText('1 GPU held');

  await pool.do({ do: 'verb', words: ['drain', 'b', '--reason=new fans'] });
  await expect(b).toContainText('Out of service');
  await expect(b).toContainText('new fans');
  await shoot(hosts, 'pool-hosts');
});
