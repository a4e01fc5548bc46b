import { fireEvent, screen } from '@testing-library/react';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import React from 'react';

import type { PredictedKind, Prediction } from '../api/types';
import { CommandIDs } from '../commands';
import { bestKind, predictionOfKernel } from '../model/predictions';
import { predictionHint, predictionText } from '../text/predictions';
import { PredictionView } from '../widgets/predictionitem';
import { aStatus, GIB } from './support/builders';
import { show } from './support/views';

const trans = nullTranslator.load('jupyterlab');

function aKind(kind: string, given: Partial<PredictedKind> = {}) {
  return {
    kind,
    gpus: 1,
    memory: 6.1 * GIB,
    memory_p90: 7 * GIB,
    seconds: 720,
    seconds_p90: 900,
    utilisation: 80,
    error: 0.1,
    basis: 'predicted',
    starts: 'now',
    wait: null,
    ...given
  } as PredictedKind;
}

function aPrediction(given: Partial<Prediction> = {}): Prediction {
  return {
    kernel_id: 'k1',
    path: 'a.ipynb',
    at: 1000,
    batch: 32,
    iterations: 100,
    kinds: [aKind('A100')],
    ...given
  };
}

describe('the prediction of a notebook', () => {
  it("is its kernel's newest, and none where nobody asked", () => {
    const newer = aPrediction({ at: 2000 });
    const predictions = [aPrediction(), newer, aPrediction({ kinds: [] })];
    const status = aStatus({ predictions });
    expect(predictionOfKernel(status, 'k1')).toBe(newer);
    expect(predictionOfKernel(status, 'k2')).toBeNull();
    expect(predictionOfKernel(status, null)).toBeNull();
    expect(predictionOfKernel(aStatus(), 'k1')).toBeNull();
  });

  it('names the kind where it starts first, of those the fastest', () => {
    const waits = aKind('H100', { starts: 'waits', seconds: 60 });
    const slow = aKind('T4', { seconds: 3600 });
    const told = aPrediction({ kinds: [waits, slow, aKind('A100')] });
    expect(bestKind(told).kind).toBe('A100');
    expect(predictionText(told, 'binary', trans)).toBe(
      '≈ 6.1 GiB, 12 min on A100; would start now'
    );
    expect(predictionHint(told, 'binary', trans)).toContain(
      '1 min on H100; would wait'
    );
  });

  it.each([
    ['waits', { low: 600, high: 1800 }, 'would wait about 10 to 30 min'],
    ['waits', null, 'would wait'],
    ['over_quota', null, 'needs more than your quota gives'],
    ['too_large', null, 'larger than the GPU'],
    ['unavailable', null, 'cannot start now']
  ] as const)('says that it %s', (starts, span, words) => {
    const wait = span && { ...span, basis: 'waits' as const };
    const kinds = [aKind('A100', { starts, wait })];
    expect(predictionText(aPrediction({ kinds }), 'binary', trans)).toMatch(
      new RegExp(`; ${words}$`)
    );
  });

  it('is a button in the toolbar that opens the panel', () => {
    const sessionContext = {
      session: { kernel: { id: 'k1' } },
      kernelChanged: new Signal<object, unknown>({})
    } as unknown as NotebookPanel['sessionContext'];
    const Item = () => <PredictionView notebook={{ sessionContext }} />;
    const { model, ran } = show(Item, aStatus(), [CommandIDs.showPanel]);
    expect(screen.queryByRole('button')).toBeNull();
    model.setStatus(aStatus({ predictions: [aPrediction()] }));
    const button = screen.getByRole('button');
    expect(button.textContent).toBe(
      '≈ 6.1 GiB, 12 min on A100; would start now'
    );
    fireEvent.click(button);
    expect(ran.map(one => one.command)).toEqual([CommandIDs.showPanel]);
  });
});
