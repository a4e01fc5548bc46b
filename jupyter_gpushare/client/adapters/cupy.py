"""CuPy: a limit for its memory pools.

CuPy reads ``CUPY_GPU_MEMORY_LIMIT`` when it makes a device's pool, which is at
the first allocation. `MemoryPool.set_limit` would need CUDA at import; the
variable does not.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from ..grant import Grant
from .environment import FrameworkVariables
from .importtime import ImportTimeAdapter

if TYPE_CHECKING:
    from ..parking.pools import CuPyParker


class CuPyAdapter(ImportTimeAdapter):
    """Limits the default memory pool, in bytes on each device."""

    name = "CuPy"
    modules = frozenset({"cupy"})

    def __init__(self) -> None:
        self._variables = FrameworkVariables()
        self._parker: CuPyParker | None = None

    def before(self, grant: Grant | None) -> None:
        limit = grant.allocator_limit if grant is not None else None
        self._variables.set("CUPY_GPU_MEMORY_LIMIT", None if limit is None else str(limit))

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        self.before(grant)  # pools made from now on see a changed grant

    def parker(self, module: ModuleType) -> CuPyParker:
        """What empties its pools."""
        if self._parker is None:
            from ..parking.pools import CuPyParker

            self._parker = CuPyParker(module)
        return self._parker
