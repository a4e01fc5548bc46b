"""A gate before the first and after each batch of Keras' ``fit``, ``evaluate`` and ``predict``.

Keras tells its list of callbacks of every batch, on the thread that runs the loop. We stand behind
six methods of that list's class: no callback of the program, and no list of them, is another one
than without us. Nothing is dropped there: the gate waits for what is queued on the GPUs, and then
for the turn.

There is no gate in another thread than the one that runs the cell (or the program), and none where
the model is trained by several processes, which would wait for this one.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ..session.progress import Progress, Source
from .afterimport import when_imported

_log = logging.getLogger("jupyter_gpushare")

_MODULE: Final = "keras.src.callbacks.callback_list"
_METHODS: Final = (
    *("on_train_begin", "on_test_begin", "on_predict_begin"),
    *("on_train_batch_end", "on_test_batch_end", "on_predict_batch_end"),
)
_BEGINS: Final = "on_train_begin"
_TRAINED: Final = "on_train_batch_end"


class _Fit:
    """A ``fit`` that runs: how many batches it has done, with those of earlier epochs."""

    total: int | None = None
    n = 0
    epoch = 0

    def batch_ended(self, callbacks: Any, batch: int = 0, *_: Any) -> None:
        """How many an epoch has Keras may know only after the first one."""
        epochs, batches = callbacks.params.get("epochs"), callbacks.params.get("steps")
        self.total = epochs * batches if epochs and batches else None
        self.n = self.epoch * (batches or 0) + batch


class BatchGate:
    """Calls ``gate()`` there, which may wait. ``runs_here()``: whether this is the right thread.

    `KeyboardInterrupt` of ``gate`` reaches the user; another error ends our watching. Each batch
    that is trained is a step of ``progress``.
    """

    def __init__(
        self, gate: Callable[[], None], runs_here: Callable[[], bool], progress: Progress
    ) -> None:
        self._gate: Callable[[], None] | None = gate
        self._runs_here = runs_here
        self._progress = progress
        self._fit = _Fit()

    def watch(self) -> None:
        """Once: from now on, or from when Keras is imported."""
        when_imported(_MODULE, self._install)

    def _install(self, module: ModuleType) -> None:
        kind: Any = getattr(module, "CallbackList", None)
        for name in _METHODS:
            if callable(method := getattr(kind, name, None)):
                setattr(kind, name, self._with_gate(method, name))
        if callable(begins := getattr(kind, "on_epoch_begin", None)):
            kind.on_epoch_begin = self._with_epoch(begins)

    def _with_gate(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def with_gate(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._between_batches(name, args)
            return result

        return with_gate

    def _with_epoch(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def with_epoch(callbacks: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(epoch, int):
                self._fit.epoch = epoch
            return method(callbacks, epoch, *args, **kwargs)

        return with_epoch

    def _between_batches(self, name: str, args: tuple[Any, ...]) -> None:
        gate = self._gate
        if gate is None or not self._runs_here() or is_one_of_several():
            return
        try:
            if name == _BEGINS:
                self._fit = _Fit()
            elif name == _TRAINED:
                self._fit.batch_ended(*args)
                self._progress.ended(Source.BATCH, self._fit)
            gate()
        except Exception as error:  # noqa: BLE001 - the user's loop goes on
            self._gate = None
            _log.warning("There is no gate after Keras' batches any more: %r", error)


def is_one_of_several() -> bool:
    """Whether other processes train the same model and would wait for this one."""
    if "TF_CONFIG" in os.environ or "horovod" in sys.modules:
        return True
    jax: Any = sys.modules.get("jax._src.distributed")
    return (getattr(getattr(jax, "global_state", None), "num_processes", None) or 1) > 1
