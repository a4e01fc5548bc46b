"""Torch on the CPU, with nothing of other tests in its way."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_GPUSHARE", "off")  # no lease for the test process itself


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations that wait for each other's threads take long
    gc.collect()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def a_small_world(collected: None) -> None:
    """What there is already is hidden from walks, which makes them many times faster."""
    gc.freeze()


@pytest.fixture
def parker() -> Iterator[Callable[..., Any]]:
    """Makes a parker over a counting CPU allocator; nothing stays parked."""
    import torch
    from support.torch_cpu import CpuAllocator

    from jupyter_gpushare.client.adapters.parkers.torch import TorchParker

    made: list[TorchParker] = []

    def make(allocator: CpuAllocator, **named: Any) -> TorchParker:
        named.setdefault("others", tuple)
        one = TorchParker(torch, allocator, **named)
        made.append(one)
        return one

    yield make
    for one in made:
        one.resume()
