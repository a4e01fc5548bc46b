"""Checksums of device memory, computed on the device at the speed of its memory.

A CRC on the host takes seconds for each GiB. This is instead a sum of 64-bit words, weighted by
their place in a row, modulo 2^64. Host and device compute the same number, so memory can be
compared with its copy without moving either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_ROW: Final = 4096  # words of 8 bytes; rows add up, and within a row each place has its weight
_MIX: Final = 0x1E3779B97F4A7C15  # an odd number of 61 bits with no pattern


class Checksums:
    """Adds up tensors of bytes. Keeps 256 KiB on each device that it has worked on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._weights: dict[Any, Any] = {}

    def of(self, data: Any) -> Any:
        """Of a tensor of bytes: a tensor of one 64-bit integer on the same device.

        Few operations, for a small tensor's time goes into starting them.
        """
        size = data.numel()
        whole = size - size % (8 * _ROW)
        weights = self._of(data.device)
        if not whole:
            return (data.to(self._torch.int64) * weights[:size]).sum()
        rows = data[:whole].view(self._torch.int64).view(-1, _ROW).sum(0)
        total = (rows * weights[:_ROW]).sum()
        return total if whole == size else total * 31 + self.of(data[whole:])

    def numbers(self, sums: Sequence[Any]) -> list[int]:
        """The results of `of` as numbers, in the same order; waits for each device once."""
        by_device: dict[Any, list[int]] = {}
        for index, one in enumerate(sums):
            by_device.setdefault(one.device, []).append(index)
        numbers = [0] * len(sums)
        for indices in by_device.values():
            found = self._torch.stack([sums[index] for index in indices]).tolist()
            for index, number in zip(indices, found, strict=True):
                numbers[index] = number
        return numbers

    def _of(self, device: Any) -> Any:
        """Odd, so that no change of one word is lost; large, so that changes do not cancel out."""
        weights = self._weights.get(device)
        if weights is None:
            count = 8 * _ROW  # the most bytes that are left over
            weights = self._torch.arange(1, count + 1, dtype=self._torch.int64, device=device)
            weights = self._weights[device] = weights * _MIX | 1
        return weights
