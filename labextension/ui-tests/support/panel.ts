import { FrameLocator, Locator, Page, expect } from '@playwright/test';

/** The sidebar's sections, by the name that they have in the page. */
type Section = 'quota' | 'leases' | 'queue' | 'gpus' | 'history';

/** The GPUs panel as a person uses it. */
export class GpuPanel {
  private constructor(readonly page: Page) {}

  /** Click on its icon (JupyterLab) or choose it in the menu (Notebook), if it is not there yet. */
  static async open(page: Page): Promise<GpuPanel> {
    const panel = new GpuPanel(page);
    if (!(await panel.root.isVisible())) {
      await execute(page, 'gpushare:show-panel');
    }
    await expect(panel.root).toBeVisible();
    return panel;
  }

  get root(): Locator {
    return this.page.locator('.jp-gpushare-panel');
  }

  get banner(): Locator {
    return this.root.locator('.jp-gpushare-banner');
  }

  section(name: Section): Locator {
    return this.root.locator(`[data-section="${name}"]`);
  }

  /** The bar of my GPUs, with what it says to those who do not see it. */
  get gpuBar(): Locator {
    return this.section('quota').getByRole('meter', { name: 'GPUs' });
  }

  /** The rows of my leases. */
  get leases(): Locator {
    return this.section('leases').locator('.jp-gpushare-row');
  }

  lease(name: string): Locator {
    // By its title: a row may also name whom it shares a GPU with.
    return this.leases.filter({
      has: this.root.page().locator('.jp-gpushare-row-title', { hasText: name })
    });
  }

  gpu(index: number): Locator {
    return this.section('gpus').locator(`[data-gpu="${index}"]`);
  }

  /** Open a section that is collapsed. */
  async expand(title: string): Promise<void> {
    const head = this.root
      .locator('.jp-gpushare-section-title')
      .filter({ hasText: new RegExp(title, 'i') });
    if ((await head.getAttribute('aria-expanded')) !== 'true') {
      await head.click();
    }
    await expect(head).toHaveAttribute('aria-expanded', 'true');
  }

  /** What the bar says: `1 of 2`. */
  async expectGpus(text: string): Promise<void> {
    await expect(this.gpuBar).toHaveAttribute('aria-valuetext', text);
  }
}

/** The toolbar's item of the notebook that is open. */
export function toolbarItem(page: Page): Locator {
  return page
    .locator('.jp-NotebookPanel:not(.lm-mod-hidden)')
    .getByRole('button', { name: /^GPU of this notebook/ });
}

export function statusItem(page: Page): Locator {
  return page.locator('.jp-gpushare-status-item');
}

/** Run a command of the application, once it is there. */
export async function execute(
  page: Page,
  command: string,
  args: object = {}
): Promise<void> {
  await page.waitForFunction(
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    id => (window as any).jupyterapp?.commands.hasCommand(id),
    command
  );
  await page.evaluate(
    async ([id, given]) => {
      // eslint-disable-next-line @typescript-eslint/no-explicit-any
      await (window as any).jupyterapp.commands.execute(id, given);
    },
    [command, args] as const
  );
}

/** The server's pages of administration, in their tab. */
export function administrationOf(page: Page): FrameLocator {
  return page.frameLocator('.jp-IFrame > iframe[title="GPU Administration"]');
}

/** The same, when the tab is there. */
export async function administration(page: Page): Promise<FrameLocator> {
  await execute(page, 'gpushare:show-admin');
  const admin = administrationOf(page);
  await expect(
    admin.getByRole('heading', { name: 'GPU administration' })
  ).toBeVisible();
  return admin;
}

/** Change the theme, and wait until it is there. */
export async function useTheme(page: Page, theme: string): Promise<void> {
  await execute(page, 'apputils:change-theme', { theme });
  await expect(page.locator('body')).toHaveAttribute(
    'data-jp-theme-name',
    theme
  );
}
