"""How much GPU memory a framework's data takes, and which pieces of it some objects keep.

Nothing here starts CUDA: it is asked only where a framework has started it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from .parkers.allocator import CudaAllocator
from .parkers.walk import walk


class Holdings(Protocol):
    """Those of one framework in this process."""

    def used(self) -> int:
        """Bytes of data on GPUs now, without caches."""

    def is_data(self, kind: type) -> bool:
        """Whether objects of this class have GPU memory themselves."""

    def sizes(self, data: Sequence[Any]) -> Mapping[int, int]:
        """The pieces of GPU memory that such objects keep, each once: bytes by a key."""


class TorchHoldings:
    """Also what gradients keep, and the graph of a loss."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._allocator = CudaAllocator(torch)

    def used(self) -> int:
        figures = map(self._allocator.figures, self._allocator.devices())
        return sum(one.allocated for one in figures if one is not None)

    def is_data(self, kind: type) -> bool:
        return self._torch.Tensor in kind.__mro__

    def sizes(self, data: Sequence[Any]) -> Mapping[int, int]:
        found = walk(self._torch, self.is_on_gpu, data)
        return {storage._cdata: storage.nbytes() for storage in found.storages}

    def is_on_gpu(self, device: Any) -> bool:
        """Whether a device is none of the host's."""
        return device.type not in ("cpu", "meta")


class CuPyHoldings:
    """Arrays of the default pool, on the current GPU."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def used(self) -> int:
        return int(self._cupy.get_default_memory_pool().used_bytes())

    def is_data(self, kind: type) -> bool:
        return self._cupy.ndarray in kind.__mro__

    def sizes(self, data: Sequence[Any]) -> Mapping[int, int]:
        return {int(one.data.mem.ptr): int(one.data.mem.size) for one in data}


class JaxHoldings:
    """Arrays, each counted by its own size."""

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def used(self) -> int:
        stats = [device.memory_stats() or {} for device in self._jax.local_devices()]
        return sum(int(one.get("bytes_in_use", 0)) for one in stats)

    def is_data(self, kind: type) -> bool:
        return kind.__name__ == "ArrayImpl" and kind.__module__.startswith("jax")

    def sizes(self, data: Sequence[Any]) -> Mapping[int, int]:
        return {
            id(one): int(one.nbytes)
            for one in data
            if not one.is_deleted() and any(device.platform != "cpu" for device in one.devices())
        }


_KINDS: Final[Mapping[str, Callable[[Any], Holdings]]] = {
    "torch": TorchHoldings,
    "cupy": CuPyHoldings,
    "jax": JaxHoldings,
}


def holdings_of(module: str, loaded: Any) -> Holdings | None:
    """Those of a loaded framework; ``None``: it cannot be asked."""
    kind = _KINDS.get(module)
    return None if kind is None else kind(loaded)
