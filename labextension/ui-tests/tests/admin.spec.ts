import { expect, test } from '../support/fixtures';
import { execute, GpuPanel } from '../support/panel';

const TAKE = '%gpushare request';

test("an administrator edits a quota, and its user's bar follows; undo takes it back", async ({
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
  await execute(carols, 'gpushare:show-admin');
  const admin = carols.locator('.jp-gpushare-page');
  const edit = admin.getByRole('button', { name: 'Edit the quota of alice' });
  await edit.click();
  await admin.getByRole('textbox', { name: 'GPUs of alice' }).fill('many');
  await expect(admin).toContainText('A whole number from 0 to 4096.');
  await expect(admin.getByRole('button', { name: 'Save' })).toBeDisabled();
  await shoot(carols, 'admin-edit');
  await admin.getByRole('textbox', { name: 'GPUs of alice' }).fill('5');
  await admin
    .getByRole('textbox', { name: 'Memory on each GPU of alice' })
    .fill('12 GiB');
  await admin
    .getByRole('textbox', { name: 'Budget in GPU-hours of alice' })
    .fill('20');
  await admin
    .getByRole('textbox', { name: 'Idle time-out in minutes of alice' })
    .fill('30');
  await admin
    .getByRole('textbox', { name: 'Upper bound of lifted limits of alice' })
    .fill('0.9');
  await admin
    .getByRole('textbox', { name: 'Head-room in turns of alice' })
    .fill('1 GiB');
  await admin
    .getByRole('textbox', {
      name: 'Minutes for which a pin keeps a turn of alice'
    })
    .fill('10');
  await carols.keyboard.press('Enter');
  await expect(admin).toContainText(
    'The quota of alice is now 5 GPUs, 12 GiB on each, weight 2, 20 GPU-hours, idle GPUs taken after 30 min, limits lifted to 90 %, 1 GiB head-room in turns, pins keep turns for 10 min.'
  );
  await alices.expectGpus('1 of 5');
  await expect(alices.section('quota')).toContainText('of 20 in the last 7 d');
  await expect(alices.section('quota')).toContainText('an administrator');

  await admin.getByRole('button', { name: 'Undo' }).click();
  await alices.expectGpus('1 of 2');
  await expect(alices.section('quota')).toContainText('your own entry');
  await expect(alices.section('quota')).not.toContainText('of 20');

  // Below what is held: nothing is taken away, and the bar says so.
  await edit.click();
  await admin.getByRole('textbox', { name: 'GPUs of alice' }).fill('0');
  await carols.keyboard.press('Enter');
  await alices.expectGpus('1 of 0, 1 over');
  await expect(alices.gpuBar).toHaveAttribute('data-level', 'over');
  await expect(alices.leases).toHaveCount(1);
  await shoot(page, 'over-quota');
  await shoot(carols, 'admin');
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
  for (let left = count; left > 0; left--) {
    await takeOut.first().click();
    const dialog = carols.getByRole('dialog');
    await dialog.getByRole('textbox').fill('its fan is replaced');
    await dialog.getByRole('button', { name: 'Take out of service' }).click();
    await expect(takeOut).toHaveCount(left - 1);
  }
  await expect(gpus).toContainText('its fan is replaced (carol) · it is empty');

  const notebook = await open('waits.ipynb', [TAKE]);
  await notebook.run(0);
  const own = await GpuPanel.open(page);
  await expect(own.section('queue')).toContainText(
    'out of service: its fan is replaced'
  );
  const back = gpus.getByRole('button', { name: /back into service/ });
  for (let left = count; left > 0; left--) {
    await back.first().click();
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

  const carols = await labOf(gpushare.carol);
  const panel = await GpuPanel.open(carols);
  await panel.expand('Administration');
  await panel
    .section('admin')
    .getByRole('button', { name: 'Revoke the lease of alice: long.ipynb' })
    .click();
  const dialog = carols.getByRole('dialog');
  await dialog.getByRole('textbox').fill('maintenance at six');
  await dialog.getByRole('button', { name: 'Revoke' }).click();

  await expect(alices.leases).toHaveCount(0);
  await expect(
    page.locator('.Toastify__toast').filter({ hasText: 'maintenance at six' })
  ).toBeVisible();
  await shoot(page, 'revoked');

  await execute(carols, 'gpushare:show-admin');
  const events = carols
    .locator('.jp-gpushare-page')
    .getByRole('region', { name: 'Events' });
  await events
    .getByRole('searchbox', { name: 'Filter the events by text' })
    .fill('maintenance');
  await expect(events.locator('tbody tr')).toHaveCount(1);
  await expect(events.locator('tbody')).toContainText('maintenance at six');
});
