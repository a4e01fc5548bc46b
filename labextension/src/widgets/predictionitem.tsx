import type { NotebookPanel } from '@jupyterlab/notebook';
import React from 'react';

import { CommandIDs } from '../commands';
import { predictionOfKernel } from '../model/predictions';
import { about, capital, wordsOf } from '../text/said';
import {
  type IViewServices,
  useKernelId,
  useLook,
  useSettings,
  useSnapshot,
  useView,
  ViewWidget
} from './host';
import { useWords } from './said';

/** The toolbar's item with what the notebook's model is expected to need; empty until one asks. */
export class PredictionToolbarItem extends ViewWidget {
  constructor(services: IViewServices, notebook: NotebookPanel) {
    super(services, () => <PredictionView notebook={notebook} />);
    this.addClass('jp-gpushare-prediction-item');
    // As the other item's: the style sheet gives the words what room is left.
    Object.defineProperty(this.node, 'clientWidth', { value: 0 });
  }
}

/** The button that says it and opens the panel; nothing without a prediction. */
export function PredictionView(props: {
  notebook: Pick<NotebookPanel, 'sessionContext'>;
}): JSX.Element | null {
  const { trans, commands } = useView();
  const { status } = useSnapshot();
  const { units } = useSettings();
  const kernel = useKernelId(props.notebook);
  const prediction = predictionOfKernel(status, kernel);
  const said = about(prediction, 'summary');
  const text = capital(useWords(said));
  const kinds = useLook(now =>
    wordsOf(about(prediction, 'takes'), { trans, units, now }, '\n')
  );
  if (!text) {
    return null;
  }
  return (
    <button
      type="button"
      className="jp-gpushare-toolbar-button"
      title={[...said.map(({ hint }) => hint), kinds].join('\n')}
      aria-label={trans.__('Expected of this notebook: %1', text)}
      onClick={() => void commands.execute(CommandIDs.showPanel)}
    >
      <span className="jp-gpushare-toolbar-text">{text}</span>
    </button>
  );
}
