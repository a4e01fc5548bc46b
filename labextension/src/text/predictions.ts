/** What a model is expected to need, in words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import type { PredictedKind, Prediction } from '../api/types';
import { bestKind } from '../model/predictions';
import { formatBytes, formatDuration, formatRange, type Units } from './format';

/** `≈ 6.1 GiB, 12 min on A100; would start now`. */
export function predictionText(
  prediction: Prediction,
  units: Units,
  trans: TranslationBundle
): string {
  return kindText(bestKind(prediction), units, trans);
}

/** A line for each kind of GPU, and what the figures are for. */
export function predictionHint(
  prediction: Prediction,
  units: Units,
  trans: TranslationBundle
): string {
  const head = trans._n(
    'Expected for %1 iteration with a batch of %2:',
    'Expected for %1 iterations with a batch of %2:',
    prediction.iterations,
    prediction.batch
  );
  const kinds = prediction.kinds.map(kind => kindText(kind, units, trans));
  return [head, ...kinds].join('\n');
}

function kindText(
  kind: PredictedKind,
  units: Units,
  trans: TranslationBundle
): string {
  return trans.__(
    '≈ %1, %2 on %3; %4',
    formatBytes(kind.memory, units),
    formatDuration(Math.max(1, Math.round(kind.seconds)), trans),
    kind.kind,
    startText(kind, trans)
  );
}

function startText(kind: PredictedKind, trans: TranslationBundle): string {
  switch (kind.starts) {
    case 'now':
      return trans.__('would start now');
    case 'waits':
      return kind.wait
        ? trans.__(
            'would wait about %1',
            formatRange(kind.wait.low, kind.wait.high, trans)
          )
        : trans.__('would wait');
    case 'over_quota':
      return trans.__('needs more than your quota gives');
    case 'too_large':
      return trans.__('larger than the GPU');
    default:
      return trans.__('cannot start now');
  }
}
