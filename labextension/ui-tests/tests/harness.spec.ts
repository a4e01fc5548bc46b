import { expect, test } from '../support/fixtures';

const IMPORT = 'import torch; print("torch", torch.__version__)';
const TAKE = '%gpushare request';

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

test('two people work in two browsers', async ({
  gpushare,
  labOf,
  open,
  openOf
}) => {
  const alices = await open('mine.ipynb', [TAKE]);
  const page = await labOf(gpushare.bob);
  const bobs = await openOf(gpushare.bob, page, 'his.ipynb', [TAKE]);
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
