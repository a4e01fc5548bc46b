"""Asks the node manager what a dry run's features mean on its GPUs; without one, this package."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...predict.features import Features
from ...protocol.messages import Method
from ..errors import GpuShareError, NodeUnavailable
from ..session.code import code_of
from ..session.task import describe_task
from ..words.prediction import Prediction, guessed

if TYPE_CHECKING:
    from .broker import Broker


def dry_run_of(model: Any, batch: Any, **options: Any) -> Features:
    """What a dry run tells. Raises :class:`GpuShareError`, which says what to do."""
    from ...predict.dryrun import DryRunFailed, dry_run

    try:
        return dry_run(model, batch, **options)
    except DryRunFailed as error:
        raise GpuShareError(str(error)) from error


def predicted(broker: Broker, features: Features, *notes: str) -> Prediction:
    """What a model needs, with notes on what that leaves out. Raises :class:`GpuShareError` where
    the node manager refuses."""
    notes += guessed(features.guessed)
    if not broker.line.configured:
        return _locally(features, notes, "There is no node manager.")
    try:
        answer = broker.call(
            Method.PREDICT,
            task=describe_task(os.environ),
            framework=features.framework,
            operations=[asdict(node) for node in features.nodes],
            batch=features.batch,
            iterations=features.iterations,
            inputs=features.inputs,
            peak=features.peak,
            training=features.training,
            code=code_of(os.environ),
        )
    except NodeUnavailable as error:
        return _locally(features, notes, str(error))
    return Prediction(answer, notes=notes)


def _locally(features: Features, notes: tuple[str, ...], why: str) -> Prediction:
    from ...predict.estimates import Predictor, WrongModels
    from ...predict.kinds import KINDS

    try:
        found = Predictor.load().predict(features, KINDS)
    except WrongModels as error:
        raise GpuShareError(str(error)) from error
    rows = [{**asdict(one), "basis": one.basis.value} for one in found]
    told = {"batch": features.batch, "iterations": features.iterations, "kinds": rows}
    return Prediction(told, why, notes)
