import { expect, test } from '../support/fixtures';
import { loadLab } from '../support/labs';
import { execute, GpuPanel, statusItem, toolbarItem } from '../support/panel';

const IMPORT = 'import torch';
const TAKE = '%gpushare request';

test('the panel shows the quota, and teaches where nothing is held', async ({
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  await panel.expectGpus('0 of 2');
  const quota = panel.section('quota');
  await expect(quota).toContainText('Quota: 2 GPUs, 16 GiB on each');
  await expect(quota).toContainText('the configuration');
  await expect(quota).toContainText('Left2 GPUs');
  await expect(panel.section('leases')).toContainText('import torch');
  await expect(panel.section('queue')).toContainText('Nobody waits.');
  await expect(panel.section('gpus')).toContainText('These GPUs are simulated');
  await expect(panel.gpu(0)).toContainText('24 GiB free');
  await expect(
    panel.root.getByRole('button', { name: 'Administer GPUs' })
  ).toHaveCount(0);
  const enabled = await page.evaluate(() =>
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    (window as any).jupyterapp.commands.isEnabled('gpushare:show-admin')
  );
  expect(enabled).toBe(false);
  await expect(statusItem(page)).toContainText('0/2');
  await expect(panel.banner).toHaveCount(0);
  await shoot(page, 'empty');
});

test('import torch makes a lease appear everywhere without reload; Release gives it back, and asks first while a cell runs', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('train.ipynb', [
    IMPORT,
    '6 * 7',
    '%gpushare request --memory 16GiB',
    'input("until something is typed")'
  ]);
  await expect(toolbarItem(page)).toHaveText('No GPU');
  await notebook.result(0);

  await expect(panel.lease('train.ipynb')).toContainText(/Idle for .* · GPU 0/);
  await panel.expectGpus('1 of 2');
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB · idle');
  await expect(statusItem(page)).toContainText('1/2');
  await expect(panel.gpu(0)).toContainText('16 GiB yours');
  await expect(panel.gpu(0)).toContainText('1 task');
  await shoot(page, 'lease');

  await panel
    .lease('train.ipynb')
    .getByRole('button', { name: 'Release the GPU of train.ipynb' })
    .click();
  await expect(panel.leases).toHaveCount(0);
  await expect(toolbarItem(page)).toHaveText('No GPU');
  await panel.expectGpus('0 of 2');
  await gpushare.alice.expectLeases(0);
  // The kernel and its variables are as before.
  expect(await notebook.result(1)).toContain('42');

  await notebook.result(2);
  const row = panel.lease('train.ipynb');
  // The cell before has ended in everybody's eyes: what is active now is the next one.
  await expect(row).toContainText('Idle for');
  await notebook.run(3);
  await expect(row).toContainText('Active');
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB');
  await row.getByRole('button', { name: /^Release/ }).click();
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('It runs code now');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await expect(row).toContainText('Active');
  await row.getByRole('button', { name: /^Release/ }).click();
  await dialog.getByRole('button', { name: 'Release' }).click();
  await expect(panel.leases).toHaveCount(0);
  await gpushare.alice.expectLeases(0);
});

test('restarting the kernel by our command asks first, and frees its GPU; so does shutting it down', async ({
  open,
  page
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('again.ipynb', [`${TAKE}\nhere = 1`, 'here']);
  await notebook.result(0);
  await expect(panel.leases).toHaveCount(1);
  const asked = execute(page, 'gpushare:restart-kernel');
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('All its variables will be lost');
  await dialog.getByRole('button', { name: 'Restart' }).click();
  await asked;
  await expect(panel.leases).toHaveCount(0);
  await expect(
    page.getByText('Python 3 (ipykernel) | Idle').first()
  ).toBeVisible();
  await notebook.ready();
  expect(await notebook.result(1)).toContain('NameError');

  await notebook.result(0);
  await panel.expectGpus('1 of 2');
  await execute(page, 'kernelmenu:shutdown');
  await expect(panel.leases).toHaveCount(0);
  await expect(toolbarItem(page)).toHaveText('No GPU');
  await panel.expectGpus('0 of 2');
});

test("a lease's name opens its notebook; it is among the running sessions, and shutting it down there releases", async ({
  open,
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('folder/running.ipynb', [TAKE]);
  await notebook.result(0);
  await execute(page, 'docmanager:save');
  await execute(page, 'application:close-all');
  await expect(page.locator('.jp-NotebookPanel')).toHaveCount(0);
  await panel
    .lease('running.ipynb')
    .getByRole('button', { name: 'running.ipynb', exact: true })
    .click();
  await expect(page.locator('.jp-NotebookPanel')).toBeVisible();
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB · idle');

  await execute(page, 'running:show-panel');
  const sessions = page.locator('#jp-running-sessions');
  const section = sessions.locator('.jp-RunningSessions-section').filter({
    has: page.locator('[data-icon^="jupyter-gpushare"]')
  });
  await expect(section).toContainText('running.ipynb');
  await expect(section).toContainText('GPU 0 · 16 GiB · idle');
  await shoot(page, 'running');
  await section.getByText('running.ipynb').hover();
  await section.locator('.jp-RunningSessions-itemShutdown').click();
  await expect(section).toHaveCount(0);
  await expect(toolbarItem(page)).toHaveText('No GPU');
});

test('the panel is there again after a reload, and moves to the side of the setting; the toolbar item is hidden as the user says', async ({
  gpushare,
  openOf,
  pageOf
}) => {
  // In a workspace of its own: the page that tests share saves its layout, too.
  const page = await pageOf(gpushare.alice);
  const lab = `${gpushare.alice.url}lab/workspaces/own`;
  const right = page.locator('#jp-right-stack .jp-gpushare-panel');
  const left = page.locator('#jp-left-stack .jp-gpushare-panel');
  await loadLab(page, `${lab}?reset`);
  const savedWith = (text: string): Promise<unknown> =>
    page.waitForResponse(
      response =>
        response.url().includes('/api/workspaces/') &&
        (response.request().postData() ?? '').includes(text)
    );
  const saved = savedWith('jupyter-gpushare-panel');
  await page.getByRole('tab', { name: 'GPUs', exact: true }).click();
  await expect(right).toBeVisible();
  await saved;
  const queue = page
    .locator('.jp-gpushare-panel .jp-gpushare-section-title')
    .filter({ hasText: 'Queue' });
  const kept = savedWith('jupyter-gpushare:panel');
  await queue.click();
  await expect(queue).toHaveAttribute('aria-expanded', 'false');
  await kept;
  const say = async (raw: string): Promise<void> => {
    const answer = await gpushare.alice.api.put(
      'lab/api/settings/@jupyterlab/notebook-extension:panel',
      { data: { raw } }
    );
    expect(answer.status()).toBe(204);
  };
  await say('{"toolbar": [{"name": "gpushare", "disabled": true}]}');
  await page.goto(lab);
  await expect(right).toBeVisible();
  await expect(queue).toHaveAttribute('aria-expanded', 'false');

  await execute(page, 'settingeditor:open', { query: 'Shared GPUs' });
  const side = page
    .getByRole('group', { name: 'Shared GPUs' })
    .getByRole('combobox')
    .first();
  await side.selectOption('Left');
  await expect(left).toBeVisible();
  await expect(right).toHaveCount(0);
  await side.selectOption('Right');
  await expect(right).toBeVisible();

  await openOf(gpushare.alice, page, 'plain.ipynb', ['1']);
  await expect(toolbarItem(page)).toHaveCount(0);
  await say('{}');
});
