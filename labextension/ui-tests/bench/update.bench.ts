import { writeFile } from 'fs/promises';
import * as os from 'os';
import * as path from 'path';
import { CDPSession, Page } from '@playwright/test';
import { expect, test } from '../support/fixtures';
import { GpuPanel } from '../support/panel';
import {
  aGpu,
  aLease,
  aStatus,
  aWaiting
} from '../../src/__tests__/support/builders';
import { IDocuments, install, ISize } from './page';

const LARGE: ISize = {
  gpus: 16,
  leases: 200,
  mine: 60,
  waiting: 40,
  changes: 20
};
const SMALL: ISize = { gpus: 2, leases: 4, mine: 2, waiting: 1, changes: 1 };
const LIKE: IDocuments = {
  gpu: aGpu(0),
  lease: aLease('a'),
  waiting: aWaiting(1),
  status: aStatus()
};
/** An hour, at the most that the node manager sends: five a second. */
const HOUR = Number(process.env.BENCH_UPDATES || 18_000);
const SAMPLE = 300;
const DOCS = path.join(__dirname, '..', '..', '..', 'docs');

interface IMeasured {
  median: number;
  p95: number;
  longest: number;
}

/** Send `count` statuses one after the other; milliseconds until each was painted. */
async function times(page: Page, count: number): Promise<IMeasured> {
  const taken = await page.evaluate(async rounds => {
    const all: number[] = [];
    for (let round = 0; round < rounds; round++) {
      all.push(await window.gpushareBench.next());
    }
    return all.sort((a, b) => a - b);
  }, count);
  return {
    median: taken[Math.floor(count / 2)],
    p95: taken[Math.floor(count * 0.95)],
    longest: taken[count - 1]
  };
}

/** The heap after a garbage collection (bytes), and the page's nodes. */
async function size(
  page: Page,
  session: CDPSession
): Promise<{ heap: number; nodes: number }> {
  for (let turn = 0; turn < 3; turn++) {
    await session.send('HeapProfiler.collectGarbage');
  }
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  const nodes = await page.evaluate(
    () => document.getElementsByTagName('*').length
  );
  return { heap: usedSize, nodes };
}

async function openWith(
  page: Page,
  url: string,
  given: ISize
): Promise<GpuPanel> {
  await page.addInitScript(install, { size: given, like: LIKE });
  await page.goto(url);
  await page.waitForSelector('#jp-main-dock-panel');
  const panel = await GpuPanel.open(page);
  await times(page, 50);
  await expect(panel.leases).toHaveCount(given.mine);
  return panel;
}

test('from a status to its paint', async ({ gpushare, pageOf }) => {
  const url = `${gpushare.alice.url}lab?reset`;
  let page = await pageOf(gpushare.alice);
  await openWith(page, url, SMALL);
  const small = await times(page, SAMPLE);

  await page.close();
  page = await pageOf(gpushare.alice);
  await openWith(page, url, LARGE);
  const session = await page.context().newCDPSession(page);
  const first = await times(page, SAMPLE);
  const before = await size(page, session);
  let sent = 0;
  while (sent < HOUR) {
    await times(page, SAMPLE);
    sent += SAMPLE;
  }
  const last = await times(page, SAMPLE);
  const after = await size(page, session);

  const result = {
    machine:
      process.env.MACHINE ??
      `${os.cpus().length} cores, ${os.cpus()[0]?.model ?? 'unknown'}`,
    updates: sent,
    small,
    first,
    last,
    before,
    after
  };
  await writeFile(
    path.join(DOCS, 'benchmarks-ui.json'),
    JSON.stringify(result, null, 1) + '\n'
  );
  await writeFile(path.join(DOCS, 'benchmarks-ui.md'), markdown(result));
  console.log(JSON.stringify(result, null, 1));
});

function markdown(result: {
  machine: string;
  updates: number;
  small: IMeasured;
  first: IMeasured;
  last: IMeasured;
  before: { heap: number; nodes: number };
  after: { heap: number; nodes: number };
}): string {
  const row = (what: string, of: IMeasured): string =>
    `| ${what} | ${of.median.toFixed(0)} ms | ${of.p95.toFixed(0)} ms | ${of.longest.toFixed(0)} ms |`;
  const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
  const { small, first, last, before, after } = result;
  return `# What the panel costs

\`make bench-ui\` makes this page. It runs a real JupyterLab in chromium with the panel open; a
stand-in for the live connection sends statuses. A time begins when the message arrives in the page
and ends when the frame that shows it is painted; a frame lasts 17 ms.

Measured on: ${result.machine}.

| a status of | median | p95 | longest |
|---|---|---|---|
${row('2 GPUs, 4 leases', small)}
${row('16 GPUs, 200 leases (60 of them mine), 40 waiting; 20 leases change', first)}
${row(`the same after ${result.updates.toLocaleString('en')} updates (an hour at five a second)`, last)}

Over these updates the heap, after a garbage collection, went from ${mib(before.heap)} to
${mib(after.heap)} MiB and the page from ${before.nodes} to ${after.nodes} elements; the p95 at the
end is ${(last.p95 / first.p95).toFixed(2)} times that at the beginning.

The aim is less than 100 ms and no growth.
`;
}
