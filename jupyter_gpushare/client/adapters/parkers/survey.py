"""The findings in a process before parking, and the decision whether parking is safe.

This is only data and one decision: `obstacles`. Memory that cannot be explained is never moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ....protocol.sizes import format_size

BLOCK: Final = 512  # bytes: a framework's allocator hands out memory in multiples of it


def rounded(size: int) -> int:
    """``size`` in whole blocks (bytes)."""
    return -(-size // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class DeviceSurvey:
    """One device: the storages found there, beside the allocator's own figures (bytes).

    ``found`` is what they hold and ``blocks`` the same in whole blocks.
    ``requested`` is what the allocator was asked for and has not got back;
    ``None`` where it does not count that, and then ``allocated`` (in blocks)
    must do. ``reserved`` is what it holds from the driver, its cache included.
    """

    device: str
    storages: int
    found: int
    blocks: int
    requested: int | None
    allocated: int | None
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything the decision needs. The numbers count storages, except where said."""

    devices: tuple[DeviceSurvey, ...] = ()
    not_resizable: int = 0
    aliased: int = 0
    shared: int = 0
    graphs: int = 0
    """CUDA graphs, and memory pools of their own."""
    own_streams: int = 0
    """Streams other than the default one that memory was allocated on."""
    process_group: str | None = None
    """The backend of torch.distributed, where it runs."""
    others: tuple[str, ...] = ()
    """Other frameworks that use the GPU, or do not say."""
    allocator: str = "native"
    unreadable: tuple[str, ...] = ()
    """Kinds of tensors whose storages cannot be looked at."""
    frozen_objects: int = 0
    """Objects that ``gc.freeze`` hides from a walk."""
    in_step: bool = False
    means: str | None = None
    """Why this framework's memory cannot be moved at all."""

    @property
    def bytes_to_park(self) -> int:
        """The bytes that parking would put into host memory."""
        return sum(device.blocks for device in self.devices)

    @property
    def storages(self) -> int:
        """Storages found on all devices."""
        return sum(device.storages for device in self.devices)


def unexplained(device: DeviceSurvey) -> int:
    """Bytes that the allocator has given out and that are in no storage found.

    0: the sums agree. Negative: more was found than the allocator knows of. Where the allocator
    counts requests, they must agree to the byte; where it only counts blocks, each storage may take
    up to `BLOCK` - 1 bytes more than it holds, and nothing else.
    """
    if device.requested is not None:
        return device.requested - device.found
    if device.allocated is None:
        return 0 if device.found == 0 else -device.found
    if device.allocated > device.blocks:
        return device.allocated - device.blocks
    return min(0, device.allocated - device.found)


def obstacles(survey: Survey) -> tuple[str, ...]:
    """Why storages cannot be parked now, a sentence for each; empty: they can."""
    if survey.means is not None:
        return (survey.means,)
    found: list[str] = []
    if survey.in_step:
        found.append("an optimizer step is running.")
    if survey.allocator != "native":
        found.append(
            f"PyTorch uses the allocator {survey.allocator!r}; only what its native one hands "
            "out can be accounted for.",
        )
    if survey.graphs:
        found.append(
            f"{_count(survey.graphs, 'CUDA graph or memory pool', 'CUDA graphs or memory pools')} "
            "of its own: a graph replays addresses, which would change.",
        )
    if survey.process_group is not None:
        found.append(
            f"torch.distributed runs here ({survey.process_group}): other processes may use this "
            "one's memory or wait for it.",
        )
    if survey.others:
        found.append(
            f"{_and(survey.others)} may use the GPU in this process, too, and may hold PyTorch's "
            "memory by address.",
        )
    if survey.not_resizable:
        found.append(
            f"the memory of {_count(survey.not_resizable, 'tensor', 'tensors')} is not PyTorch's "
            "to free (DLPack, another library's array, a mapped file).",
        )
    if survey.aliased:
        found.append(
            f"{_count(survey.aliased, 'piece', 'pieces')} of memory belong to several storages "
            "at once (DLPack).",
        )
    if survey.shared:
        found.append(
            f"{_count(survey.shared, 'tensor is', 'tensors are')} shared with other processes.",
        )
    if survey.own_streams:
        found.append(
            f"memory was allocated on {_count(survey.own_streams, 'stream', 'streams')} of your "
            "own, and would come back on the default one.",
        )
    if survey.unreadable:
        found.append(
            f"tensors of these kinds cannot be looked into: {_and(survey.unreadable)}.",
        )
    for device in survey.devices:
        if (words := _not_reconciled(device, survey.frozen_objects)) is not None:
            found.append(words)
    return tuple(found)


def _not_reconciled(device: DeviceSurvey, frozen: int) -> str | None:
    missing = unexplained(device)
    if missing == 0:
        return None
    held = f"{format_size(device.found)} in {_count(device.storages, 'tensor', 'tensors')}"
    if missing < 0:
        return (
            f"on {device.device} {held} were found, {format_size(-missing)} more than PyTorch's "
            "allocator has given out: some of it comes from somewhere else."
        )
    hidden = " (gc.freeze hides objects here)" if frozen else ""
    return (
        f"on {device.device} PyTorch's allocator has given out {format_size(missing)} more than "
        f"the {held} that were found{hidden}: something that is not Python holds it (TorchScript, "
        "an extension)."
    )


def words(refusals: Sequence[str]) -> str:
    """All obstacles as one clause after "cannot be parked"; empty if there is none."""
    return "; ".join(refusal.rstrip(".") for refusal in refusals)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
