import { expect, Page } from '@playwright/test';
import { expectAccessible } from '../support/axe';
import { test } from '../support/hub';

/** What somebody would notice who counts on this page to be whole. */
function complaintsOf(page: Page): string[] {
  const complaints: string[] = [];
  page.on('pageerror', error => complaints.push(String(error)));
  page.on('console', message => {
    if (message.type() === 'error') {
      complaints.push(message.text());
    }
  });
  return complaints;
}

/** The page itself never scrolls sideways; a table may, inside its frame. */
async function expectFits(page: Page): Promise<void> {
  const [page_, screen] = await page.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth
  ]);
  expect(page_).toBeLessThanOrEqual(screen);
}

test('my page shows my quota, and my lease as it comes and goes', async ({
  gpusOf,
  hub,
  shoot
}) => {
  const page = await gpusOf('alice');
  const complaints = complaintsOf(page);
  await expect(page.getByRole('heading', { name: 'My GPUs' })).toBeVisible();
  const quota = page.getByLabel('My quota');
  await expect(quota).toContainText('0 of 1');
  await expect(quota).toContainText('8 GiB');
  await expect(page.getByRole('link', { name: 'Administration' })).toHaveCount(
    0
  );

  await hub.do({ do: 'kernel', who: 'alice' });
  // It comes by itself.
  const lease = page
    .getByLabel('My leases')
    .getByRole('row')
    .filter({ hasText: 'train.ipynb' });
  await expect(lease).toContainText('idle for');
  await expect(quota).toContainText('1 of 1');
  await expect(quota).toContainText(/Left\s*nothing/);
  // Before axe and the camera, which inject styles that the page's policy forbids.
  expect(complaints).toEqual([]);
  await expectAccessible(page, 'main');
  await shoot(page, 'hub-user');

  await lease.getByRole('button', { name: /^Release/ }).click();
  await expect(lease).toHaveCount(0);
  await expect(quota).toContainText('0 of 1');
});

test('who waits sees the place in line, and who is there nobody else', async ({
  gpusOf,
  hub
}) => {
  await hub.do({
    do: 'ask',
    who: 'carol',
    name: 'everything',
    gpus: 2,
    until_held: true
  });
  await hub.do({ do: 'ask', who: 'bob', name: 'patience' });
  const page = await gpusOf('bob');
  await expect(page.locator('main')).toContainText(/number 1 in line/i);
  await expect(page.locator('main')).not.toContainText('carol');
  await expect(page.locator('main')).not.toContainText('everything');
  await page.getByRole('button', { name: /^Cancel/ }).click();
  await expect(page.locator('main')).not.toContainText('in line');
});

test('an administrator sees everybody, sets a quota and revokes a lease', async ({
  gpusOf,
  hub,
  shoot
}) => {
  await hub.do({ do: 'kernel', who: 'alice' });
  const hers = await gpusOf('alice');
  const page = await gpusOf('carol');
  const complaints = complaintsOf(page);
  await page.getByRole('link', { name: 'Administration' }).click();
  const users = page.getByLabel(/^Users of/);
  await expect(
    users.getByRole('row').filter({ hasText: 'alice' })
  ).toContainText('1 of 1');
  expect(complaints).toEqual([]);
  await expectAccessible(page, 'main');
  await shoot(page, 'hub-admin');

  await users.getByRole('link', { name: 'Edit the quota of alice' }).click();
  await page.getByLabel('GPUs', { exact: true }).fill('lots');
  await page.getByRole('button', { name: 'Save' }).click();
  await expect(page.getByLabel('GPUs', { exact: true })).toHaveValue('lots');
  await expect(page.locator('.invalid-feedback')).toBeVisible();
  await expectAccessible(page, 'main');
  await page.getByLabel('GPUs', { exact: true }).fill('2');
  await page.getByLabel('Memory on each GPU').fill('4');
  await page.getByRole('button', { name: 'Save' }).click();
  await expect(
    users.getByRole('row').filter({ hasText: 'alice' })
  ).toContainText('1 of 2');
  await expect(hers.getByLabel('My quota')).toContainText('1 of 2');

  await page
    .getByLabel(/^Leases of/)
    .getByRole('link', { name: /^Revoke/ })
    .click();
  await page.getByLabel('Reason').fill('the card is needed for the exam');
  await page.getByRole('button', { name: 'Revoke' }).click();
  await expect(page.getByLabel(/^Leases of/)).not.toContainText('train.ipynb');
  await expect(hers.getByLabel('My leases')).not.toContainText('train.ipynb');
  await expect(page.getByRole('region', { name: 'Events' })).toContainText(
    'by carol, the card is needed for the exam'
  );
  const csv = await page.request.get(
    (await page
      .getByRole('link', { name: 'Download as CSV' })
      .getAttribute('href'))!
  );
  expect(csv.headers()['content-type']).toContain('text/csv');
  expect(await csv.text()).toContain('alice');
});

test('who is no administrator is told so', async ({ gpusOf }) => {
  const page = await gpusOf('bob');
  const answer = await page.goto('/services/gpushare/admin');
  expect(answer!.status()).toBe(403);
  await expect(page.getByRole('alert')).toContainText('administrator');
});

test('a node manager that is away is said, and comes back by itself', async ({
  gpusOf,
  hub
}) => {
  const page = await gpusOf('alice');
  await expect(page.getByLabel('My quota')).toBeVisible();
  await hub.do({ do: 'kill_node' });
  await expect(page.getByRole('alert')).toContainText('cannot be asked');
  await hub.do({ do: 'start_node' });
  await expect(page.getByLabel('My quota')).toContainText('0 of 1');
  await expect(page.getByRole('alert')).toHaveCount(0);
});

test('a change that comes while a page is fetching is fetched, too', async ({
  gpusOf,
  hub
}) => {
  const page = await gpusOf('alice');
  // Without the look that it takes now and then in any case.
  await page.addInitScript(() => {
    Object.assign(window, { setInterval: () => 0 });
  });
  let told = 0;
  page.on('websocket', socket => socket.on('framereceived', () => told++));
  let first = true;
  await page.route('**/*part=live*', async route => {
    const response = await route.fetch();
    if (first) {
      first = false;
      const before = told;
      await hub.do({ do: 'kill_node' });
      await expect.poll(() => told).toBeGreaterThan(before);
    }
    await route.fulfill({ response });
  });
  await page.reload();
  await expect(page.getByRole('alert')).toContainText('cannot be asked');
  await hub.do({ do: 'start_node' });
  await expect(page.getByRole('alert')).toHaveCount(0);
});

test('it can be read on a phone and in the dark', async ({
  gpusOf,
  hub,
  shoot
}) => {
  await hub.do({ do: 'kernel', who: 'alice' });
  await hub.do({
    do: 'ask',
    who: 'bob',
    name: 'a-rather-long-name-of-a-script.py'
  });
  const page = await gpusOf('carol');
  await page.setViewportSize({ width: 390, height: 844 });
  for (const place of [
    '',
    'admin',
    'admin/quota',
    'admin/quota?of=default',
    'admin/quota?environment=s01&environment=s02'
  ]) {
    await page.goto(`/services/gpushare/${place}`);
    await expect(page.locator('main')).toBeVisible();
    await expectFits(page);
  }
  await page.goto('/services/gpushare/admin');
  await expect(page.getByLabel(/^Leases of/)).toContainText('train.ipynb');
  await shoot(page, 'hub-admin-phone');
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.evaluate(() =>
    document.documentElement.setAttribute('data-bs-theme', 'dark')
  );
  await expectAccessible(page, 'main');
  await page.setViewportSize({ width: 1280, height: 800 });
  await expectAccessible(page, 'main');
  await shoot(page, 'hub-admin-dark');
});

test('a class of 54 is sorted, filtered and paged, and stays so while things change', async ({
  gpusOf,
  hub,
  shoot
}) => {
  const page = await gpusOf('carol');
  const complaints = complaintsOf(page);
  await page.goto('/services/gpushare/admin');
  const users = page.getByLabel(/^Users of/);
  const rows = users.locator('tbody tr');
  await expect(rows).toHaveCount(25);
  await expect(users).toContainText('1–25 of 54');
  await page.getByRole('link', { name: 'Next' }).click();
  await expect(users).toContainText('26–50 of 54');
  await expect(rows.first()).toContainText('s23');

  await page.getByLabel('Group', { exact: true }).selectOption('class');
  await page.getByLabel('Sort by').selectOption('leases');
  await page.getByRole('button', { name: 'Show' }).click();
  await expect(users).toContainText('51 of 54');
  await page.getByRole('link', { name: 'Next' }).click();
  await expect(rows.first()).toContainText('s26');
  expect(complaints).toEqual([]);
  await expectAccessible(page, 'main');

  // Somebody types, and has ticked two, when a lease comes: the page is what it was, but new.
  await page.getByLabel('Tick s30').check();
  await page.getByLabel('Tick s31').check();
  await page.getByLabel('Find a user').fill('half a na');
  await hub.do({ do: 'ask', who: 's40', name: 'homework', until_held: true });
  await expect(rows.first()).toContainText('s25');
  await expect(users).toContainText('26–50 of 51');
  await expect(page.getByLabel('Tick s30')).toBeChecked();
  await expect(page.getByLabel('Tick s31')).toBeChecked();
  await expect(page.getByLabel('Find a user')).toHaveValue('half a na');
  await expect(page.getByLabel('Find a user')).toBeFocused();
  await expect(page.getByLabel('Sort by')).toHaveValue('leases');

  await users.getByRole('button', { name: 'Edit the ticked' }).click();
  await expect(
    page.getByRole('heading', { name: 'The quota of s30, s31' })
  ).toBeVisible();
  await expectAccessible(page, 'main');
  await page.getByLabel('Change: GPU-hours').check();
  await page.getByLabel('GPU-hours', { exact: true }).fill('30');
  await page.getByLabel('Change: Period of the GPU-hours').check();
  await page
    .getByLabel('Period of the GPU-hours', { exact: true })
    .selectOption('week');
  await shoot(page, 'hub-quota-several');
  await page.getByRole('button', { name: 'Save' }).click();
  await expect(page.getByRole('status').first()).toContainText(
    'The quota of s30, s31 is now GPU-hours: 30 this week.'
  );
  await page.goto('/services/gpushare/admin?only=set');
  await expect(rows).toHaveCount(2);
  await expect(rows.first()).toContainText('0 of 30 this week');
  await users.getByLabel('Tick all on this page').check();
  await expect(page.getByLabel('Tick s31')).toBeChecked();
});

test('a quota of a group is edited, and given back', async ({ gpusOf }) => {
  const hers = await gpusOf('s05');
  await expect(hers.getByLabel('My quota')).toContainText('group class');
  await expect(hers.getByLabel('My quota')).toContainText(
    /GPU-hours.*this month/
  );
  const page = await gpusOf('carol');
  await page.goto('/services/gpushare/admin');
  const groups = page.getByLabel(/^Quotas of groups/);
  await groups.getByRole('link', { name: 'Edit the quota of class' }).click();
  await page.getByLabel('GPUs', { exact: true }).fill('2');
  await page.getByRole('button', { name: 'Save' }).click();
  const row = groups.getByRole('row').filter({ hasText: 'class' });
  await expect(row).toContainText('administrator');
  await expect(hers.getByLabel('My quota')).toContainText('0 of 2');
  await row.getByRole('link').click();
  await page.getByRole('button', { name: /^Back to/ }).click();
  await expect(row).toContainText('configuration');
  await expect(hers.getByLabel('My quota')).toContainText('0 of 1');
});

test('hours by day come while the page is open, as in the file', async ({
  gpusOf,
  hub
}) => {
  const page = await gpusOf('s07');
  await page.clock.install();
  await page.reload();
  const days = page.getByLabel('My GPU-hours', { exact: true });
  await expect(days).toContainText('In the last 30 days: 0 GPU-hours held');
  await hub.do({ do: 'ask', who: 's07', name: 'homework', until_held: true });
  await expect(page.getByLabel('My leases')).toContainText('homework');
  // Twenty seconds later at the most, without a reload.
  await page.clock.fastForward(25_000);
  await expect(days).toContainText(
    'In the last 30 days: < 0.01 GPU-hours held'
  );
  const file = await page.request.get('/services/gpushare/usage.csv?days=1');
  expect(
    Number((await file.text()).split('\r\n')[1].split(',')[3])
  ).toBeLessThan(0.01);
});
