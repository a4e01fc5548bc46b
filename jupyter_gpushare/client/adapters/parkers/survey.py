"""The findings in a process before parking, and the decision whether parking is safe.

This is only data and one decision: `obstacles`. Memory that cannot be explained is never moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ....figures import counted, format_size, listed

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
    must do.
    """

    device: str
    storages: int
    found: int
    blocks: int
    requested: int | None
    allocated: int | None


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
    return max(device.allocated - device.blocks, min(0, device.allocated - device.found))


def obstacles(survey: Survey) -> tuple[str, ...]:
    """Why storages cannot be parked now, a clause for each; empty: they can."""
    graphs = counted(survey.graphs, "CUDA graph or memory pool", "CUDA graphs or memory pools")
    foreign = counted(survey.not_resizable, "tensor")
    shared = counted(survey.shared, "tensor is", "tensors are")
    streams = counted(survey.own_streams, "stream")
    pieces = counted(survey.aliased, "piece")
    reasons: dict[str, object] = {
        "an optimizer step is running": survey.in_step,
        f"PyTorch uses the allocator {survey.allocator!r}; only what its native one hands out can "
        "be accounted for": survey.allocator != "native",
        f"{graphs} of its own: a graph replays addresses, which would change": survey.graphs,
        f"torch.distributed runs here ({survey.process_group}): other processes may use this "
        "one's memory or wait for it": survey.process_group is not None,
        f"{listed(survey.others)} may use the GPU in this process, too, and may hold PyTorch's "
        "memory by address": survey.others,
        f"the memory of {foreign} is not PyTorch's to free (DLPack, another library's array, a "
        "mapped file)": survey.not_resizable,
        f"{pieces} of memory belong to several storages at once (DLPack)": survey.aliased,
        f"{shared} shared with other processes": survey.shared,
        f"memory was allocated on {streams} of your own, and would come back on the default "
        "one": survey.own_streams,
        f"tensors of these kinds cannot be looked into: {listed(survey.unreadable)}": (
            survey.unreadable
        ),
    }
    found = [why for why, is_so in reasons.items() if is_so]
    sums = (_not_reconciled(device, survey.frozen_objects) for device in survey.devices)
    return (*found, *(why for why in sums if why is not None))


def _not_reconciled(device: DeviceSurvey, frozen: int) -> str | None:
    missing = unexplained(device)
    if missing == 0:
        return None
    held = f"{format_size(device.found)} in {counted(device.storages, 'tensor')}"
    if missing < 0:
        return (
            f"on {device.device} {held} were found, {format_size(-missing)} more than PyTorch's "
            "allocator has given out: some of it comes from somewhere else"
        )
    hidden = " (gc.freeze hides objects here)" if frozen else ""
    return (
        f"on {device.device} PyTorch's allocator has given out {format_size(missing)} more than "
        f"the {held} that were found{hidden}: something that is not Python holds it (TorchScript, "
        "an extension)"
    )
