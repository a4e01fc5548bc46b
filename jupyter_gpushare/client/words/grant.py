"""The grant of the node manager, as the framework adapters see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...figures import format_size, listed
from ...protocol.errors import Reason
from ...protocol.said import plain
from ..errors import NodeUnavailable
from .told import whole

_CONTEXT_ROOM = 768 * 2**20  # bytes: what a CUDA context takes outside any framework's allocator


class GrantedGpu(NamedTuple):
    """One granted GPU. ``memory`` is the lease's limit there, ``capacity`` all it has (bytes).

    ``index`` is for display only; a GPU is named by its ``uuid``. ``shared_with`` are the names
    of the same person's other tasks that share the memory there.
    """

    uuid: str
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    name: str
    memory: int
    capacity: int
    shared_with: tuple[str, ...] = ()
    instance: int | None = None

    @property
    def number(self) -> str:
        """The number for people: ``0``, or ``0:1`` of a MIG instance."""
        part = "" if self.instance is None else f":{self.instance}"
        return f"{self.index}{part}"

    @property
    def whole(self) -> bool:
        """Whether the lease may use all of this GPU's memory."""
        return self.memory >= self.capacity

    @property
    def allocator_limit(self) -> int | None:
        """Bytes a framework's own allocator may take; ``None`` on a whole GPU.

        The CUDA context lives outside that allocator but counts as this task's
        memory, so room is left for it; a small lease keeps at least half.
        """
        return None if self.whole else max(self.memory - _CONTEXT_ROOM, self.memory // 2)


class Grant(NamedTuple):
    """A held lease: its id and the GPUs in the order the framework will number them.

    ``of_quota``: it was granted as many as the quota allowed then. ``follows``: what is reserved
    for it follows what it is measured to use. ``share``: hundredths of its GPUs' compute that it is
    predicted to need; ``None``: nobody predicted that. ``memory_most``: it asked for a range, up to
    so many bytes on each GPU.
    """

    lease: str
    gpus: tuple[GrantedGpu, ...]
    of_quota: bool = False
    follows: bool = False
    share: int | None = None
    memory_most: int | None = None

    @property
    def visible_devices(self) -> str:
        """The value of ``CUDA_VISIBLE_DEVICES``: UUIDs."""
        return ",".join(gpu.uuid for gpu in self.gpus)

    @property
    def indices(self) -> str:
        """The same by the driver's numbers, in the order of the bus. MIG instances have none."""
        if any(gpu.uuid.startswith("MIG-") for gpu in self.gpus):
            return self.visible_devices
        return ",".join(str(gpu.index) for gpu in self.gpus)

    @property
    def words(self) -> str:
        """``GPU 0 (24 GiB, shared with your a.ipynb)``; ``GPU 0 and GPU 1 (24 GiB each)``."""
        gpus = sorted(self.gpus, key=lambda gpu: (gpu.index, gpu.instance or 0))
        if len({_share(gpu) for gpu in gpus}) > 1:
            return listed([f"GPU {gpu.number} ({_share(gpu)})" for gpu in gpus])
        each = " each" if len(gpus) > 1 else ""
        return f"{listed([f'GPU {gpu.number}' for gpu in gpus])} ({_share(gpus[0], each)})"

    @property
    def allocator_limit(self) -> int | None:
        """The smallest `GrantedGpu.allocator_limit`, for frameworks with one limit for all."""
        limits = [limit for gpu in self.gpus if (limit := gpu.allocator_limit) is not None]
        return min(limits, default=None)

    @property
    def allocator_fraction(self) -> float | None:
        """The same as a fraction of a GPU, for frameworks that take only that."""
        shares = [
            limit / gpu.capacity for gpu in self.gpus if (limit := gpu.allocator_limit) is not None
        ]
        return min(shares, default=None)


def _share(gpu: GrantedGpu, each: str = "") -> str:
    part = "" if gpu.whole else f"{format_size(gpu.memory)} of "
    shared = f", shared with your {listed(gpu.shared_with)}" if gpu.shared_with else ""
    return f"{part}{format_size(gpu.capacity)}{each}{shared}"


def read_grant(result: Mapping[str, Any]) -> Grant:
    """The grant in an answer. Raises :class:`NodeUnavailable` when it makes no sense."""
    try:
        gpus = tuple(_gpu(gpu) for gpu in result["gpus"])
        lease = result["lease"]
        if not gpus or not isinstance(lease, str) or not lease or "\0" in lease:
            raise ValueError("no lease, or no GPUs")
        of_quota, follows = (result.get(name) is True for name in ("of_quota", "follows"))
        most = result.get("memory_most")
        if most is not None and whole(most) is None:
            raise ValueError(f"a range up to {most!r}")
        return Grant(lease, gpus, of_quota, follows, whole(result.get("share"), 1, 100), most)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise NodeUnavailable(
            f"The node manager's grant cannot be read ({error!r}); are both of the same release?",
            Reason.UNAVAILABLE,
        ) from error


def limits_now(result: Mapping[str, Any]) -> dict[str, int]:
    """By UUID, the bytes that the task may use now where that is more than it was granted."""
    gpus = [gpu for gpu in result["gpus"] if isinstance(gpu.get("limit"), int)]
    return {gpu["uuid"]: gpu["limit"] for gpu in gpus if gpu["limit"] > gpu["memory"]}


def _gpu(data: Mapping[str, Any]) -> GrantedGpu:
    uuid, memory = data["uuid"], data["memory"]
    # It goes into an environment variable and from there into a driver.
    if not isinstance(uuid, str) or not uuid.isprintable() or not uuid or set(uuid) & set(", "):
        raise ValueError(f"a GPU named {uuid!r}")
    capacity = data.get("capacity", memory)
    for size in (memory, capacity):
        if whole(size, 1) is None:
            raise ValueError(f"a GPU with {size!r} bytes")
    others = tuple(plain(name, 60) for name in data.get("shared_with") or ())
    instance = data.get("instance")
    return GrantedGpu(
        uuid,
        int(data["index"]),
        str(data["name"]),
        memory,
        capacity,
        others,
        None if instance is None else int(instance),
    )
