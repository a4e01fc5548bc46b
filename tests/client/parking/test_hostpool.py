"""Each who asks for host memory for copies has its own, and what fails takes none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator
from jupyter_gpushare.client.adapters.parkers.hostpool import HostPool


class Buffer:
    def __init__(self, size: int) -> None:
        self.size = size

    def numel(self) -> int:
        return self.size


@given(st.lists(st.lists(st.integers(0, 300), max_size=9), max_size=6), st.integers(0, 1000))
def test_everybody_gets_his_own_and_little_is_kept(rounds: list[list[int]], keep: int) -> None:
    pool = HostPool(Buffer, keep=keep, chunk=64)
    for sizes in rounds:
        kept = pool.held
        places = pool.take(sizes)
        assert [sum(piece.size for piece in pieces) for pieces in places] == sizes
        taken: dict[int, list[Any]] = {}
        for piece in (piece for pieces in places for piece in pieces):
            assert piece.offset >= 0
            assert piece.offset + piece.size <= piece.buffer.numel()
            taken.setdefault(id(piece.buffer), []).append(piece)
        for pieces in taken.values():
            spans = sorted((one.offset, one.offset + one.size) for one in pieces)
            ends = [end for _, end in spans[:-1]]
            assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=True))
        assert pool.held <= max(sum(sizes), kept)
        pool.give_all_back()
        assert pool.held <= keep


def test_a_failure_takes_nothing() -> None:
    left = [3]

    def allocate(size: int) -> Buffer:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no more")
        return Buffer(size)

    forgotten: list[bool] = []
    pool = HostPool(allocate, lambda: forgotten.append(True), keep=128, chunk=64)
    with pytest.raises(MemoryError):
        pool.take([1000])
    assert pool.held == 128
    assert forgotten
    pool.take([100])
    assert pool.held == 128
    pool.give_all_back()
    assert pool.held == 128, "kept for the next one"


def test_torch_lets_go_of_host_memory_where_it_can() -> None:
    emptied: list[bool] = []
    can = SimpleNamespace(_C=SimpleNamespace(_host_emptyCache=lambda: emptied.append(True)))
    CudaAllocator(can).forget_host_buffers()
    assert emptied == [True]
    CudaAllocator(SimpleNamespace(_C=SimpleNamespace())).forget_host_buffers()  # an older torch
