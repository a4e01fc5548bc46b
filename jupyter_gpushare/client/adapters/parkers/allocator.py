"""The GPU's side of torch: its allocator's figures, and what only exists on a GPU.

All that is above it works on any device that torch has: tests stand in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


class Figures(NamedTuple):
    """The allocator's figures for one device (bytes). ``requested``: ``None`` where not counted.

    ``peak`` is the most that was allocated since the user reset it.
    """

    requested: int | None
    allocated: int
    reserved: int
    peak: int


class CudaAllocator:
    """One torch and the devices of the lease. CUDA must have been started by the user's code."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._devices: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """The allocator's kind; only ``native`` can be accounted for."""
        return str(self._torch.cuda.memory.get_allocator_backend())

    def devices(self) -> tuple[Any, ...]:
        """The lease's devices, as torch names them."""
        cuda = self._torch.cuda
        if not self._devices and cuda.is_initialized():  # from then on they do not change
            count = cuda.device_count()
            self._devices = tuple(self._torch.device("cuda", index) for index in range(count))
        return self._devices

    def figures(self, device: Any) -> Figures | None:
        """The figures now; ``None`` while the device is not used. Cheap: once per step."""
        # The nested form: flattening and sorting it costs many times what reading it does.
        stats = self._torch.cuda.memory_stats_as_nested_dict(device)
        if not stats:
            return None
        requested = stats.get("requested_bytes", {}).get("all", {}).get("current")
        allocated = stats["allocated_bytes"]["all"]
        return Figures(
            requested=None if requested is None else int(requested),
            allocated=int(allocated["current"]),
            reserved=int(stats["reserved_bytes"]["all"]["current"]),
            peak=int(allocated["peak"]),
        )

    def free(self, device: Any) -> int | None:
        """Bytes that nobody uses on the device now, measured; ``None``: that cannot be told."""
        try:
            return int(self._torch.cuda.mem_get_info(device)[0])
        except RuntimeError:  # the driver's error, whatever it is
            return None

    def empty_cache(self) -> None:
        """Give back what no tensor uses; at any time."""
        self._torch.cuda.empty_cache()  # does nothing before CUDA has started

    def clear_workspaces(self) -> None:
        """Free the workspaces that libraries keep from it; call it only while no code computes."""
        # cuBLAS's workspaces belong to no tensor, so the sums would not agree while they exist.
        clear = getattr(self._torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None and self._torch.cuda.is_initialized():
            clear()

    def synchronize(self, device: Any) -> None:
        """Wait until the device has finished all work."""
        self._torch.cuda.synchronize(device)

    def default_stream(self, device: Any) -> AbstractContextManager[Any]:
        """Run the calls inside on the device's default stream."""
        # `stream` also makes the stream's device the current one.
        cuda = self._torch.cuda
        context: AbstractContextManager[Any] = cuda.stream(cuda.default_stream(device))
        return context

    def own_streams(self, device: Any) -> int:
        """Streams other than the default one that memory is allocated on."""
        return len({one["stream"] for one in self._segments(device)} - {0})

    def pools(self, device: Any) -> int:
        """Memory pools besides the default one: those of CUDA graphs."""
        pools = {tuple(one.get("segment_pool_id", (0, 0))) for one in self._segments(device)}
        return len(pools - {(0, 0)})

    def capturing(self) -> bool:
        """Whether a CUDA graph is being recorded."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def host_buffer(self, size: int) -> Any:
        """``size`` bytes of host memory that the device copies from and to at full speed."""
        torch = self._torch  # the device is said, for users set default ones
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def forget_host_buffers(self) -> None:
        """Host buffers that were dropped go back to the system."""
        # Without this torch keeps pinned memory for ever.
        if hasattr(self._torch._C, "_host_emptyCache"):
            self._torch._C._host_emptyCache()

    def _segments(self, device: Any) -> list[Mapping[str, Any]]:
        """The allocator's segments on the device that something lives in."""
        segments = self._torch.cuda.memory_snapshot()
        return [
            one for one in segments if one["device"] == device.index and one["allocated_size"] > 0
        ]
