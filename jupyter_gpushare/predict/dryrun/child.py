"""The subprocess of a dry run. It reads a job from stdin and writes one line of JSON."""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
from typing import Any

from .errors import DryRunFailed
from .tally import Tally


def main() -> None:
    """Answer one job."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the model prints is no answer
    answer.write(json.dumps(answer_to(pickle.load(sys.stdin.buffer))) + "\n")
    answer.flush()
    os._exit(0)  # frameworks' threads have nothing left to do


def answer_to(job: dict[str, Any]) -> dict[str, Any]:
    """What a job's model needs, or why nobody can tell."""
    try:
        return _trace(job)
    except DryRunFailed as error:
        return {"error": [error.reason, error.what, error.todo]}
    except ImportError as error:
        return {
            "error": [
                "missing",
                f"The dry run's process cannot import what the model needs: {error}",
                "Install it into this Python, or define it in the notebook itself.",
            ]
        }
    except Exception as error:  # noqa: BLE001 - the model's own code may raise anything
        return {"error": explain(error)}


def _trace(job: dict[str, Any]) -> dict[str, Any]:
    if job["framework"] == "torch":
        from .torchtrace import trace
    elif job["framework"] == "jax":
        from .jaxtrace import trace
    else:
        from .tftrace import trace
    more = {"framework": job["framework"], "training": job["training"], "iterations": 1}
    return {**trace(job["job"], job["training"]), **more}


#: Errors of frameworks that mean: the way through the model depends on the numbers.
DATA_DEPENDENT = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
    "TracerArrayConversionError",
    "ConcretizationTypeError",
    "NonConcreteBooleanIndexError",
    "OperatorNotAllowedInGraphError",
)


def explain(error: BaseException) -> list[str]:
    """The reason, what happened and what to do, for an error of the model's own code."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    lines = str(error).strip().splitlines() or [""]
    # TensorFlow puts the user's code before what was wrong there.
    first = lines[-1].strip() if lines[0].startswith("in user code") else lines[0]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    if kinds & set(DATA_DEPENDENT):
        return [
            "data-dependent",
            "The model's way depends on its data's values, and a dry run knows their shapes only: "
            f"{what}.",
            "Predict a part without `if tensor:`, `.item()`, `nonzero()` or masks as indices, or "
            "run a few real steps: they are measured and remembered.",
        ]
    return [
        "failed",
        f"The model raised an error in the dry run: {what}",
        "Try the model on one small batch on the CPU; does it run there?",
    ]


#: Bytes that the cross entropy of one output takes beside the output itself: two numbers.
GUESSED = 8


def told(tally: Tally, given: list[Any], peak: float, guessed: int = 0) -> dict[str, Any]:
    """The features, by the shapes of the inputs ``given``; ``peak``: bytes alive at once, of which
    ``guessed`` are those of a loss that nobody named."""
    batch, elements = _shapes(given)
    return {
        "nodes": {n.kind: [n.largest, n.count, n.flops, n.bytes] for n in tally.nodes()},
        "batch": batch,
        "inputs": elements,
        "peak": int(peak),
        "guessed": guessed,
    }


def _shapes(things: list[Any]) -> tuple[int, int]:
    """The batch size and the count of elements of the inputs, by their shapes."""
    batch, elements = 1, 0
    for shape in things:
        if elements == 0 and len(shape):
            batch = int(shape[0])
        elements += math.prod(shape)
    return batch, elements


def takes(function: Any) -> int:
    """How many positional arguments a loss needs."""
    import inspect

    forward = getattr(function, "forward", function)
    call = getattr(forward, "call", forward)  # Keras' losses
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def split(batch: Any, loss: Any) -> tuple[Any, Any]:
    """The model's inputs and the target: the batch's last part where the loss takes two."""
    if loss is not None and takes(loss) >= 2:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise DryRunFailed(
                "failed",
                "The loss takes an output and a target, and the batch has no target.",
                "Pass (inputs, target) as the batch.",
            )
        *inputs, target = batch
        return tuple(inputs), target
    return batch, None
