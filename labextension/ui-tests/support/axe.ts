import AxeBuilder from '@axe-core/playwright';
import { Page, expect } from '@playwright/test';

/** No violation that axe calls serious or critical in what the selector matches. */
export async function expectAccessible(
  page: Page,
  selector: string
): Promise<void> {
  const { violations } = await new AxeBuilder({ page })
    .include(selector)
    // Nothing here is in a frame of somebody else's, for which a second page would be opened.
    .setLegacyMode()
    .analyze();
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
