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

from .afterimport import when_imported

_log = logging.getLogger("jupyter_gpushare")

_MODULE: Final = "keras.src.callbacks.callback_list"
_METHODS: Final = (
    *("on_train_begin", "on_test_begin", "on_predict_begin"),
    *("on_train_batch_end", "on_test_batch_end", "on_predict_batch_end"),
)


class BatchGate:
    """Calls ``gate()`` there, which may wait. ``runs_here()``: whether this is the right thread.

    `KeyboardInterrupt` of ``gate`` reaches the user; another error ends our watching.
    """

    def __init__(self, gate: Callable[[], None], runs_here: Callable[[], bool]) -> None:
        self._gate: Callable[[], None] | None = gate
        self._runs_here = runs_here

    def watch(self) -> None:
        """Once: from now on, or from when Keras is imported."""
        when_imported(_MODULE, self._install)

    def _install(self, module: ModuleType) -> None:
        kind = getattr(module, "CallbackList", None)
        for name in _METHODS:
            method = getattr(kind, name, None)
            if callable(method):
                setattr(kind, name, self._with_gate(method))

    def _with_gate(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def with_gate(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(callbacks, *args, **kwargs)
            self._between_batches()
            return result

        return with_gate

    def _between_batches(self) -> None:
        gate = self._gate
        if gate is None or not self._runs_here() or is_one_of_several():
            return
        try:
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
