"""PyTorch: a memory limit when CUDA starts, and a lease taken only then if wished.

The limit is set through torch's own queue of calls for the start of CUDA, so no allocation comes
before it. With ``first_use`` every start of CUDA asks for the lease first. Until there is a lease
``CUDA_VISIBLE_DEVICES`` should be empty, so that code which starts CUDA in a way unknown to us
finds no GPU instead of another task's. Meanwhile `torch.cuda.is_available` and
`torch.cuda.device_count` answer as the quota allows, and never start the driver.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...figures import format_size
from ...protocol.names import RESTARTS
from ..words import display
from ..words.grant import Grant, GrantedGpu

if TYPE_CHECKING:
    from .parkers.allocator import CudaAllocator
    from .parkers.steps import StepMeter
    from .parkers.torch import TorchParker

_log = logging.getLogger("jupyter_gpushare")

_STARTERS = (
    ("cuda", "_lazy_init"),
    ("cuda", "set_device"),
    ("cuda.Stream", "__new__"),
    ("cuda.Event", "__new__"),
    ("Tensor", "pin_memory"),
    ("accelerator", "current_device_index"),
    ("accelerator", "set_device_index"),
    ("accelerator", "current_stream"),
    ("accelerator", "synchronize"),
)
"""Where user code can start CUDA from Python: an owner below ``torch``, and its function."""


class TorchAdapter:
    """Limits the caching allocator on each granted GPU; can wait for CUDA's start."""

    name = "PyTorch"
    live_limits = True
    catches_first_use = True

    def __init__(self, say: Callable[[str], None] = display.say) -> None:
        self._grant: Grant | None = None
        self._queued = False
        self.say = say
        self._limited: dict[int, float] = {}  # device -> the fraction it may use
        self._parker: TorchParker | None = None
        self._allocator: CudaAllocator | None = None
        self.meter: StepMeter | None = None
        self._first_use: _FirstUse | None = None
        self._is_requeued = RESTARTS in os.environ

    def before(self, grant: Grant | None) -> None:
        """Nothing to prepare: torch reads no limit from the environment."""

    def after(self, module: Any, grant: Grant | None) -> None:
        """Limit the memory now if CUDA runs, else when it starts; again when the limit changes."""
        self._grant = grant
        # Only there the exit code counts by which Lightning ends on SIGTERM.
        if self._is_requeued:
            self._is_requeued = False
            from .lightning import stops_are_told

            stops_are_told()
        if grant is not None:
            if self._first_use is not None:
                self._first_use.refused = False
            self._watch_steps(module)
        if module.cuda.is_initialized():
            self._limit(module)
        elif not self._queued:
            self._queued = True
            module.cuda._lazy_call(lambda: self._limit(module))

    def cuda_started(self, module: Any) -> bool | None:
        """Torch knows."""
        return bool(module.cuda.is_initialized())

    def empty_cache(self, module: ModuleType) -> None:
        """Give back unused memory. Waits for running kernels; safe from another thread."""
        if self.cuda_started(module):
            self._allocator_of(module).empty_cache()

    def parker(self, module: ModuleType) -> TorchParker | None:
        """The parker of this torch's memory; ``None`` until torch has started CUDA."""
        if self._parker is None and self.cuda_started(module):
            from .parkers.torch import TorchParker

            self._parker = TorchParker(module, self._allocator_of(module), meter=self.meter)
        return self._parker

    def _allocator_of(self, module: ModuleType) -> CudaAllocator:
        if self._allocator is None:
            from .parkers.allocator import CudaAllocator

            self._allocator = CudaAllocator(module)
        return self._allocator

    def _watch_steps(self, module: ModuleType) -> None:
        """Measure training steps from now on, in a torch that can use a GPU."""
        if self.meter is not None or not hasattr(module._C, "_cuda_getDeviceCount"):
            return
        from .parkers.steps import StepMeter

        try:
            meter = StepMeter(module, self._allocator_of(module))
            meter.install()
        except Exception as error:  # noqa: BLE001 - figures are not worth the user's program
            _log.warning("PyTorch's training steps are not measured: %s", error)
        else:
            self.meter = meter

    def first_use(
        self,
        module: ModuleType,
        acquire: Callable[[], Grant | None],
        expected: Callable[[], int],
    ) -> bool:
        """Take the lease when CUDA starts. A torch without CUDA never takes one: false.

        Raises (later, out of the call that starts CUDA):
            RuntimeError: no lease, with the words torch itself uses without a GPU.
        """
        has_cuda = hasattr(module._C, "_cuda_getDeviceCount")
        if has_cuda:
            # With it torch counts GPUs by NVML, which starts no driver.
            os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
            if self._first_use is None or not self._first_use.watches_on():
                self._first_use = _FirstUse(self, module, acquire, expected)
                self._first_use.watch()
        return has_cuda

    def _limit(self, torch: Any) -> None:
        try:
            for device, gpu in self._used_gpus():
                limit = gpu.allocator_limit
                # To set a fraction starts a context on the GPU, so it is set only where there is,
                # or was, a limit.
                if limit is None and device not in self._limited:
                    continue
                total = torch.cuda.get_device_properties(device).total_memory
                fraction = 1.0 if limit is None else min(1.0, limit / total)
                before = self._limited.get(device, 1.0)
                if limit is not None and fraction < before:
                    self._make_room(torch, device, gpu, limit)
                torch.cuda.set_per_process_memory_fraction(fraction, device)
                self._limited[device] = fraction
        except Exception as error:  # noqa: BLE001 - a limit is not worth the user's program
            _log.warning("PyTorch's GPU memory is not limited to the lease: %s", error)

    def _make_room(self, torch: Any, device: int, gpu: GrantedGpu, limit: int) -> None:
        """Empty the cache before a limit is lowered: torch counts it, but does not evict it."""
        allocator = self._allocator_of(torch)
        figures = allocator.figures(device)
        if figures is None or figures.reserved <= limit:
            return
        allocator.empty_cache()
        if figures.allocated > limit:
            self.say(
                f"The lease now allows {format_size(gpu.memory)} on GPU {gpu.number}, of which "
                f"PyTorch may use {format_size(limit)}, but its tensors take "
                f"{format_size(figures.allocated)}. They stay; nothing new can be allocated there "
                "until enough of them are gone (`del`)."
            )

    def _used_gpus(self) -> Iterator[tuple[int, GrantedGpu]]:
        """The GPUs to limit. Each costs a CUDA context, so a torchrun rank has only its own."""
        gpus = dict(enumerate(self._grant.gpus)) if self._grant is not None else {}
        rank = os.environ.get("LOCAL_RANK", "")
        if rank.isascii() and rank.isdigit() and int(rank) in gpus:
            return iter([(int(rank), gpus[int(rank)])])
        return iter(gpus.items())


class _FirstUse:
    """Stands before everything that starts CUDA until there is a lease."""

    def __init__(
        self,
        adapter: TorchAdapter,
        torch: Any,
        acquire: Callable[[], Grant | None],
        expected: Callable[[], int],
    ) -> None:
        self._adapter = adapter
        self._torch = torch
        self._acquire = acquire
        self._expected = expected
        self._lock = threading.RLock()
        self._ready = False
        self.refused = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def watches_on(self) -> bool:
        """Whether our hook is still in place; a refused request may be asked again."""
        self.refused = False
        return not self._ready

    def watch(self) -> None:
        for path, function in _STARTERS:
            owner = functools.reduce(
                lambda found, part: getattr(found, part, None), path.split("."), self._torch
            )
            if getattr(owner, function, None) is not None:
                self._replace(owner, function, self._before)
        self._replace(self._torch.cuda, "is_available", self._is_available)
        self._replace(self._torch.cuda, "device_count", self._device_count)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(wrap(original))
        self._put(owner, name, staticmethod(wrapper) if name == "__new__" else wrapper)
        if owner is self._torch.cuda:
            for module in list(sys.modules.values()):  # torch.cuda.memory holds _lazy_init by name
                own = getattr(module, "__dict__", {})
                if own.get("__name__", "").startswith("torch.") and own.get(name) is original:
                    self._put(module, name, wrapper)

    def _put(self, owner: Any, name: str, wrapper: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name), wrapper))
        setattr(owner, name, wrapper)

    def _before(self, original: Any) -> Any:
        def start(*arguments: Any, **named: Any) -> Any:
            self._ensure_lease()
            return original(*arguments, **named)

        return start

    def _is_available(self, original: Any) -> Any:
        return lambda: bool(original() if self._ready else self._answer() > 0)

    def _device_count(self, original: Any) -> Any:
        return lambda: original() if self._ready else self._answer()

    def _answer(self) -> int:
        if self.refused:
            return 0
        try:
            return max(0, self._expected())
        except Exception as error:  # noqa: BLE001 - asking whether there is a GPU never raises
            _log.warning("cannot tell how many GPUs this task would get: %s", error)
            return 0

    def _ensure_lease(self) -> None:
        with self._lock:
            if self._ready or self._torch.cuda.is_initialized():
                return
            grant = self._acquire()
            self.refused = grant is None
            if grant is None:
                # Letting torch look would leave the driver without GPUs for good.
                raise RuntimeError(
                    "No CUDA GPUs are available: this task has no GPU lease "
                    "(`%gpushare status` or `jupyter gpushare status` says why)"
                )
            self._ready = True
            self._step_aside()
            self._adapter.after(self._torch, grant)

    def _step_aside(self) -> None:
        for owner, name, stored, wrapper in reversed(self._replaced):
            if vars(owner).get(name) is not wrapper:
                continue  # somebody has wrapped ours, which passes everything on from now on
            if stored is None:
                delattr(owner, name)
            else:
                setattr(owner, name, stored)
        self._replaced.clear()


ADAPTER = TorchAdapter
