"""CuPy: a limit for its memory pools.

CuPy reads ``CUPY_GPU_MEMORY_LIMIT`` when it makes a device's pool, which is at
the first allocation. `MemoryPool.set_limit` would need CUDA at import; the
variable does not. Once CUDA runs, a changed limit goes to the pools themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...figures import format_size
from ..session.visible import cuda_started
from ..words import display
from ..words.grant import Grant
from .importtime import ImportTimeAdapter

if TYPE_CHECKING:
    from .parkers.cupy import CuPyParker

_log = logging.getLogger("jupyter_gpushare")

_VARIABLE: Final = "CUPY_GPU_MEMORY_LIMIT"


class CuPyAdapter(ImportTimeAdapter):
    """Limits the default memory pool, in bytes on each device."""

    name = "CuPy"
    live_limits = True

    def __init__(
        self,
        say: Callable[[str], None] = display.say,
        cuda_started: Callable[[], bool] = cuda_started,
    ) -> None:
        super().__init__()
        self.say = say
        self._cuda_started = cuda_started
        self._limits: tuple[int, ...] | None = None  # of the last lease's GPUs; 0: none
        self._ours = {0}  # limits that a pool can have without the user's doing
        self._parker: CuPyParker | None = None

    def before(self, grant: Grant | None) -> None:
        limit = grant.allocator_limit if grant is not None else None
        if limit is not None and not self._variables.is_users(_VARIABLE):
            self._ours.add(limit)
        self._variables.set(_VARIABLE, None if limit is None else str(limit))

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        """Pools made from now on see the limit by the variable, those there are are told."""
        self.before(grant)
        if grant is None:
            return
        limits = tuple(gpu.allocator_limit or 0 for gpu in grant.gpus)
        changed, self._limits = self._limits not in (None, limits), limits
        if changed and self._cuda_started():
            self._set_limits(module, grant)

    def _set_limits(self, cupy: Any, grant: Grant) -> None:
        for device, gpu in enumerate(grant.gpus):
            limit = gpu.allocator_limit or 0  # 0: none
            try:
                with cupy.cuda.Device(device):
                    pool = cupy.get_default_memory_pool()
                    if int(pool.get_limit()) not in self._ours:
                        continue  # the user has set one
                    if limit and int(pool.total_bytes()) > limit:
                        pool.free_all_blocks()
                    pool.set_limit(size=limit)
                    self._ours.add(limit)
                    used = int(pool.used_bytes())
            except Exception as error:  # noqa: BLE001 - a limit is not worth the user's program
                _log.warning("CuPy's GPU memory is not limited to the lease: %s", error)
                return
            if limit and used > limit:
                self.say(
                    f"The lease now allows {format_size(gpu.memory)} on GPU {gpu.number}, of which "
                    f"CuPy may use {format_size(limit)}, but its arrays take {format_size(used)}. "
                    "They stay; nothing new can be allocated there until enough of them are gone."
                )

    def empty_cache(self, module: ModuleType) -> None:
        """Give back unused memory; the pools have locks of their own."""
        if self._cuda_started():
            module.get_default_memory_pool().free_all_blocks()

    def parker(self, module: ModuleType) -> CuPyParker:
        """The parker that empties CuPy's pools."""
        if self._parker is None:
            from .parkers.cupy import CuPyParker

            self._parker = CuPyParker(module)
        return self._parker


ADAPTER = CuPyAdapter
