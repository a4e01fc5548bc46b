import { nullTranslator } from '@jupyterlab/translation';

import { KernelRefused } from '../api/kernel';
import { canPark, canRequest, canResume, requestLine } from '../model/asking';
import { notDoneText } from '../text/asking';
import { aLease, aQueuedLease } from './support/builders';

const trans = nullTranslator.load('');

it.each([
  [1, '', 'interactive', '--gpus 1 --class interactive'],
  [2, ' 8 GiB ', 'batch', '--gpus 2 --memory 8GiB --class batch'],
  [1, '1,5 GiB', 'batch', '--gpus 1 --memory 1.5GiB --class batch'],
  [1, '8;4GiB', 'batch', '--gpus 1 --memory 8_4GiB --class batch'],
  [1, '8GiB; {quit}\n', '$x', '--gpus 1 --memory 8GiB__quit_ --class _x']
])('the line for %d × %j, %j', (gpus, memory, priorityClass, words) => {
  expect(requestLine({ gpus, memory, priorityClass })).toBe(
    `%gpushare request ${words}`
  );
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
