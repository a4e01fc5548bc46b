/** What a dry run told of the model of an open notebook. Pure. */
import type { Prediction, Status } from '../api/types';

/** The newest prediction of a kernel; `null` where it has none, or its node has no GPU any more. */
export function predictionOfKernel(
  status: Status | null,
  kernelId: string | null | undefined
): Prediction | null {
  if (!status || !kernelId) {
    return null;
  }
  const own = (status.predictions ?? []).filter(
    one => one.kernel_id === kernelId && one.says?.length
  );
  return own.reduce<Prediction | null>(
    (newest, one) => (newest && newest.at >= one.at ? newest : one),
    null
  );
}
