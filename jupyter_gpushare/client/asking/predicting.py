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
from ..words.prediction import Prediction

if TYPE_CHECKING:
    from .broker import Broker


def predicted(broker: Broker, features: Features) -> Prediction:
    """What a model needs. Raises :class:`GpuShareError` where the node manager refuses."""
    if not broker.configured:
        return _locally(features, "There is no node manager.")
    try:
        if not broker.understands(Method.PREDICT):
            return _locally(features, "The node manager is of an older release.")
        answer = broker.call(Method.PREDICT, **params_of(features))
    except NodeUnavailable as error:
        return _locally(features, str(error))
    return Prediction(answer if isinstance(answer, dict) else {})


def params_of(features: Features) -> dict[str, Any]:
    """The parameters of the call."""
    return {
        "task": describe_task(os.environ),
        "framework": features.framework,
        "operations": [asdict(node) for node in features.nodes],
        "batch": features.batch,
        "iterations": features.iterations,
        "inputs": features.inputs,
        "peak": features.peak,
        "training": features.training,
        "code": code_of(os.environ),
    }


def _locally(features: Features, why: str) -> Prediction:
    from ...predict.estimates import Predictor, WrongModels
    from ...predict.kinds import KINDS

    try:
        found = Predictor.load().predict(features, KINDS)
    except WrongModels as error:
        raise GpuShareError(str(error)) from error
    rows = [{**asdict(one), "basis": one.basis.value} for one in found]
    told = {"batch": features.batch, "iterations": features.iterations, "kinds": rows}
    return Prediction(told, why)
