import { expect, test } from '../support/fixtures';
import { loadLab } from '../support/labs';
import { GpuPanel, statusItem, toolbarItem } from '../support/panel';

/** Made in the page by a test. */
declare function enableExtension(): void;

test('a lease outlives the node manager, and what is shown is marked as old while that is away', async ({
  gpushare,
  open,
  page,
  shoot
}) => {
  const panel = await GpuPanel.open(page);
  const notebook = await open('outlive.ipynb', ['%gpushare request']);
  await notebook.result(0);
  await expect(panel.leases).toHaveCount(1);
  // The end of the cell is told a moment after its result; the node manager has to hear it.
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB · idle');

  const held = async (): Promise<string[]> =>
    (await gpushare.alice.status()).leases.map(lease => lease.id);
  const before = await held();

  await gpushare.killNode();
  await expect(panel.banner).toContainText('Not up to date');
  await expect(panel.banner).toContainText(
    'The node manager cannot be reached'
  );
  await expect(panel.leases).toHaveCount(1);
  await expect(statusItem(page)).toContainText('?');
  // What the notebook's toolbar says may be wrong by now, too.
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB · idle ?');
  await expect(toolbarItem(page)).toHaveAccessibleName(/not up to date/);
  await shoot(page, 'stale');
  expect((await gpushare.alice.api.get('gpushare/api/status')).status()).toBe(
    503
  );

  await gpushare.startNode();
  await expect(panel.banner).toHaveCount(0);
  await expect(panel.lease('outlive.ipynb')).toContainText('Idle');
  await expect(statusItem(page)).not.toContainText('?');
  await expect(toolbarItem(page)).toHaveText('GPU 0 · 16 GiB · idle');
  await expect(toolbarItem(page)).not.toHaveAccessibleName(/not up to date/);
  expect(await held()).toEqual(before);
});

test('who may not look is told so; a server without the extension is told apart; without WebSockets what HTTP gives is shown', async ({
  gpushare,
  pageOf,
  shoot
}) => {
  const page = await pageOf(gpushare.alice);
  const FORBIDDEN = {
    status: 403,
    json: { reason: 'not_allowed', message: 'You may not do this here.' }
  };
  const MISSING = { status: 404, body: '<html>Not found</html>' };
  let answer: typeof FORBIDDEN | typeof MISSING | null = FORBIDDEN;
  // Enabled by the press of the button, not before: the panel tries again by itself, too, and
  // would take the button away.
  await page.exposeFunction('enableExtension', () => {
    answer = null;
  });
  await page.route('**/gpushare/api/**', route =>
    answer ? route.fulfill(answer) : route.fallback()
  );
  await page.routeWebSocket('**/gpushare/api/live**', socket => socket.close());
  await loadLab(page, `${gpushare.alice.url}lab?reset`);
  const panel = await GpuPanel.open(page);
  await expect(panel.banner).toContainText('You may not see the GPUs here');

  answer = MISSING;
  const again = panel.root.getByRole('button', { name: 'Try again' });
  await again.click();
  await expect(panel.banner).toContainText(
    'The server extension is not enabled'
  );
  await expect(panel.banner).toContainText(
    'jupyter server extension enable jupyter_gpushare'
  );
  await expect(panel.section('quota')).toBeHidden();
  await shoot(page, 'not-enabled');
  await page.evaluate(() => {
    document.addEventListener('click', () => enableExtension());
  });
  await again.click();
  await panel.expectGpus('0 of 2');

  // WebSockets are closed still: what HTTP gives is shown.
  await expect(panel.banner).toContainText('No live updates');
});
