import { expect, test } from '../support/fixtures';
import { administration, administrationOf, GpuPanel } from '../support/panel';

const TAKE = '%gpushare request';

test("an administrator edits a quota, and its user's bar follows; it is given back", async ({
  gpushare,
  labOf,
  open,
  page,
  shoot
}) => {
  const alices = await GpuPanel.open(page);
  const notebook = await open('hold.ipynb', [TAKE]);
  await notebook.result(0);
  await alices.expectGpus('1 of 2');

  const carols = await labOf(gpushare.carol);
  const admin = await administration(carols);
  const edit = admin.getByRole('link', { name: 'Edit the quota of alice' });
  const gpus = admin.getByLabel('GPUs', { exact: true });
  await edit.click();
  await gpus.fill('many');
  await gpus.press('Enter');
  await expect(admin.locator('.invalid-feedback')).toContainText(
    'a whole number from 0 to 4096'
  );
  await shoot(carols, 'admin-edit');
  await gpus.fill('5');
  await admin.getByLabel('Memory on each GPU').fill('12');
  await admin.getByLabel('GPU-hours', { exact: true }).fill('20');
  await gpus.press('Enter');
  await expect(admin.getByRole('status').first()).toContainText(
    'The quota of alice is now GPUs: 5, memory on each GPU: 12 GiB'
  );
  await alices.expectGpus('1 of 5');
  await expect(alices.section('quota')).toContainText('of 20 in the last 7 d');
  await expect(alices.section('quota')).toContainText('an administrator');

  // Below what is held: nothing is taken away, and the bar says so.
  await edit.click();
  await gpus.fill('0');
  await gpus.press('Enter');
  await alices.expectGpus('1 of 0');
  await expect(alices.gpuBar).toHaveAttribute('data-tone', 'bad');
  await expect(alices.leases).toHaveCount(1);
  await shoot(page, 'over-quota');
  await shoot(carols, 'admin');

  await edit.click();
  await admin.getByRole('button', { name: /^Back to/ }).click();
  await alices.expectGpus('1 of 2');
  await expect(alices.section('quota')).toContainText(
    'Set for you in the configuration'
  );
  await expect(alices.section('quota')).not.toContainText('of 20');
});

test('an administrator takes a GPU out of service, and who waits reads why', async ({
  gpushare,
  labOf,
  open,
  page
}) => {
  const carols = await labOf(gpushare.carol);
  const admins = await GpuPanel.open(carols);
  await admins.expand('GPUs of this node');
  const gpus = admins.section('gpus');
  const takeOut = gpus.getByRole('button', { name: /out of service/ });
  await expect(takeOut.first()).toBeVisible();
  const count = await takeOut.count();
  const admin = administrationOf(carols);
  for (let left = count; left > 0; left--) {
    // Each leads to its form, in the tab that is there already.
    await takeOut.first().click();
    await expect(
      admin.getByRole('heading', { name: `Take GPU ${count - left} out` })
    ).toBeVisible();
    await admin.getByLabel('Reason').fill('its fan is replaced');
    await admin.getByRole('button', { name: 'Take out of service' }).click();
    await expect(takeOut).toHaveCount(left - 1);
  }
  await expect(gpus).toContainText('its fan is replaced');

  const notebook = await open('waits.ipynb', [TAKE]);
  await notebook.run(0);
  const own = await GpuPanel.open(page);
  await expect(own.section('queue')).toContainText(
    'out of service: its fan is replaced'
  );
  const back = gpus.getByRole('button', { name: /back into service/ });
  for (let left = count; left > 0; left--) {
    await back.first().click();
    await expect(
      admin.getByRole('heading', { name: `GPU ${count - left} is out` })
    ).toBeVisible();
    await admin.getByRole('button', { name: 'Put back into service' }).click();
    await expect(back).toHaveCount(left - 1);
  }
  await notebook.done(0);
});

test('an administrator revokes a lease, and its owner reads why', async ({
  gpushare,
  labOf,
  open,
  page,
  shoot
}) => {
  const notebook = await open('long.ipynb', [TAKE]);
  await notebook.result(0);
  const alices = await GpuPanel.open(page);
  await expect(alices.leases).toHaveCount(1);

  const admin = await administration(await labOf(gpushare.carol));
  await admin.getByRole('link', { name: 'Revoke long.ipynb of alice' }).click();
  await admin.getByLabel('Reason').fill('maintenance at six');
  await admin.getByRole('button', { name: 'Revoke' }).click();

  await expect(alices.leases).toHaveCount(0);
  await expect(
    page.locator('.Toastify__toast').filter({ hasText: 'maintenance at six' })
  ).toBeVisible();
  await shoot(page, 'revoked');

  await admin.getByLabel('Words').fill('maintenance');
  await admin.getByRole('button', { name: 'Filter' }).click();
  const events = admin.locator('#events-list tbody');
  await expect(events.locator('tr')).toHaveCount(1);
  await expect(events).toContainText('maintenance at six');
});
