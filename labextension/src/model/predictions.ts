/** What a dry run told of the model of an open notebook. Pure. */
import type { PredictedKind, Prediction, Status } from '../api/types';

/** The newest prediction of a kernel; `null` where it has none, or its node has no GPU any more. */
export function predictionOfKernel(
  status: Status | null,
  kernelId: string | null | undefined
): Prediction | null {
  if (!status || !kernelId) {
    return null;
  }
  const own = (status.predictions ?? []).filter(
    one => one.kernel_id === kernelId && one.kinds.length > 0
  );
  return own.reduce<Prediction | null>(
    (newest, one) => (newest && newest.at >= one.at ? newest : one),
    null
  );
}

/** How good it is that it starts so, the best first. */
const STARTS = ['now', 'waits', 'unavailable', 'over_quota', 'too_large'];

/** The kind of GPU to name: where it would start first, and of those the fastest. */
export function bestKind(prediction: Prediction): PredictedKind {
  return [...prediction.kinds].sort(
    (a, b) =>
      STARTS.indexOf(a.starts) - STARTS.indexOf(b.starts) ||
      a.seconds - b.seconds
  )[0];
}
