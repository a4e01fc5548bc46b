"""CuPy: a limit for its memory pools.

CuPy reads ``CUPY_GPU_MEMORY_LIMIT`` when it makes a device's pool, which is at
the first allocation. `MemoryPool.set_limit` would need CUDA at import; the
variable does not.
"""

from __future__ import annotations

from types import ModuleType

from ..grant import Grant
from .environment import FrameworkVariables
from .importtime import ImportTimeAdapter


class CuPyAdapter(ImportTimeAdapter):
    """Limits the default memory pool, in bytes on each device."""

    name = "CuPy"
    modules = frozenset({"cupy"})

    def __init__(self) -> None:
        self._variables = FrameworkVariables()

    def before(self, grant: Grant | None) -> None:
        limit = grant.allocator_limit if grant is not None else None
        self._variables.set("CUPY_GPU_MEMORY_LIMIT", None if limit is None else str(limit))

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        self.before(grant)  # pools made from now on see a changed grant
