import AxeBuilder from '@axe-core/playwright';
import type { AxeResults, Result } from 'axe-core';
import { FrameLocator, Page, expect } from '@playwright/test';
import { readFileSync } from 'fs';

/** No violation that axe calls serious or critical in what the selectors match. */
export async function expectAccessible(
  page: Page,
  ...selectors: string[]
): Promise<void> {
  // Half a megabyte, that a page which stays has from an earlier test.
  const isThere = await page.evaluate(() => 'axe' in window);
  const axe = new AxeBuilder({ page, axeSource: isThere ? ';' : undefined });
  for (const selector of selectors) {
    // One that matches nothing would be passed over.
    await expect(page.locator(selector).first()).toBeAttached();
    axe.include(selector);
  }
  const { violations } = await axe
    // Nothing here is in a frame of somebody else's, for which a second page would be opened.
    .setLegacyMode()
    .options({ resultTypes: ['violations'] })
    .analyze();
  expectNone(violations);
}

/** The same of the page that a frame shows. */
export async function expectFrameAccessible(
  frame: FrameLocator
): Promise<void> {
  await expect(frame.locator('main')).toBeVisible();
  const shown = await frame.owner().elementHandle();
  const page = (await shown!.contentFrame())!;
  // No script of the page, whose policy would forbid it.
  await page.evaluate(readFileSync(require.resolve('axe-core'), 'utf8'));
  const { violations } = (await page.evaluate('axe.run()')) as AxeResults;
  expectNone(violations);
}

function expectNone(violations: Result[]): void {
  const bad = violations.filter(
    ({ impact }) => impact === 'serious' || impact === 'critical'
  );
  expect(
    bad.map(({ id, help, nodes }) => ({
      id,
      help,
      where: nodes.map(node => node.html)
    }))
  ).toEqual([]);
}
