"""Host memory that parked bytes lie in, kept for the next time.

Allocating pinned memory is what makes parking slow, so a part of it is kept.
Chunks are of one size, a power of two: torch's pinned allocator rounds up to
one, and a single large buffer could waste almost as much again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

CHUNK: Final = 64 * 2**20  # bytes
KEEP: Final = 2 * 2**30  # bytes kept for the next time, unless said otherwise


class HostPool:
    """Hands out host memory; never keeps more than ``keep`` unused bytes."""

    def __init__(
        self,
        allocate: Callable[[int], Any],
        forget: Callable[[], None] = lambda: None,
        *,
        keep: int = KEEP,
        chunk: int = CHUNK,
    ) -> None:
        self._allocate = allocate
        self._forget = forget
        self._keep = keep
        self._chunk = chunk
        self._free: list[Any] = []
        self._used: list[Any] = []

    def storages(self) -> frozenset[int]:
        """The ``_cdata`` of what the pool holds."""
        return frozenset(one.untyped_storage()._cdata for one in (*self._free, *self._used))

    def take(self, sizes: list[int]) -> list[list[Any]]:
        """Memory for each of ``sizes`` (bytes), each in one or more pieces: tensors of bytes.

        It takes no more than their sum, or than the kept memory. Raises the system's error; no
        memory is taken then.
        """
        left = sum(sizes)
        taken: list[Any] = []
        try:
            while left > 0:
                buffer = self._free.pop() if self._free else self._allocate(min(left, self._chunk))
                taken.append(buffer)
                left -= buffer.numel()
        except BaseException:
            self._give_back(taken)
            raise
        self._used += taken
        return _cut(taken, sizes)

    def give_all_back(self) -> None:
        """Nothing that was taken is needed any more."""
        used, self._used = self._used, []
        self._give_back(used)

    def _give_back(self, buffers: list[Any]) -> None:
        kept = sum(buffer.numel() for buffer in self._free)
        dropped = False
        while buffers:
            buffer = buffers.pop()
            size = buffer.numel()
            # The last chunk of a parking has an odd size, which rarely fits the next parking.
            if size == self._chunk and kept + size <= self._keep:
                self._free.append(buffer)
                kept += size
            else:
                dropped = True
            del buffer
        if dropped:
            self._forget()


def _cut(buffers: list[Any], sizes: list[int]) -> list[list[Any]]:
    pieces: list[list[Any]] = []
    which, offset = 0, 0
    for size in sizes:
        cut: list[Any] = []
        while size > 0:
            room = buffers[which].numel() - offset
            if room == 0:
                which, offset = which + 1, 0
                continue
            part = min(room, size)
            cut.append(buffers[which][offset : offset + part])
            offset += part
            size -= part
        pieces.append(cut)
    return pieces
