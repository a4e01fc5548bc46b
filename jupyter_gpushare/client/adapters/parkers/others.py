"""Finds other frameworks in this process that may use the GPU or know torch's addresses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from .. import registry

_WITHOUT_ADAPTER: Final = {
    "numba.cuda.cudadrv.driver": "Numba",
    "pycuda.driver": "PyCUDA",
    "rmm": "RMM",
    "cudf": "cuDF",
    "warp": "Warp",
}
"""Modules that mean that CUDA is used, and whose they are."""


def others_on_gpu(
    but: str = "torch", modules: Mapping[str, ModuleType] | None = None
) -> tuple[str, ...]:
    """Frameworks besides ``but`` that do not say that they have left the GPU alone."""
    loaded = sys.modules if modules is None else modules
    found = [name for module, name in _WITHOUT_ADAPTER.items() if module in loaded]
    for name in registry.BUILT_IN:
        module = loaded.get(name)
        if module is None or name == but:
            continue
        adapter = registry.find(name)
        if adapter is not None and adapter.cuda_started(module) is not False:
            found.append(adapter.name)
    return tuple(sorted(found))
