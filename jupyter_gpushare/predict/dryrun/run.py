"""The caller's side of a dry run: structure goes out, features come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..features import Features


def dry_run(
    model: Any,
    batch: Any,
    *,
    iterations: int = 1,
    training: bool | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    timeout: float = 60.0,
) -> Features:
    """What ``model`` needs for ``iterations`` over ``batch``, without running it on a GPU.

    ``model`` is a torch module, a Keras model, or a function of JAX, or a pair of such a function
    and its parameters. ``batch`` is what the model is called with: a tensor, or a tuple of them.
    Training is meant where a ``loss`` or an ``optimizer`` is given: ``loss(output)`` gives a
    scalar (the output's mean if it is not given), or ``loss(output, target)`` where ``batch`` is
    ``(inputs, target)``; ``optimizer`` is an optimizer of the model, or "sgd", "adam" or "adamw".
    No weights leave this process. Raises `DryRunFailed`.
    """
    raise NotImplementedError
