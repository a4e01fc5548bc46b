"""Measures training steps: the parts of a task's GPU memory, and where a step ends.

*Persistent* memory is all that is alive at the end of a step: parameters, buffers, an optimizer's
state, data, and gradients too where the program keeps them (we never drop any). *Temporary* is the
most that a step needs beyond it (activations, workspaces), *cache* is unused memory that the
allocator keeps for later. A step is one outermost ``Optimizer.step`` of any optimizer; torch calls
our hook at its end.

A step costs a few dictionary look-ups and one read of the allocator's counters. No error of ours
reaches the user's code; only an interrupt of the gate (Ctrl-C) does.

A step that the user has compiled (``torch.compile(optimizer.step)``) is not seen; `forwards` has a
gate for its loop. A step inside a backward pass counts as work but not as a step: some programs
have an optimizer for each parameter, which steps there while other gradients are still to come.

Peaks are read and never reset: the user may read them, too.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

from .allocator import CudaAllocator

_log = logging.getLogger("jupyter_gpushare")

#: Seconds. Steps differ, so a figure is the most of this time or the one before it.
_WHILE: Final = 30.0
_ERRORS: Final = 3  # failures of ours after which we stop measuring


class DeviceUse(NamedTuple):
    """The memory of one device (bytes)."""

    device: str
    persistent: int
    temporary: int
    cache: int


class MemoryUse(NamedTuple):
    """The parts of this task's memory after so many steps, on each device whose allocator tells."""

    steps: int
    devices: tuple[DeviceUse, ...] = ()


class StepMeter:
    """Counts steps of one torch. ``on_step`` and ``gate`` are called at each one's end.

    ``on_step(use)`` must be quick; its errors are logged and dropped. ``gate()`` may wait: it runs
    last, on the thread that computes, with nothing of the step left to do; `KeyboardInterrupt`
    passes through it to the user.
    """

    def __init__(
        self,
        torch: Any,
        allocator: CudaAllocator,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_step: Callable[[MemoryUse], None] | None = None
        self.gate: Callable[[], None] | None = None
        self._torch = torch
        self._allocator = allocator
        self._clock = clock
        self._is_compiling = torch.compiler.is_compiling
        self._hook: Any = None
        # The code that torch runs around every optimizer's step, from which it calls us.
        self.step_code = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
        self._ending: set[int] = set()  # ids of its frames that only have to call us yet
        #: How many have ended, and when an optimizer last stepped, also inside a backward pass
        #: (monotonic, seconds).
        self.steps = 0
        self.stepped_at: float | None = None
        self._errors = 0
        # The most bytes of the while before and of this one, at steps' ends and within.
        self._alive: dict[Any, list[int]] = {}
        self._peaks: dict[Any, list[int]] = {}
        self._caches: dict[Any, int] = {}
        self._while_ends = 0.0

    # -- what others ask --------------------------------------------------------------

    @property
    def in_step(self) -> bool:
        """Whether an optimizer's step is running."""
        # We look it up instead of counting: torch gives no sign of a step that ends by raising.
        return any(
            frame.f_code is self.step_code and id(frame) not in self._ending
            for thread in sys._current_frames().values()
            for frame in frames(thread)
        )

    @property
    def use(self) -> MemoryUse | None:
        """As of the last step or `look`; ``None`` before the first step."""
        if self.steps == 0:
            return None
        return MemoryUse(
            self.steps,
            tuple(
                DeviceUse(str(device), max(alive), self._temporary(device), self._caches[device])
                for device, alive in self._alive.items()
            ),
        )

    def look(self) -> MemoryUse | None:
        """What is alive now counts as persistent, for here the task is about to stop; as `use`."""
        self._read()
        return self.use

    def hindrance(self) -> str | None:
        """Why this process can never stop for another; ``None``: it can."""
        distributed = self._torch.distributed
        runs = distributed.is_available() and distributed.is_initialized()
        if runs and (count := distributed.get_world_size()) > 1:
            return f"it is one of {count} processes of torch.distributed, which wait for it"
        return None

    def may_stop(self) -> bool:
        """Whether this thread may wait here: not in what is compiled, recorded or half computed."""
        return not (
            self._is_compiling()
            or self._is_in_backward()
            or self._allocator.capturing()
            or self.hindrance()
        )

    def capturing(self) -> bool:
        """Whether a CUDA graph is recorded, in which nobody may wait for the GPU."""
        return self._allocator.capturing()

    def has_graphs(self) -> bool:
        """Whether CUDA graphs have memory here; from any thread."""
        return any(self._allocator.pools(device) for device in self._allocator.devices())

    def uses_gpu(self) -> bool:
        """Whether this torch has memory on a device whose allocator tells."""
        allocator = self._allocator
        return any(allocator.figures(one) is not None for one in allocator.devices())

    def next_step_fits(self) -> bool:
        """Whether a step like the largest so far fits in the memory that is free now, measured.

        True where that is not known: waiting would not help.
        """
        for device in tuple(self._alive):
            free, now = self._allocator.free(device), self._allocator.figures(device)
            cached = 0 if now is None else now.reserved - now.allocated
            if free is not None and self._temporary(device) > free + cached:
                return False
        return True

    def _temporary(self, device: Any) -> int:
        return max(0, max(self._peaks[device]) - max(self._alive[device]))

    # -- hooks --------------------------------------------------------------------------

    def install(self) -> None:
        """Have torch call us."""
        optimizer: Any = sys.modules[self._torch.optim.Optimizer.__module__]
        self._hook = optimizer.register_optimizer_step_post_hook(self._after_step)

    def uninstall(self) -> None:
        """Stop measuring."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _after_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        if self._is_compiling():
            return  # torch.compile reads this code, and must find nothing to stumble over
        step = sys._getframe(1)
        if self._is_in_backward():
            self.stepped_at = self._clock()
            return
        if any(frame.f_code is step.f_code for frame in frames(step.f_back)):
            return  # the step of another optimizer, which this one is a part of, goes on
        # What is left of the step is our hook. `in_step` must not see it, or nothing could be
        # parked at a step's end.
        self._ending.add(id(step))
        try:
            self._step_ends()
        finally:
            self._ending.discard(id(step))

    def _is_in_backward(self) -> bool:
        """Whether this thread, which may be autograd's own, is inside a backward pass."""
        return int(self._torch._C._current_graph_task_id()) >= 0

    def _step_ends(self) -> None:
        try:
            self._measure()
            if self.on_step is not None and (use := self.use) is not None:
                self.on_step(use)
        except Exception as error:  # noqa: BLE001 - the user's training goes on
            self._failed(error)
        if (gate := self.gate) is not None:
            try:
                gate()
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        if self._errors <= _ERRORS:
            _log.warning("A training step could not be measured: %r", error)
        if self._errors == _ERRORS:
            _log.warning("Training steps of this process are measured no more.")
            self.on_step = self.gate = None
            self.uninstall()

    # -- inside -------------------------------------------------------------------------

    def _measure(self) -> None:
        self.stepped_at = now = self._clock()
        self.steps += 1
        if now >= self._while_ends:
            self._while_ends = now + _WHILE
            for most in (*self._alive.values(), *self._peaks.values()):
                most[:] = most[-1], 0
        self._read()

    def _read(self) -> None:
        for device in self._allocator.devices():
            if (figures := self._allocator.figures(device)) is not None:
                for seen, most in ((figures.allocated, self._alive), (figures.peak, self._peaks)):
                    of_device = most.setdefault(device, [0, 0])
                    of_device[-1] = max(of_device[-1], seen)
                self._caches[device] = figures.reserved - figures.allocated


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those below it."""
    while frame is not None:
        yield frame
        frame = frame.f_back
