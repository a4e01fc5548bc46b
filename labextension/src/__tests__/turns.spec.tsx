import { nullTranslator } from '@jupyterlab/translation';

import type { Lease } from '../api/types';
import { memoryKinds, turnsOf } from '../model/turns';
import { gpuKindsText, gpuTurnText, kindsText, turnText } from '../text/turns';
import { GpusView } from '../widgets/gpus';
import { LeasesView } from '../widgets/leases';
import { aGpu, aLease, aStatus, GIB } from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('');

function training(id: string, given: Partial<Lease> = {}): Lease {
  const [part] = aLease(id).gpus;
  return aLease(id, {
    gpus: [
      { ...part, persistent: 3 * GIB, temporary: GIB, cache: 0.5 * GIB },
      {
        ...part,
        uuid: 'GPU-1',
        index: 1,
        persistent: GIB,
        temporary: GIB,
        cache: null
      }
    ],
    ...given
  });
}

it('sums what a task tells of its GPUs, and takes unknown for unknown', () => {
  expect(memoryKinds(training('a'))).toEqual({
    persistent: 4 * GIB,
    temporary: 2 * GIB,
    cache: null
  });
  expect(memoryKinds(aLease('a'))).toBeNull();
  expect(memoryKinds(aLease('a', { gpus: [] }))).toBeNull();
  expect(kindsText(training('a'), 'binary', trans)).toBe(
    'Keeps 4 GiB; a step needs 2 GiB more'
  );
  const [part] = training('a').gpus;
  expect(kindsText(training('a', { gpus: [part] }), 'binary', trans)).toBe(
    'Keeps 3 GiB; a step needs 1 GiB more; 512 MiB cached'
  );
});

it.each([
  ['holds', /^Has its turn/],
  ['yields', /^Ends its step/],
  ['waits', /^Waits for its turn/],
  ['rest', /^$/],
  [null, /^$/]
] as const)('turn %s in words', (turn, text) => {
  expect(turnText(aLease('a', { turn }), trans)).toMatch(text);
});

describe('a GPU in turns', () => {
  const gpu = aGpu(0, { in_turns: true, share_mode: 'time', shared: 2 * GIB });
  const holds = aLease('a', { turn: 'holds' });
  const waits = aLease('b', { turn: 'waits', mine: false, environment: 'bob' });

  it('says whose turn it is', () => {
    const text = (...leases: Lease[]): string =>
      gpuTurnText(gpu, leases, 'binary', trans);
    expect(text(waits, holds)).toBe(
      'Turn: train.ipynb, 1 waits. 2 GiB used by turns'
    );
    expect(text(waits, waits)).toBe(
      'Turn: nobody, 2 wait. 2 GiB used by turns'
    );
    expect(text(aLease('b', { ...waits, turn: 'holds' }))).toContain(
      'Turn: bob: train.ipynb'
    );
    expect(
      text(aLease('b', { turn: 'holds', mine: false, environment: null }))
    ).toContain('Turn: someone else');
    expect(
      gpuTurnText(aGpu(0, { in_turns: false }), [holds], 'binary', trans)
    ).toBe('');
    expect(turnsOf([aLease('a', { turn: 'yields' })]).now?.id).toBe('a');
  });

  it('is shown with its tasks and what they keep', () => {
    const status = aStatus({
      gpus: [{ ...gpu, persistent: 6 * GIB, temporary: 2 * GIB }],
      leases: [training('a', { turn: 'holds', overran: true }), waits]
    });
    const gpus = show(GpusView, status).container;
    expect(gpus.textContent).toContain('By turns');
    expect(gpus.textContent).toContain(
      'Its tasks keep 6 GiB; a step needs 2 GiB more at most'
    );
    expect(gpus.textContent).toContain('Turn: train.ipynb, 1 waits');
    const mine = show(LeasesView, status).container;
    expect(mine.textContent).toContain('Has its turn on the GPU');
    expect(mine.textContent).toContain('did not give its turn back in time');
  });

  it('says nothing where there is nothing to say', () => {
    expect(gpuKindsText(aGpu(0), 'binary', trans)).toBe('');
    const { container } = show(GpusView, aStatus());
    expect(container.textContent).not.toMatch(/turn|keep/i);
  });
});
