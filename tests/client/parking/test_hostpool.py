"""Each who asks for host memory for copies has its own, and what fails takes none."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, strategies as st

from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator
from jupyter_gpushare.client.adapters.parkers.hostpool import HostPool


def buffer(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def held(pool: HostPool) -> int:
    """Bytes that it has, used or not."""
    return sum(one.numel() for one in (*pool._free, *pool._used))


@given(st.lists(st.lists(st.integers(0, 300), max_size=9), max_size=6), st.integers(0, 1000))
def test_everybody_gets_his_own_and_little_is_kept(rounds: list[list[int]], keep: int) -> None:
    pool = HostPool(buffer, keep=keep, chunk=64)
    for sizes in rounds:
        kept = held(pool)
        places = pool.take(sizes)
        assert [sum(piece.numel() for piece in pieces) for pieces in places] == sizes
        every = [piece for pieces in places for piece in pieces]
        spans = sorted((one.data_ptr(), one.data_ptr() + one.numel()) for one in every)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        assert held(pool) <= max(sum(sizes), kept)
        pool.give_all_back()
        assert held(pool) <= keep


def test_a_failure_takes_nothing() -> None:
    left = [3]

    def allocate(size: int) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no more")
        return buffer(size)

    forgotten: list[bool] = []
    pool = HostPool(allocate, lambda: forgotten.append(True), keep=128, chunk=64)
    with pytest.raises(MemoryError):
        pool.take([1000])
    assert held(pool) == 128
    assert forgotten
    pool.take([100])
    assert held(pool) == 128
    pool.give_all_back()
    assert held(pool) == 128, "kept for the next one"


def test_torch_lets_go_of_host_memory_where_it_can() -> None:
    emptied: list[bool] = []
    can = SimpleNamespace(_C=SimpleNamespace(_host_emptyCache=lambda: emptied.append(True)))
    CudaAllocator(can).forget_host_buffers()
    assert emptied == [True]
    CudaAllocator(SimpleNamespace(_C=SimpleNamespace())).forget_host_buffers()  # an older torch
