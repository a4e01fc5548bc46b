"""A checksum of device memory that the device itself computes, at the speed of its memory.

A CRC on the host takes seconds for each GiB; this is a sum of 64-bit words,
weighted by their place in a row, modulo 2^64. It is the same number wherever it is
computed, so memory can be compared with its copy without moving either.
"""

from __future__ import annotations

from typing import Any, Final

_ROW: Final = 4096  # words of 8 bytes; rows add up, and within a row each place has its weight

_MIX: Final = 0x1E3779B97F4A7C15  # an odd number of 61 bits with no pattern


def checksum(torch: Any, data: Any) -> Any:
    """Of a tensor of bytes; a tensor of one 64-bit integer on the same device."""
    size = data.numel()
    whole = size - size % (8 * _ROW)
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    if whole:
        rows = data[:whole].view(torch.int64).view(-1, _ROW).sum(0)
        total = total + (rows * _weights(torch, _ROW, data.device)).sum()
    if size > whole:
        rest = data[whole:].to(torch.int64)  # at most 32 KiB
        total = total * 31 + (rest * _weights(torch, size - whole, data.device)).sum() + size
    return total


def _weights(torch: Any, count: int, device: Any) -> Any:
    """Odd, so that no change of one word is lost; large, so that changes do not cancel out."""
    numbers = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    return numbers * _MIX | 1
