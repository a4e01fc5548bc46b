"""Storage parking for torch: moves every storage's bytes to the host and back.

Tensors lie in storages. A storage keeps its identity while its memory is freed (`resize_(0)`) and
allocated again (`resize_(n)`). So views, tied weights, an optimizer's state and the graph of an old
loss need not be found: they refer to the storage. But *all* storages must be found, and no other
code may know their addresses; `survey.obstacles` decides on that.

This holds at every instruction, whatever fails: from before the first byte is freed until the last
one is back, `is_parked` is true, every storage's copy is in host memory, and `resume` can be called
(again).
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ....figures import format_size
from .allocator import CudaAllocator
from .base import ParkedDamaged, ParkFailed, ParkRefused, ResumeFailed
from .checksum import Checksums
from .hostpool import CHUNK, KEEP, HostPool
from .others import others_on_gpu
from .shown import ParkedPrinting
from .steps import StepMeter
from .survey import DeviceSurvey, Survey, obstacles, rounded
from .walk import Findings, live_objects, walk

_log = logging.getLogger("jupyter_gpushare")


@dataclass(frozen=True, slots=True)
class _Copy:
    """One storage, its size (bytes), and its copy in pieces with their checksums."""

    storage: Any
    size: int
    pieces: tuple[Any, ...]  # tensors of bytes
    sums: tuple[int, ...]


class TorchParker:
    """See `base.Parker` for who may call what, and when."""

    def __init__(
        self,
        torch: Any,
        allocator: CudaAllocator,
        *,
        meter: StepMeter | None = None,
        others: Callable[[], tuple[str, ...]] = others_on_gpu,
        keep: int = KEEP,
        chunk: int = CHUNK,
    ) -> None:
        self._torch = torch
        self._allocator = allocator
        self._meter = meter
        self._others = others
        self._printing = ParkedPrinting(torch)
        self._parked: tuple[_Copy, ...] = ()
        self.pool = HostPool(
            allocator.host_buffer, allocator.forget_host_buffers, keep=keep, chunk=chunk
        )

    @property
    def is_parked(self) -> bool:
        """Whether there is something to `resume`."""
        return bool(self._parked)

    # -- caches -------------------------------------------------------------------------

    def trim(self) -> int:
        """Collect garbage and empty the cache; bytes that the allocator holds less."""
        try:
            return self._trim()
        except Exception as error:  # noqa: BLE001 - a broken driver: nothing was freed or harmed
            _log.warning("PyTorch's cache could not be emptied: %s", error)
            return 0

    def _trim(self) -> int:
        before = self._reserved()
        gc.collect()
        (graphs,) = live_objects(self._torch.cuda.CUDAGraph)
        if not graphs:  # one may have a workspace's address, and be played again
            self._allocator.clear_workspaces()
        self._allocator.empty_cache()
        return max(0, before - self._reserved())

    def drop_cache(self) -> None:
        """Wait for queued work and empty the cache.

        The next task finds the devices idle, and this one everything as it was.
        """
        try:
            for device in self._allocator.devices():
                self._allocator.synchronize(device)
            self._allocator.empty_cache()
        except Exception as error:  # noqa: BLE001 - the user's next call meets it, too
            _log.warning("PyTorch's queued work could not be waited for: %s", error)

    # -- storage ------------------------------------------------------------------------

    def bytes_to_park(self) -> int:
        """Host bytes that `park` would need now."""
        return sum(rounded(storage.nbytes()) for storage in self._walk().storages)

    def park(self) -> int:
        """Move all storages to the host; see `base.Parker.park`."""
        if self._parked:
            raise ParkRefused("The GPU memory of this process is parked already.")
        try:
            self._trim()
            findings = self._walk()
            survey = self._survey(findings)
        except Exception as error:
            raise ParkFailed(
                f"The GPU memory was not parked, and nothing has changed: {_first_line(error)}"
            ) from error
        if refusals := obstacles(survey):
            raise ParkRefused(f"The GPU memory cannot be parked: {'; '.join(refusals)}.")
        storages = findings.storages
        del findings  # it holds what would else be freed meanwhile
        if copies := self._copy_out(storages):
            self._let_go(copies)
        with suppress(Exception):  # it is parked, whatever the driver says now
            self._allocator.empty_cache()
        return sum(device.blocks for device in survey.devices)

    def resume(self) -> None:
        """Move everything back; see `base.Parker.resume`."""
        if not self._parked:
            return
        try:
            damaged = self._copy_back(self._parked)
        except Exception as error:  # any error of the framework or the driver
            with suppress(Exception):  # it is tried so that others have room, and no more
                self._free(self._parked)
            raise ResumeFailed(
                f"{format_size(sum(rounded(copy.size) for copy in self._parked))} could not be "
                f"put back on the GPU: {_first_line(error)} They are kept in host memory, "
                "complete; try again when the GPU has room."
            ) from error
        self._printing.end()
        self._parked = ()
        self.pool.give_all_back()
        if damaged:
            raise ParkedDamaged(
                f"The GPU memory is back, but {damaged} of its tensors are not what they were "
                "when they were parked. Do not trust this kernel's variables: restart it."
            )

    # -- inside ---------------------------------------------------------------------------

    def _reserved(self) -> int:
        figures = map(self._allocator.figures, self._allocator.devices())
        return sum(one.reserved for one in figures if one is not None)

    def _walk(self) -> Findings:
        ours = frozenset(self._allocator.devices())
        found = walk(self._torch, ours.__contains__)
        # If the device is the host (in tests), our copies are there, too.
        copies = self.pool.storages()
        found.storages = [one for one in found.storages if one._cdata not in copies]
        return found

    def _survey(self, findings: Findings) -> Survey:
        """Look at everything torch has on the lease's devices; changes nothing."""
        torch, allocator = self._torch, self._allocator
        storages = findings.storages
        devices = allocator.devices()
        return Survey(
            devices=tuple(self._of_device(device, storages) for device in devices),
            not_resizable=sum(not storage.resizable() for storage in storages),
            aliased=_overlaps(storages),
            shared=self._shared(storages),
            graphs=findings.graphs + sum(map(allocator.pools, devices)) + allocator.capturing(),
            own_streams=sum(map(allocator.own_streams, devices)),
            process_group=_process_group(torch),
            others=self._others(),
            allocator=allocator.name,
            unreadable=tuple(sorted(findings.unreadable)),
            frozen_objects=gc.get_freeze_count(),
            in_step=self._meter is not None and self._meter.in_step,
        )

    def _of_device(self, device: Any, storages: list[Any]) -> DeviceSurvey:
        sizes = [storage.nbytes() for storage in storages if storage.device == device]
        figures = self._allocator.figures(device)
        return DeviceSurvey(
            device=str(device),
            storages=len(sizes),
            found=sum(sizes),
            blocks=sum(map(rounded, sizes)),
            requested=None if figures is None else figures.requested,
            allocated=None if figures is None else figures.allocated,
        )

    def _shared(self, storages: list[Any]) -> int:
        """Storages that other processes have, or may have."""
        # A CUDA storage always says that it is shared; torch notes the storages that it has sent.
        cache = tuple(self._torch.multiprocessing.reductions.shared_cache.values())
        sent = {reference.cdata for reference in cache if not reference.expired()}
        return sum(
            one._cdata in sent or (one.device.type == "cpu" and one.is_shared()) for one in storages
        )

    def _copy_out(self, storages: list[Any]) -> tuple[_Copy, ...]:
        """Copy all storages without a change on the devices. Raises `ParkFailed`."""
        sizes = [storage.nbytes() for storage in storages]
        try:
            with self._torch.no_grad():
                for device in self._allocator.devices():
                    self._allocator.synchronize(device)
                places = self.pool.take([rounded(size) for size in sizes])
                sums = self._copied(zip(storages, sizes, places, strict=True))
        except Exception as error:
            self.pool.give_all_back()
            raise ParkFailed(
                f"The GPU memory was not parked, and nothing has changed: {_first_line(error)}"
            ) from error
        except BaseException:
            self.pool.give_all_back()
            raise
        return tuple(
            _Copy(storage, size, tuple(pieces), checksums)
            for storage, size, pieces, checksums in zip(storages, sizes, places, sums, strict=True)
        )

    def _copied(
        self, parts: Iterable[tuple[Any, int, Sequence[Any]]], *, back: bool = False
    ) -> list[tuple[int, ...]]:
        """Copy storages of these sizes to their pieces, or ``back``; each one's checksums.

        When these are computed, all copies are complete, too.
        """
        checksums = Checksums(self._torch)
        sums: list[list[Any]] = []
        for storage, size, pieces in parts:
            with self._allocator.default_stream(storage.device):
                of_storage = []
                for there, here in _pairs(self._torch, storage, size, pieces):
                    if back:
                        there.copy_(here, non_blocking=True)
                    else:
                        here.copy_(there, non_blocking=True)
                    of_storage.append(checksums.of(there))
                sums.append(of_storage)
        for device in self._allocator.devices():
            self._allocator.synchronize(device)
        numbers = iter(checksums.numbers([one for of_storage in sums for one in of_storage]))
        return [tuple(itertools.islice(numbers, len(of_storage))) for of_storage in sums]

    def _let_go(self, copies: tuple[_Copy, ...]) -> None:
        """Free the storages. Raises `ParkFailed`."""
        self._parked = copies  # first: from here on `resume` has work to do
        try:
            self._printing.begin(frozenset(copy.storage._cdata for copy in copies))
            for copy in copies:
                with self._allocator.default_stream(copy.storage.device):
                    copy.storage.resize_(0)
        except Exception as error:
            try:
                self.resume()
            except ResumeFailed as failed:
                raise ParkFailed(f"Parking was broken off. {failed}") from error
            raise ParkFailed(
                f"The GPU memory was not parked, and is as it was: {_first_line(error)}"
            ) from error

    def _copy_back(self, copies: tuple[_Copy, ...]) -> int:
        """Have the memory again and fill it; how many storages are not what they were."""
        with self._torch.no_grad():
            for copy in copies:  # room for all before anything is copied
                # A try that failed may have left some with their memory.
                if copy.storage.nbytes() != copy.size:
                    with self._allocator.default_stream(copy.storage.device):
                        copy.storage.resize_(copy.size)
            parts = ((copy.storage, copy.size, copy.pieces) for copy in copies)
            found = self._copied(parts, back=True)
        return sum(numbers != copy.sums for copy, numbers in zip(copies, found, strict=True))

    def _free(self, copies: tuple[_Copy, ...]) -> None:
        """After a failed resume: what was had already goes back, so that others have room."""
        for copy in copies:
            with self._allocator.default_stream(copy.storage.device):
                copy.storage.resize_(0)
        self._allocator.empty_cache()


def _pairs(torch: Any, storage: Any, size: int, pieces: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The parts of a storage, each with its place in host memory, as tensors of bytes.

    The tensor over the storage is one of its own, so writing through it leaves
    the version counters alone that autograd compares.
    """
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    whole.set_(storage, 0, (size,), (1,))
    start = 0
    for piece in pieces:
        end = min(start + piece.numel(), size)  # a piece is in whole blocks
        if end > start:
            yield whole[start:end], piece[: end - start]
        start = end


def _overlaps(storages: list[Any]) -> int:
    """Storages that begin inside another one."""
    spans = sorted((one.data_ptr(), one.data_ptr() + one.nbytes()) for one in storages)
    count, reach = 0, 0
    for start, end in spans:
        count += start < reach
        reach = max(reach, end)
    return count


def _process_group(torch: Any) -> str | None:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_backend())
    return None


def _first_line(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if line.endswith((".", "!")) else f"{line}."
