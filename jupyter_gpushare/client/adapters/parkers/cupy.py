"""CuPy: its pools can be emptied, and its arrays cannot be moved.

JAX has no call that gives unused memory back, and TensorFlow none either, so
they have no parker at all: of them only the whole process can be parked.
"""

from __future__ import annotations

import gc
import logging
from typing import Any, Final

from .base import ParkRefused

_log = logging.getLogger("jupyter_gpushare")


class CuPyParker:
    """Rung 1 only; see `base.Parker`."""

    is_parked: Final = False

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def trim(self) -> int:
        """Empty the default pools; bytes that the current GPU has more."""
        try:
            pool = self._cupy.get_default_memory_pool()
            before = int(pool.total_bytes())
            gc.collect()
            pool.free_all_blocks()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()
            return max(0, before - int(pool.total_bytes()))
        except Exception as error:  # noqa: BLE001 - a broken driver: nothing was freed, nothing harmed
            _log.warning("CuPy's pools could not be emptied: %s", error)
            return 0

    def drop_cache(self) -> None:
        """Wait for the current GPU, then the same as `trim`."""
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except Exception as error:  # noqa: BLE001 - the user's next call meets it, too
            _log.warning("CuPy's queued work could not be waited for: %s", error)
        self.trim()

    def bytes_to_park(self) -> int:
        """No bytes: its arrays cannot be moved."""
        return 0

    def park(self) -> int:
        """Always refuses."""
        raise ParkRefused(
            "The GPU memory cannot be parked: a CuPy array cannot be moved to host memory and back "
            "while the program holds it."
        )

    def resume(self) -> None:
        """Nothing to do."""
