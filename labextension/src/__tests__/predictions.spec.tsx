import { fireEvent, screen } from '@testing-library/react';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import React from 'react';

import type { Prediction } from '../api/types';
import { CommandIDs } from '../commands';
import { predictionOfKernel } from '../model/predictions';
import { PredictionView } from '../widgets/predictionitem';
import { aSaid, aStatus } from './support/builders';
import { show } from './support/views';

function aPrediction(given: Partial<Prediction> = {}): Prediction {
  return {
    kernel_id: 'k1',
    path: 'a.ipynb',
    at: 1000,
    batch: 32,
    iterations: 100,
    kinds: [],
    says: [aSaid('summary', '≈ 6 GiB on A100', { hint: 'For 100.' })],
    ...given
  };
}

describe('the prediction of a notebook', () => {
  it("is its kernel's newest, and none where nobody asked", () => {
    const newer = aPrediction({ at: 2000 });
    const none = aPrediction({ at: 3000, says: [] });
    const predictions = [aPrediction(), newer, none];
    const status = aStatus({ predictions });
    expect(predictionOfKernel(status, 'k1')).toBe(newer);
    expect(predictionOfKernel(status, 'k2')).toBeNull();
    expect(predictionOfKernel(status, null)).toBeNull();
    expect(predictionOfKernel(aStatus(), 'k1')).toBeNull();
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
    expect(button.textContent).toBe('≈ 6 GiB on A100');
    fireEvent.click(button);
    expect(ran.map(one => one.command)).toEqual([CommandIDs.showPanel]);
  });
});
