"""A torch whose "GPU" is the CPU, with an allocator that counts by itself.

`Counting` sees the result of every operation below autograd and remembers its
storage weakly, also what only autograd keeps. So its figures come from what was
allocated, and not from the walk that they are to check.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jupyter_gpushare.client.adapters.parkers.allocator import Figures
from jupyter_gpushare.client.adapters.parkers.survey import rounded
from jupyter_gpushare.client.adapters.parkers.walk import walk

CPU = torch.device("cpu")
Kept = TypeVar("Kept")


class Counting(TorchDispatchMode):
    """Remembers the storages of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        results = function(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            for part in _parts(result) if isinstance(result, torch.Tensor) else ():
                storage = part.untyped_storage()
                if storage.device == CPU:
                    self.note(storage)
        return results

    def note(self, storage: Any) -> None:
        known = self.known.get(storage._cdata)
        if known is None or known.expired():
            self.known[storage._cdata] = StorageWeakRef(storage)

    def live(self) -> Iterator[Any]:
        for key, reference in tuple(self.known.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.known[key]
            else:
                yield storage


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


class CpuAllocator:
    """`jupyter_gpushare.client.adapters.parkers.allocator.CudaAllocator` for the CPU.

    ``exact``: whether it counts what was requested, or only blocks.
    ``planted``: bytes that somebody else has of it. ``room``: bytes that are free.
    """

    name = "native"

    def __init__(self, *, exact: bool = True, counts: bool = True) -> None:
        self.counting = Counting()
        for storage in walk(torch, CPU.__eq__).storages:  # what other tests have left
            self.counting.note(storage)
        self.exact = exact
        self.counts = counts
        self.planted = 0
        self.room: int | None = None
        self.held: list[int] = []
        self.streams = self.mempools = 0
        self.recording = False
        self.peak = self.reserved = 0
        self.fail_host_after: int | None = None
        self.calls: list[str] = []

    def hold(self, build: Callable[[], Kept]) -> Kept:
        """What ``build`` makes, counted, but with nothing of Python's over what C++ keeps.

        While `Counting` looks on, every tensor gets a Python object, which the
        garbage collector knows. So it is built once to be counted and once to be kept.
        """
        before = {storage._cdata for storage in self.counting.live()}
        with self.counting:
            first = build()
        sizes = [one.nbytes() for one in self.counting.live() if one._cdata not in before]
        del first
        gc.collect()
        after = {storage._cdata for storage in self.counting.live()}
        extra = [one.nbytes() for one in self.counting.live() if one._cdata in after - before]
        assert not extra, f"bytes kept beside what is returned: {extra}"
        self.held += sizes
        return build()

    @contextmanager
    def user(self) -> Iterator[None]:
        """What runs inside is the user's code."""
        with self.counting:
            yield

    def devices(self) -> tuple[Any, ...]:
        return (CPU,)

    def figures(self, device: Any) -> Figures | None:
        if not self.counts:
            return None
        sizes = [storage.nbytes() for storage in self.counting.live()] + self.held
        allocated = sum(map(rounded, sizes)) + rounded(self.planted)
        self.peak = max(self.peak, allocated)
        self.reserved = max(self.reserved, allocated)
        requested = sum(sizes) + self.planted if self.exact else None
        return Figures(requested, allocated, self.reserved, self.peak)

    def free(self, device: Any) -> int | None:
        return self.room

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")
        self.reserved = 0

    def clear_workspaces(self) -> None:
        self.calls.append("clear_workspaces")

    def synchronize(self, device: Any) -> None:
        self.calls.append("synchronize")

    def default_stream(self, device: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def own_streams(self, device: Any) -> int:
        return self.streams

    def pools(self, device: Any) -> int:
        return self.mempools

    def capturing(self) -> bool:
        return self.recording

    def host_buffer(self, size: int) -> Any:
        if self.fail_host_after is not None:
            self.fail_host_after -= 1
            if self.fail_host_after < 0:
                raise RuntimeError("CUDA error: out of host memory")
        return torch.empty(size, dtype=torch.uint8)

    def forget_host_buffers(self) -> None:
        self.calls.append("forget_host_buffers")
