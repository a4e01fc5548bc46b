"""A gate for loops without a step that we see: evaluation, inference, a compiled optimizer.

It is where an outermost module is about to be called, by torch's global hook. Nothing is moved or
dropped there, so whatever is alive stays as it is. The hook costs about a microsecond for each
module's call. So it is there only while the task takes turns, and at first for two calls, after
which the node manager knows that this task has gates. It stays, and does nothing, where code was
compiled meanwhile: torch would compile that again if the hook went.

There is no gate in a thread other than the one that runs the cell (or the program), inside another
module, an optimizer's step or a backward pass, and where `StepMeter.may_stop` says no. Nor while
gradients are recorded and steps were seen since the cell began: then the end of the step is better,
since activations are gone there.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from .steps import StepMeter, frames

_log = logging.getLogger("jupyter_gpushare")

#: A loop calls a model again: after so many calls the task has gates.
_IS_A_LOOP: Final = 2
#: Calls of modules after which we stop looking for a loop.
_PATIENCE: Final = 1000


class ForwardGate:
    """Calls ``gate()`` at these places, which may wait.

    ``is_closed()``: whether the task should stop. ``is_wanted()``: whether gates are of use now; if
    not, the hook goes. ``runs_here()``: whether this thread runs the cell or the program.
    `KeyboardInterrupt` of ``gate`` reaches the user; other errors end our watching.
    """

    def __init__(
        self,
        torch: Any,
        meter: StepMeter,
        *,
        gate: Callable[[], None],
        is_closed: Callable[[], bool],
        is_wanted: Callable[[], bool],
        runs_here: Callable[[], bool],
    ) -> None:
        self._torch = torch
        self._meter = meter
        self._gate = gate
        self._is_closed = is_closed
        self._is_wanted = is_wanted
        self._runs_here = runs_here
        self._is_compiling = torch.compiler.is_compiling
        self._modules: Any = sys.modules[torch.nn.Module.__module__]
        self._call_code = torch.nn.Module._call_impl.__code__
        self._lock = threading.Lock()
        self._handle: Any = None
        self._is_on = False
        self._compiled = 0  # when the hook came
        self._calls = self._gates = 0
        self._steps_before = 0

    def cell_begins(self) -> None:
        """What was trained before has nothing to do with this cell."""
        self._steps_before = self._meter.steps
        self.watch()

    def watch(self) -> None:
        """See modules' calls while that is wanted. From any thread."""
        with self._lock:
            if not self._is_on and self._is_wanted():
                self._calls = self._gates = 0
                self._is_on = True
                if self._handle is None:
                    self._compiled = _compiled()
                    register = self._modules.register_module_forward_pre_hook
                    self._handle = register(self._before_forward)
                    self._hide()

    def stop_watching(self) -> None:
        """See them no more. Nothing where somebody else is at it: after a fork that lasts."""
        if self._lock.acquire(blocking=False):
            try:
                self._is_on = False
                if self._handle is not None and _compiled() == self._compiled:
                    self._handle.remove()
                    self._handle = None
                    self._show()
            finally:
                self._lock.release()

    def _before_forward(self, _module: Any, _arguments: Any) -> None:
        if self._is_compiling():
            return  # torch.compile reads this code, and must find nothing to stumble over
        if not self._is_on:
            return
        try:
            is_closed = self._is_closed()
            if not is_closed:
                self._calls += 1
                if not self._is_wanted() or self._calls == _PATIENCE:
                    self.stop_watching()
                    return
                if self._gates >= _IS_A_LOOP:
                    return
            if self._is_gate(sys._getframe(1)):
                self._gates += 1
                if is_closed or self._gates >= _IS_A_LOOP:
                    self._gate()
        except Exception as error:  # noqa: BLE001 - the user's loop goes on
            self.stop_watching()
            _log.warning("There is no gate at modules' calls any more: %r", error)

    def _is_gate(self, frame: Any) -> bool:
        meter = self._meter
        if not self._runs_here() or not meter.may_stop():
            return False
        if self._torch.is_grad_enabled() and meter.steps > self._steps_before:
            return False
        around = sum(
            one.f_code is self._call_code or one.f_code is meter.step_code for one in frames(frame)
        )
        return around == 1  # the call itself

    # -- a compiled module warns where there are global hooks; ours is not the user's -----

    def _hide(self) -> None:
        if hasattr(self._modules, "_has_any_global_hook"):
            self._asked = self._modules._has_any_global_hook
            self._modules._has_any_global_hook = self._users_have_any

    def _show(self) -> None:
        if getattr(self._modules, "_has_any_global_hook", None) == self._users_have_any:
            self._modules._has_any_global_hook = self._asked

    def _users_have_any(self) -> bool:
        return any(
            hook != self._before_forward
            for name, hooks in vars(self._modules).items()
            if name.startswith("_global_") and name.endswith("_hooks")
            for hook in tuple(hooks.values())
        )


def _compiled() -> int:
    """Graphs that torch.compile has made in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
