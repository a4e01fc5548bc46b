import { nullTranslator } from '@jupyterlab/translation';

import { KernelRefused } from '../api/kernel';
import {
  AskMistake,
  canPark,
  canRequest,
  canResume,
  FIRST_DRAFT,
  longestWait,
  outlook,
  readAsk,
  requestLine
} from '../model/asking';
import { notDoneText, outlookText } from '../text/asking';
import {
  aGpu,
  aLease,
  aQueuedLease,
  aQuota,
  aStatus,
  aWaiting,
  GIB
} from './support/builders';

const trans = nullTranslator.load('');

describe('what is typed', () => {
  it.each([
    ['1', '', { gpus: 1, memory: null }],
    [' 2 ', '8 GiB', { gpus: 2, memory: 8 * GIB }],
    ['4096', '1,5 GiB', { gpus: 4096, memory: 1.5 * GIB }]
  ])('%j GPUs and %j can be asked for', (gpus, memory, ask) => {
    expect(readAsk({ ...FIRST_DRAFT, gpus, memory })).toEqual({
      ask: { ...ask, priorityClass: 'interactive' },
      mistakes: null
    });
  });

  it.each([
    ['0', '', { gpus: AskMistake.NotWhole }],
    ['', '', { gpus: AskMistake.NotWhole }],
    ['1.5', '', { gpus: AskMistake.NotWhole }],
    ['4097', '', { gpus: AskMistake.NotWhole }],
    ['1; quit', '8', { gpus: AskMistake.NotWhole, memory: AskMistake.NoSize }],
    ['1', '8', { memory: AskMistake.NoSize }],
    ['1', '8GiB; import os', { memory: AskMistake.NoSize }]
  ])('%j GPUs and %j cannot', (gpus, memory, mistakes) => {
    expect(readAsk({ ...FIRST_DRAFT, gpus, memory })).toEqual({
      ask: null,
      mistakes
    });
  });
});

it.each([
  [1, null, 'interactive', '%gpushare request --gpus 1 --class interactive'],
  [
    2,
    8 * GIB,
    'interactive',
    '%gpushare request --gpus 2 --memory 8GiB --class interactive'
  ],
  [1, 8e9, 'batch', '%gpushare request --gpus 1 --memory 8GB --class batch']
] as const)('the line for %d × %s, %s', (gpus, memory, priorityClass, line) => {
  expect(requestLine({ gpus, memory, priorityClass })).toBe(line);
});

describe('what an ask may expect', () => {
  const status = (mine: number, others: number) =>
    aStatus({
      quota: aQuota({ gpus: 2, memory: 8 * GIB, used_gpus: mine ? 1 : 0 }),
      gpus: [
        aGpu(0, { mine, reserved: mine, free: 24 * GIB - mine, tasks: 1 }),
        aGpu(1, { reserved: others, free: 24 * GIB - others, tasks: 1 })
      ]
    });
  const expected = (gpus: number, memory: number | null, at = status(0, 0)) =>
    outlook({ gpus, memory, priorityClass: 'interactive' }, at);

  it('is a GPU at once where there is room', () => {
    expect(expected(2, null)).toEqual({ kind: 'at-once' });
  });
  it('is one of my own where I hold some', () => {
    expect(expected(2, null, status(8 * GIB, 0)).kind).toBe('at-once');
  });
  it('is a wait where others have it', () => {
    const full = status(0, 20 * GIB);
    const ask = { gpus: 2, memory: null, priorityClass: 'batch' as const };
    const waits = outlook(ask, full);
    expect(waits).toEqual({ kind: 'waits', having: 1, memory: 8 * GIB });
    expect(outlookText(ask, waits, 'binary', trans)).toBe(
      'As it stands now, you wait: 2 GPUs asked; GPUs with room for 8 GiB: 1.'
    );
  });
  it('is a refusal beyond the quota, or the node', () => {
    expect(expected(3, null)).toEqual({ kind: 'too-many', gpus: 2 });
    expect(expected(1, 9 * GIB)).toEqual({ kind: 'too-much', memory: 8 * GIB });
    const rich = {
      ...status(0, 0),
      quota: aQuota({ gpus: 99, memory: 999 * GIB })
    };
    expect(expected(3, null, rich)).toEqual({ kind: 'too-many', gpus: 2 });
    expect(expected(1, 25 * GIB, rich)).toEqual({
      kind: 'too-much',
      memory: 24 * GIB
    });
    // What is not named is at most the GPU.
    expect(expected(1, null, rich).kind).toBe('at-once');
  });
  it('counts neither lost GPUs nor those with all the tasks they may have', () => {
    const at = status(0, 0);
    const gpus = [
      aGpu(0, { health: 'lost', free: 24 * GIB }),
      aGpu(1, { tasks: at.node.max_tasks_per_gpu })
    ];
    expect(expected(1, null, { ...at, gpus })).toMatchObject({
      kind: 'waits',
      having: 0
    });
  });
});

describe('what may be asked of a kernel', () => {
  it.each([
    ['idle', true, false, true],
    ['active', true, false, true],
    ['parked', false, true, true],
    ['parking', false, false, false],
    ['resuming', false, false, false],
    ['queued', false, false, false],
    ['draining', false, false, false]
  ] as const)('%s', (state, park, resume, request) => {
    const lease = aLease('one', { state });
    expect(canPark(lease)).toBe(park);
    expect(canResume(lease)).toBe(resume);
    expect(canRequest(lease)).toBe(request);
  });

  it('is nothing of programs, of others, and twice', () => {
    expect(canPark(aLease('one', { state: 'idle', kind: 'process' }))).toBe(
      false
    );
    expect(canPark(aLease('one', { state: 'idle', mine: false }))).toBe(false);
    expect(canResume(aQueuedLease('one', 1, { state: 'parked' }))).toBe(false);
    expect(canRequest(null)).toBe(true);
  });
});

it('the longest wait is of whoever waits longest, not of the first', () => {
  const queue = [
    aWaiting(1, { waiting: 5 }),
    aWaiting(2, { waiting: 90 }),
    aWaiting(3, { waiting: 7 })
  ];
  expect(longestWait(aStatus({ queue }))).toBe(90);
  expect(longestWait(aStatus())).toBeNull();
});

it('a kernel that did nothing says why, without marks of code', () => {
  expect(notDoneText(new KernelRefused('busy'), 'a.ipynb', trans)).toMatch(
    /^a.ipynb runs code now/
  );
  expect(
    notDoneText(
      new KernelRefused('refused', 'See `%gpushare help`.'),
      'a.ipynb',
      trans
    )
  ).toBe('a.ipynb: See %gpushare help.');
  expect(notDoneText(new Error('offline'), 'a.ipynb', trans)).toContain(
    'offline'
  );
});
