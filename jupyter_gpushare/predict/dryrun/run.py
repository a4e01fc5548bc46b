"""The caller's side of a dry run: structure goes out, features come back."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from ..features import Features
from .errors import DryRunFailed
from .step import Step
from .travel import pack

#: The child computes nothing on a GPU, and our own import hook asks for none there.
ENVIRON: Final = {
    "JUPYTER_GPUSHARE": "off",
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
}
#: The caller's sys.path comes first: ours and the user's modules are found as they are here.
START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from jupyter_gpushare.predict.dryrun.child import main; main()"
)


def dry_run(
    model: Any,
    batch: Any,
    *,
    iterations: int = 1,
    training: bool | None = None,
    loss: Callable[..., Any] | str | None = None,
    optimizer: Any = None,
    step: Step | None = None,
    timeout: float = 60.0,
) -> Features:
    """What ``model`` needs for ``iterations`` over ``batch``, without running it on a GPU.

    ``model`` is a torch module, a Keras model, a function of JAX, a module of Flax's NNX, or a pair
    of such a function, or of a module of Flax's Linen, and its parameters. ``batch`` is what the
    model is called with: a tensor, or a tuple or a dict of them. Training is meant where a ``loss``
    or an ``optimizer`` is given. ``loss(output)`` or ``loss(output, target)`` gives a scalar; for
    the latter the batch's last part is the target; Keras knows losses by name, too. Without a loss
    the scalars that the model gives are it, else the cross entropy of all outputs, and
    `Features.guessed` says how much of the peak that is. ``optimizer`` is an optimizer of the
    model, or "sgd", "adam" or "adamw". A ``step`` of torch takes the place of all these. No weights
    leave this process. Raises `DryRunFailed`.
    """
    model = functional(model)
    framework = framework_of(model)
    if training is None:
        training = loss is not None or optimizer is not None
    job = {
        "framework": framework,
        "training": training,
        # A compiled module hands the original over: the dry run counts its operations itself.
        "job": pack((getattr(model, "_orig_mod", model), batch, loss, optimizer, step)),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", START, json.dumps(sys.path)],
            input=pickle.dumps(job),
            capture_output=True,
            timeout=timeout,
            env={**os.environ, **ENVIRON},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DryRunFailed(
            "timeout",
            f"The dry run took more than {timeout:g} s and was stopped.",
            "Try a smaller model or batch, or give it more time.",
        ) from error
    return _answer(done, iterations)


def functional(model: Any) -> Any:
    """A module of Flax as a function of JAX and its parameters. Raises `DryRunFailed`."""
    linen, nnx = sys.modules.get("flax.linen"), sys.modules.get("flax.nnx")
    if linen is not None and isinstance(model, linen.Module):
        raise DryRunFailed(
            "unknown",
            "A module of Flax has no parameters of its own.",
            "Pass (model, variables) as the model, with what model.init() gave.",
        )
    if isinstance(model, tuple) and linen is not None and isinstance(model[0], linen.Module):
        return (model[0].apply, *model[1:])
    if nnx is not None and isinstance(model, nnx.Module):
        structure, state = nnx.split(model)
        merge = nnx.merge
        return (lambda state, *given: merge(structure, state)(*given)), state
    return model


def framework_of(model: Any) -> str:
    """The framework of a model. Raises `DryRunFailed`."""
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    if isinstance(model, getattr(keras, "Model", ())):
        return "tensorflow"
    is_layer = isinstance(model, getattr(keras, "Layer", ()))
    is_pair = isinstance(model, tuple) and len(model) == 2 and callable(model[0])
    if sys.modules.get("jax") is not None and not is_layer and (callable(model) or is_pair):
        return "jax"
    raise DryRunFailed(
        "unknown",
        f"No torch module, Keras model or function of JAX: {type(model).__name__}.",
        "Import the framework first, and pass the model itself.",
    )


def _answer(done: subprocess.CompletedProcess[bytes], iterations: int) -> Features:
    lines = done.stdout.splitlines()
    try:
        told = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise DryRunFailed(
            "failed",
            f"The dry run's process ended with {done.returncode}: {said[-1] if said else ''}",
            "Try the model on one small batch on the CPU first.",
        ) from None
    if "error" in told:
        raise DryRunFailed(*told["error"])
    return Features.read({**told, "iterations": iterations})
