"""PaddlePaddle: its ``FLAGS_…`` variables, read when ``paddle`` is imported.

``FLAGS_gpu_memory_limit_mb`` is the cap (an allocation beyond it is an
out-of-memory error). ``FLAGS_fraction_of_gpu_memory_to_use`` is the first chunk
of the pre-allocating strategy, which must not be larger.
"""

from __future__ import annotations

from ..words.grant import Grant
from .importtime import ImportTimeAdapter


class PaddleAdapter(ImportTimeAdapter):
    """Limits the process's memory on each GPU."""

    name = "PaddlePaddle"

    def before(self, grant: Grant | None) -> None:
        limit = grant.allocator_limit if grant is not None else None
        fraction = grant.allocator_fraction if grant is not None else None
        self._variables.set(
            "FLAGS_gpu_memory_limit_mb", None if limit is None else str(limit // 2**20)
        )
        self._variables.set(
            "FLAGS_fraction_of_gpu_memory_to_use", None if fraction is None else f"{fraction:.4f}"
        )


ADAPTER = PaddleAdapter
