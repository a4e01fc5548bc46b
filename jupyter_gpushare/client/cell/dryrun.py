"""What a cell is expected to need, with all its models and losses where that can be told."""

from __future__ import annotations

from ..acquire import broker
from ..errors import GpuShareError
from ..requests.predicting import dry_run_of, predicted
from ..words.prediction import Prediction, left_out
from .reading import Work


def estimate_cell(work: Work) -> Prediction:
    """As `api.estimate`, of a cell.

    Where its own steps cannot be followed it is the cell's first model alone, which the prediction
    says. Raises ``GpuShareError``.
    """
    training, why = work.training or None, ""
    if work.step is not None:
        step = {"iterations": work.iterations, "training": training, "step": work.step}
        try:
            return predicted(broker(), dry_run_of(work.model, work.batch, **step))
        except GpuShareError as error:
            if work.batch is None:
                raise
            why = str(error)
    alone = {"iterations": work.iterations, "training": training, "optimizer": work.optimizer}
    features = dry_run_of(work.model, work.batch, **alone)
    return predicted(broker(), features, *left_out(work.models, why))
