import { expect, test } from '../support/fixtures';

const IMPORT = 'import torch; print("torch", torch.__version__)';

test('JupyterLab has the extension', async ({ page }) => {
  const federated = await page.evaluate(() => {
    const config = document.getElementById('jupyter-config-data');
    return JSON.parse(config!.textContent!).federated_extensions;
  });
  expect(
    federated.map((extension: { name: string }) => extension.name)
  ).toContain('jupyter-gpushare');
});

test('importing torch in a cell takes a lease, which others see without its name', async ({
  gpushare,
  open
}) => {
  const notebook = await open('explore.ipynb', [IMPORT]);
  expect((await gpushare.alice.status()).leases).toEqual([]);
  expect(await notebook.result(0)).toContain('torch');

  const mine = (await gpushare.alice.status()).leases;
  expect(mine).toHaveLength(1);
  expect(mine[0]).toMatchObject({ environment: 'alice', mine: true });
  expect(mine[0].name).toContain('explore.ipynb');

  const bobs = (await gpushare.bob.status()).leases;
  expect(bobs).toHaveLength(1);
  expect(bobs[0]).toMatchObject({ environment: null, mine: false, name: null });
  expect(JSON.stringify(bobs)).not.toContain('explore');

  const carols = (await gpushare.carol.status()).leases;
  expect(carols[0]).toMatchObject({ environment: 'alice', mine: false });
});

test('Jupyter Notebook takes leases for the same person', async ({
  gpushare,
  openOf,
  pageOf
}) => {
  const page = await pageOf(gpushare.notebook);
  const notebook = await openOf(gpushare.notebook, page, 'seven.ipynb', [
    IMPORT
  ]);
  expect(await notebook.result(0)).toContain('torch');
  const mine = (await gpushare.alice.status()).leases;
  expect(mine).toHaveLength(1);
  expect(mine[0]).toMatchObject({ environment: 'alice', mine: true });
});

test('a lease outlives the node manager', async ({ gpushare, open }) => {
  const notebook = await open('outlive.ipynb', [IMPORT]);
  await notebook.result(0);
  const [before] = (await gpushare.alice.status()).leases;

  await gpushare.killNode();
  await expect
    .poll(async () =>
      (await gpushare.alice.api.get('gpushare/api/status')).status()
    )
    .toBe(503);

  await gpushare.startNode();
  await gpushare.connected();
  await expect
    .poll(async () =>
      (await gpushare.alice.status()).leases.map(lease => lease.id)
    )
    .toEqual([before.id]);
});

test('two people work in two browsers', async ({
  gpushare,
  labOf,
  open,
  openOf
}) => {
  const alices = await open('mine.ipynb', [IMPORT]);
  const page = await labOf(gpushare.bob);
  const bobs = await openOf(gpushare.bob, page, 'his.ipynb', [IMPORT]);
  await Promise.all([alices.run(0), bobs.run(0)]);
  await Promise.all([alices.done(0), bobs.done(0)]);
  const seen = (await gpushare.bob.status()).leases;
  expect(seen.map(lease => lease.name).sort()).toEqual([
    expect.stringContaining('his.ipynb'),
    null
  ]);
});

test('what an administrator changes is undone after a test', async ({
  gpushare
}) => {
  const quota = async () =>
    (await (await gpushare.alice.api.get('gpushare/api/quota')).json()).quota;
  const before = await quota();
  await gpushare.setQuota('alice', { gpus: 1, memory: 2 ** 30 });
  expect(await quota()).toMatchObject({ gpus: 1, memory: 2 ** 30 });
  await gpushare.pauseNode();
  await gpushare.calm();
  expect(await quota()).toEqual(before);
});
