"""Measures training steps: the parts of a task's GPU memory, and where a step ends.

*Persistent* memory lives across steps (parameters, buffers, an optimizer's state), *temporary* is
dead at a step's end (activations, gradients, workspaces), *cache* is unused memory that the
allocator keeps for later. A step is one outermost ``Optimizer.step`` of any optimizer; torch calls
our hook at its end.

A step costs a few dictionary look-ups and one read of the allocator's counters. Persistent memory
is added up anew only when an optimizer's structure has changed, and never for more than a hundredth
of the time. No error of ours reaches the user's code; only an interrupt of the gate (Ctrl-C) does.

A step that the user has compiled (``torch.compile(optimizer.step)``) is not seen. A step inside a
backward pass counts as work but not as a step: some programs have an optimizer for each parameter,
which steps there while other gradients are still to come.

Peaks are read and never reset: the user may read them, too. So ``temporary`` is the most that was
needed since the user reset them, or since the program began.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, NamedTuple

from .allocator import Allocator, Figures
from .walk import live_objects

_log = logging.getLogger("jupyter_gpushare")

_SHARE: Final = 0.01  # of the time, at most, goes into adding up persistent memory
_REFRESH: Final = 60.0  # seconds; models come and go without any optimizer
_ERRORS: Final = 3  # failures of ours after which we stop measuring


class DeviceUse(NamedTuple):
    """The memory of one device (bytes); ``None``: not known."""

    device: str
    persistent: int
    temporary: int | None
    cache: int | None


class MemoryUse(NamedTuple):
    """The parts of this task's GPU memory (bytes), as of its last step.

    The sums over all ``devices``. ``temporary`` and ``cache`` are ``None``
    where no allocator tells.
    """

    persistent: int
    temporary: int | None
    cache: int | None
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
        allocator: Allocator,
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
        self._step_code = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
        self._ending: set[int] = set()  # ids of its frames that only have to call us yet
        self._steps = 0
        self._stepped_at: float | None = None
        self._errors = 0
        self._structures: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._add_up_after = self._may_add_up_after = -math.inf
        self._persistent: dict[Any, int] = {}
        self._temporary: dict[Any, int] = {}  # the most since persistent memory has changed
        self._figures: dict[Any, Figures | None] = {}
        self._ended: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ended_at: tuple[int, ...] | None = None

    # -- what others ask --------------------------------------------------------------

    @property
    def in_step(self) -> bool:
        """Whether an optimizer's step is running."""
        # We look it up instead of counting: torch gives no sign of a step that ends by raising.
        return any(
            frame.f_code is self._step_code and id(frame) not in self._ending
            for thread in sys._current_frames().values()
            for frame in _frames(thread)
        )

    @property
    def stepped_at(self) -> float | None:
        """When an optimizer last stepped, also inside a backward pass (monotonic, seconds)."""
        return self._stepped_at

    @property
    def use(self) -> MemoryUse | None:
        """As of the last step; ``None`` before the first."""
        if self._steps == 0:
            return None
        devices = tuple(self._of_device(device) for device in self._figures)
        return MemoryUse(
            persistent=sum(one.persistent for one in devices),
            temporary=_sum(one.temporary for one in devices),
            cache=_sum(one.cache for one in devices),
            steps=self._steps,
            devices=devices,
        )

    def next_step_fits(self) -> bool:
        """Whether a step like the largest so far fits in the memory that is free now, measured.

        True where that is not known: waiting would not help.
        """
        for device, needed in tuple(self._temporary.items()):
            free, now = self._allocator.free(device), self._allocator.figures(device)
            cached = 0 if now is None else now.reserved - now.allocated
            if free is not None and needed > free + cached:
                return False
        return True

    def at_boundary(self) -> tuple[Any, ...]:
        """Optimizers that have made their step, if nothing has been computed since.

        Their gradients are used up. Any backward pass would have allocated memory, which the
        allocator counts. Without such a count the result is empty.
        """
        ended_at = self._ended_at
        if ended_at is None or self.in_step or ended_at != _allocations(self._read()):
            return ()
        return tuple(self._ended)

    # -- hooks --------------------------------------------------------------------------

    def install(self) -> None:
        """Have torch call us; once is enough."""
        if self._hook is not None:
            return
        optimizer: Any = sys.modules[self._torch.optim.Optimizer.__module__]
        self._hook = optimizer.register_optimizer_step_post_hook(self._after_step)

    def uninstall(self) -> None:
        """Measure no more."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _after_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        if self._is_compiling():
            return  # torch.compile reads this code, and must find nothing to stumble over
        step = sys._getframe(1)
        if self._is_in_backward():
            self._stepped_at = self._clock()
            return
        if any(frame.f_code is step.f_code for frame in _frames(step.f_back)):
            return  # the step of another optimizer, which this one is a part of, goes on
        self._ending.add(id(step))
        try:
            self._step_ends(optimizer)
        finally:
            self._ending.discard(id(step))

    def _is_in_backward(self) -> bool:
        """Whether this thread, which may be autograd's own, is inside a backward pass."""
        return int(self._torch._C._current_graph_task_id()) >= 0

    def _step_ends(self, optimizer: Any) -> None:
        try:
            self._measure(optimizer)
            if self.on_step is not None and (use := self.use) is not None:
                self.on_step(use)
        except Exception as error:  # noqa: BLE001 - the user's training goes on
            self._failed(error)
        gate = self.gate
        if gate is not None:
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

    def _read(self) -> dict[Any, Figures | None]:
        return {device: self._allocator.figures(device) for device in self._allocator.devices()}

    def _measure(self, optimizer: Any) -> None:
        now = self._clock()
        self._steps += 1
        self._stepped_at = now
        structure = _structure(optimizer)
        if self._structures.get(optimizer) != structure:
            self._structures[optimizer] = structure
            self._add_up_after = self._may_add_up_after
        if now >= self._add_up_after:
            self._add_up()
        self._figures = self._read()
        for device, figures in self._figures.items():
            if figures is not None:
                temporary = figures.peak - self._persistent.get(device, 0)
                self._temporary[device] = max(self._temporary.get(device, 0), temporary)
        ended_at = _allocations(self._figures)
        if ended_at is None or ended_at != self._ended_at:
            self._ended.clear()
        self._ended.add(optimizer)
        self._ended_at = ended_at

    def _add_up(self) -> None:
        began = self._clock()
        before = self._persistent
        self._persistent = persistent(self._torch, self._allocator.devices())
        if self._persistent != before:
            self._temporary.clear()
        ended = self._clock()
        self._may_add_up_after = ended + (ended - began) / _SHARE
        self._add_up_after = max(self._may_add_up_after, ended + _REFRESH)

    def _of_device(self, device: Any) -> DeviceUse:
        figures = self._figures.get(device)
        return DeviceUse(
            device=str(device),
            persistent=self._persistent.get(device, 0),
            temporary=self._temporary.get(device),
            cache=None if figures is None else figures.reserved - figures.allocated,
        )


def persistent(torch: Any, devices: Iterable[Any]) -> dict[Any, int]:
    """Bytes on each device that live across steps. Walks all objects.

    Storages of parameters and buffers of all modules, and of parameters and
    states of all optimizers, each once.
    """
    ours = frozenset(devices)
    modules, optimizers = live_objects(torch.nn.Module, torch.optim.Optimizer)
    seen: set[int] = set()
    sizes = dict.fromkeys(ours, 0)
    tensors: list[Any] = []
    for module in modules:
        if "_parameters" in module.__dict__ and "_buffers" in module.__dict__:
            tensors += (*module._parameters.values(), *module._buffers.values())
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            tensors += group["params"]
        tensors += _tensors(torch, getattr(optimizer, "state", {}))
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                continue
            storage = torch._C.TensorBase.untyped_storage(tensor)
            if storage.device in ours and storage._cdata not in seen:
                seen.add(storage._cdata)
                sizes[storage.device] += storage.nbytes()
    return sizes


def _tensors(torch: Any, state: Any, depth: int = 4) -> list[Any]:
    """All tensors in nested dictionaries and lists."""
    if isinstance(state, torch.Tensor):
        return [state]
    if depth == 0:
        return []
    if isinstance(state, dict):
        state = tuple(state.values())
    if not isinstance(state, list | tuple):
        return []
    return [tensor for one in state for tensor in _tensors(torch, one, depth - 1)]


def _allocations(figures: Mapping[Any, Figures | None]) -> tuple[int, ...] | None:
    """How many allocations each device's allocator had; ``None`` where one does not count."""
    counts = [one.allocations for one in figures.values() if one is not None]
    return tuple(counts) if counts and len(counts) == len(figures) else None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those below it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _structure(optimizer: Any) -> tuple[int, ...]:
    """A value that changes when an optimizer gets other parameters or makes its state."""
    groups = optimizer.param_groups
    return (len(optimizer.state), *(len(group["params"]) for group in groups))


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; ``None`` if one part is unknown, or if there is none."""
    total, known = 0, False
    for value in values:
        if value is None:
            return None
        total, known = total + value, True
    return total if known else None
