import { mkdir, writeFile } from 'fs/promises';
import * as path from 'path';
import { Locator, Page, expect } from '@playwright/test';
import type { Server } from './servers';

/** Put a notebook with these code cells into the server's folder; `name` is relative to that. */
export async function writeNotebook(
  server: Server,
  name: string,
  cells: string[],
  metadata: Record<string, unknown> = {}
): Promise<void> {
  const file = path.join(server.root, name);
  const content = {
    cells: cells.map((source, index) => ({
      id: `cell-${index}`,
      cell_type: 'code',
      execution_count: null,
      metadata: {},
      outputs: [],
      source
    })),
    metadata: {
      kernelspec: {
        display_name: 'Python 3 (ipykernel)',
        language: 'python',
        name: 'python3'
      },
      ...metadata
    },
    nbformat: 4,
    nbformat_minor: 5
  };
  await mkdir(path.dirname(file), { recursive: true });
  await writeFile(file, JSON.stringify(content));
}

/** A notebook that is open on a page, in JupyterLab or in Notebook. */
export class OpenNotebook {
  constructor(
    readonly page: Page,
    readonly panel: Locator,
    private readonly file: string
  ) {}

  /** Wait until its kernel waits for work, as after a restart. */
  ready(): Promise<void> {
    return kernelReady(this.page, this.file);
  }

  cell(index: number): Locator {
    return this.panel.locator(
      `.jp-CodeCell[data-windowed-list-index="${index}"]`
    );
  }

  /** Run a cell as a person does, and do not wait for its end. */
  async run(index: number): Promise<void> {
    const before = await this.prompt(index).innerText();
    await this.cell(index).locator('.cm-content').click();
    await this.page.keyboard.press('Control+Enter');
    await expect(this.prompt(index)).not.toHaveText(before);
  }

  /** Wait until a cell has run, and return what it printed. */
  async done(index: number, timeout = 60_000): Promise<string> {
    await expect(this.prompt(index)).toHaveText(/^\[\d+\]:$/, { timeout });
    const outputs = this.cell(index).locator('.jp-OutputArea-output');
    return (await outputs.allInnerTexts()).join('\n');
  }

  /** Run a cell, wait for its end and return what it printed. */
  async result(index: number, timeout?: number): Promise<string> {
    await this.run(index);
    return this.done(index, timeout);
  }

  private prompt(index: number): Locator {
    return this.cell(index).locator('.jp-InputArea-prompt');
  }
}

/**
 * Wait until a notebook's kernel is connected and waits for work. The page shows "Idle" earlier,
 * and a cell that is run in between is dropped without a word.
 */
async function kernelReady(page: Page, name: string): Promise<void> {
  await page.waitForFunction(
    file => {
      // eslint-disable-next-line @typescript-eslint/no-explicit-any
      const shell = (window as any).jupyterapp?.shell;
      for (const widget of shell?.widgets('main') ?? []) {
        if (widget.context?.path === file) {
          const session = widget.sessionContext;
          const kernel = session?.isReady ? session.session?.kernel : null;
          return (
            kernel?.connectionStatus === 'connected' && kernel.status === 'idle'
          );
        }
      }
      return false;
    },
    name,
    { timeout: 60_000 }
  );
}

/** Open a notebook in JupyterLab that is in the server's folder, and wait for its kernel. */
export async function openInLab(
  page: Page,
  name: string
): Promise<OpenNotebook> {
  await page.evaluate(async file => {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    const app = (window as any).jupyterapp;
    await app.commands.execute('docmanager:open', { path: file });
  }, name);
  await expect(
    page.getByRole('main').locator('.lm-TabBar-tab.jp-mod-current')
  ).toContainText(path.basename(name));
  await kernelReady(page, name);
  const id = await page
    .locator('.jp-NotebookPanel:not(.lm-mod-hidden)')
    .getAttribute('id');
  return new OpenNotebook(page, page.locator(`[id="${id}"]`), name);
}

/** Go to a notebook in Jupyter Notebook, and wait for its kernel. */
export async function openInNotebook(
  page: Page,
  server: Server,
  name: string
): Promise<OpenNotebook> {
  await page.goto(`${server.url}notebooks/${name}`);
  await kernelReady(page, name);
  return new OpenNotebook(page, page.locator('.jp-NotebookPanel'), name);
}
