"""The real GPUs, through NVIDIA's management library.

What is measured here is what promises rest on: a GPU's memory is given to somebody else only when
this says that it is gone. So a figure that the driver does not tell is unknown, never 0, and a GPU
that cannot be read has a problem, in words, and gets no new lease.

One GPU's trouble is that GPU's only. A lost board, an instance that was made anew, a question that
an old driver does not know: each is an answer about one device, and the others are read on. Only
what concerns the library as a whole ends the reading, and the library is started anew at the next.

Full GPUs and MIG instances alike are named by UUID; a GPU in MIG mode yields its instances and not
itself. Handles are looked up anew for each measurement: a GPU that was reset, or an instance that
was made again, keeps its UUID but not its handle.

Nothing here is initialised at import, nor when an inventory is made: the first ``discover`` or
``read`` does it, in the caller's executor thread, which may hang there for ever.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pynvml  # type: ignore[import-untyped]

from jupyter_gpushare.node.host.processes import lineage
from jupyter_gpushare.node.inventory.base import Build, InventoryError, LeftOut, Sensors
from jupyter_gpushare.node.inventory.system import SystemProcesses
from jupyter_gpushare.policy.words.model import (
    Bytes,
    Gpu,
    GpuReading,
    GpuUuid,
    ProcessId,
    ProcessReading,
)
from jupyter_gpushare.protocol import hostmemory

_log = logging.getLogger(__name__)

# pynvml's handles and structures have no types of their own.
_Handle = Any

# Answers that concern the library as a whole, not one GPU.
_NO_LIBRARY = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

# Answers that mean "this driver or this device does not know that question".
_NO_ANSWER = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)

_GPU_NOT_FOUND = 28  # NVML_ERROR_GPU_NOT_FOUND, which older pynvml does not name

# Answers that mean "not here now". A GPU that comes back after one of them was reset, replaced or
# made again.
_LOST = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        _GPU_NOT_FOUND,
    }
)

# Answers about a place of a GPU in MIG mode that holds no instance, or one that we may not use.
_NOBODYS_PLACE = frozenset(
    {
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
    }
)

_NO_INSTANCE = (
    "The GPU is in MIG mode and has no instance that can be used: make some"
    " (nvidia-smi mig -cgi … -C), or switch MIG mode off."
)

# An administrator lets one process compute there, or one thread of one (which drivers treat alike).
_ONE_PROCESS = frozenset(
    {pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD}
)

_PROHIBITED = (
    "The GPU's compute mode is prohibited: no program may compute there."
    " `nvidia-smi -i {} -c DEFAULT` ends that."
)

# XID numbers that speak of one program's fault (13, 31, 43, 45, 68, 109) or
# only record an event that the GPU has survived (63, 92, 94). Were they held
# against the GPU, one notebook with a wrong index could take it from everyone.
_HARMLESS_XIDS = frozenset({13, 31, 43, 45, 63, 68, 92, 94, 109})

# NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, which older pynvml does not name.
_RECOVERY_ACTION_FIELD = 230
_RECOVERY = {
    1: "a reset",
    2: "a reboot of this host",
    3: "its peer-to-peer traffic drained",
    4: "its peer-to-peer traffic drained and a reset",
    5: "its IMEX domain recovered",
    6: "a reset of its PCIe bus",
    7: "a reboot of the whole system",
}

# A lost GPU that comes back is seen again only by a library that was started
# again on some drivers; starting it costs up to seconds, so not at each reading.
_RESTART_EVERY = 8

# A GPU that reports errors without end must not keep a reading from ending.
_MOST_EVENTS_AT_ONCE = 256
_PROCESS_LIST_TRIES = 5
_ANY_INSTANCE = 0xFFFFFFFF


_UNKNOWN = Build()


@dataclass(frozen=True, slots=True)
class _Device:
    """A GPU we listed. ``board`` is the UUID of the physical GPU it is (a part of).

    ``instance`` is the MIG GPU instance; ``sharers`` counts the MIG devices
    that share its memory, itself included.
    """

    gpu: Gpu
    board: str
    instance: int | None = None
    sharers: int = 1
    build: Build = _UNKNOWN


@dataclass(frozen=True, slots=True)
class _Memory:
    """In bytes. ``used`` excludes the driver's reserve where the driver tells it.

    ``of_host``: the GPU has none of its own.
    """

    capacity: int
    used: int
    of_host: bool = False


class NvmlInventory:
    """The GPUs that NVML lists. See :class:`~.base.Inventory` for what it promises."""

    simulated = False

    def __init__(self, boot_id: str, system: SystemProcesses | None = None) -> None:
        """``boot_id`` is stamped on the processes found on the GPUs.

        ``system`` tells which of these are the host's own.
        """
        self._boot_id = boot_id
        self._system = system or SystemProcesses()
        self._lock = threading.Lock()  # held while NVML is called; close() never waits for it
        self._closed = False
        self._started = False
        self._devices: dict[GpuUuid, _Device] | None = None
        self._events: _Handle | None = None
        self._listening: set[str] = set()
        # The errors that the driver reported, by board and GPU instance (None: the whole board).
        self._xids: dict[tuple[str, int | None], int] = {}
        self._lost_boards: set[str] = set()
        self._readings_with_loss = 0
        self._tell_once = functools.cache(functools.partial(_log.warning, "%s"))
        self._left_out: tuple[LeftOut, ...] = ()
        # The newest stamp of each device's samples of work, as the driver counts them.
        self._sampled: dict[GpuUuid, int] = {}
        self._sensors: dict[GpuUuid, Sensors] = {}

    def discover(self) -> tuple[Gpu, ...]:
        with self._calls():
            return tuple(device.gpu for device in self._discover().values())

    def read(self) -> tuple[GpuReading, ...]:
        with self._calls():
            devices = self._discover() if self._devices is None else self._devices
            # Before the boards are asked: an error that the driver has just reported counts in this
            # reading.
            self._collect_events()
            # Anew, so that a GPU that cannot be read shows no old temperature.
            self._sensors = {}
            boards = {device.board for device in devices.values()}
            problems = {board: self._board_problem(board) for board in boards}
            readings = tuple(
                self._read(device, problems[device.board]) for device in devices.values()
            )
            if self._lost_boards:
                self._readings_with_loss += 1
                if self._readings_with_loss % _RESTART_EVERY == 0:
                    # The next reading starts it anew; what was read of the others now is right all
                    # the same.
                    self._stop()
            else:
                self._readings_with_loss = 0
            return readings

    def sensors(self) -> dict[GpuUuid, Sensors]:
        return self._sensors

    def builds(self) -> dict[GpuUuid, Build]:
        return {uuid: device.build for uuid, device in (self._devices or {}).items()}

    def left_out(self) -> tuple[LeftOut, ...]:
        return self._left_out

    def close(self) -> None:
        # First the flag, then the try: the thread with the lock looks at the
        # flag after letting go of it, so one of the two always stops NVML.
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    # The library as a whole

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        """Everything that calls NVML happens in here."""
        try:
            with self._lock:
                if self._closed:
                    raise InventoryError("The inventory is closed.")
                try:
                    self._start()
                    yield
                except pynvml.NVMLError as error:
                    self._stop()
                    raise InventoryError(_sentence(error)) from error
        finally:
            if self._closed:
                self.close()

    def _start(self) -> None:
        if not self._started:
            pynvml.nvmlInit()
            self._started = True
            # The registrations went with the library that was stopped. At the first start
            # ``discover`` makes them.
            self._listen(self._board_handles() if self._devices is not None else {})

    def _stop(self) -> None:
        if self._started:
            self._started = False
            self._listening.clear()
            events, self._events = self._events, None
            # A library that has lost its driver cannot even say good-bye.
            if events is not None:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlEventSetFree(events)
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    # Listing

    def _discover(self) -> dict[GpuUuid, _Device]:
        found: dict[GpuUuid, _Device] = {}
        boards: dict[str, _Handle] = {}
        left_out: list[LeftOut] = []
        known = {device.board for device in (self._devices or {}).values()}
        unsure: set[str] = set()
        for position in range(pynvml.nvmlDeviceGetCount()):
            board: str | None = None
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(position)
                board = _text(pynvml.nvmlDeviceGetUUID(handle))
                devices = self._allocatable(handle, board, position, left_out)
            except pynvml.NVMLError as error:
                _reraise_if_general(error)
                # A known board stays listed, as leases may be on it: its reading tells what is
                # wrong with it.
                if board not in known:
                    left_out.append(LeftOut(position, _problem(error, str(position)), board))
                continue
            boards[board] = handle
            if any(one.index == position and one.uuid is None for one in left_out):
                unsure.add(board)
            found.update((device.gpu.uuid, device) for device in devices)
        for uuid, device in (self._devices or {}).items():
            # It stays listed, since leases may be on it. It is lost, and therefore has no name just
            # now, or it is on a board whose devices cannot be told.
            if device.board not in boards or device.board in unsure:
                found.setdefault(uuid, device)
        for one in left_out:
            self._tell_once(one.text)
        self._devices, self._left_out = found, tuple(left_out)
        self._listen(boards)
        return found

    def _allocatable(
        self, handle: _Handle, board: str, position: int, left_out: list[LeftOut]
    ) -> list[_Device]:
        """The GPU itself, or its MIG devices when it is in MIG mode; to ``left_out`` the others."""
        if not _in_mig_mode(handle):
            exclusive = _compute_mode(handle) in _ONE_PROCESS
            gpu = replace(_describe(handle, GpuUuid(board), position), exclusive=exclusive)
            return [_Device(gpu, board, build=_build(handle))]
        members: list[tuple[int, _Handle, int]] = []
        before = len(left_out)
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                member = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
                instance = int(pynvml.nvmlDeviceGetGpuInstanceId(member))
            except pynvml.NVMLError as error:
                # A place that holds no instance, or one that was given to others only.
                if error.value not in _NOBODYS_PLACE:
                    left_out.append(_unreadable(position, place, error))
                continue
            members.append((place, member, instance))
        instances = [instance for _place, _member, instance in members]
        devices: list[_Device] = []
        for place, member, instance in members:
            # MIG devices of one GPU instance have their own processors but one common memory, and
            # each reports all of it. Offering it more than once would book it twice, so each gets
            # its part.
            sharers = instances.count(instance)
            try:
                uuid = GpuUuid(_text(pynvml.nvmlDeviceGetUUID(member)))
                gpu = replace(_describe(member, uuid, position, sharers), instance=place)
                devices.append(_Device(gpu, board, instance, sharers, _build(member)))
            except pynvml.NVMLError as error:
                left_out.append(_unreadable(position, place, error))
        if not devices and len(left_out) == before:
            left_out.append(LeftOut(position, _NO_INSTANCE, board))
        return devices

    # Health

    def _board_handles(self) -> dict[str, _Handle]:
        handles: dict[str, _Handle] = {}
        for board in {device.board for device in (self._devices or {}).values()}:
            with contextlib.suppress(pynvml.NVMLError):  # lost: its reading will say so
                handles[board] = pynvml.nvmlDeviceGetHandleByUUID(board)
        return handles

    def _listen(self, boards: dict[str, _Handle]) -> None:
        """Asks the driver to report XID errors of these boards."""
        for board, handle in boards.items():
            if board in self._listening:
                continue
            try:
                if self._events is None:
                    self._events = pynvml.nvmlEventSetCreate()
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, self._events
                )
            except pynvml.NVMLError as error:
                _reraise_if_general(error)
                self._tell_once(f"No XID reports for {board}: {error}")
            # Also where it failed: a driver without such reports is not asked again at each
            # listing.
            self._listening.add(board)

    def _collect_events(self) -> None:
        if self._events is None:
            return
        for _ in range(_MOST_EVENTS_AT_ONCE):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                _reraise_if_general(error)
                return  # a time-out: nothing more to report; a lost GPU: its reading says so
            if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
                continue
            xid = int(event.eventData)
            try:
                board = _text(pynvml.nvmlDeviceGetUUID(event.device))
            except pynvml.NVMLError as error:
                _reraise_if_general(error)
                continue  # it does not even know its name: its reading says so
            if xid in _HARMLESS_XIDS:
                _log.info("XID %d on %s: a program's fault, not the GPU's", xid, board)
                continue
            _log.error("XID %d on %s", xid, board)
            instance = int(event.gpuInstanceId)
            self._xids[board, None if instance == _ANY_INSTANCE else instance] = xid

    def _board_problem(self, board: str) -> str | None:
        """The problem of a physical GPU, apart from XID errors, or ``None``."""
        try:
            action = _recovery_action(pynvml.nvmlDeviceGetHandleByUUID(board))
        except pynvml.NVMLError as error:
            _reraise_if_general(error)
            if error.value in _LOST:
                self._lost_boards.add(board)
            return _problem(error, board)
        came_back = board in self._lost_boards
        self._lost_boards.discard(board)
        if came_back or action == 0:
            # The GPU was taken away and is here again, or the driver says that its report needs no
            # action (any more).
            for key in [key for key in self._xids if key[0] == board]:
                del self._xids[key]
        if action:
            what = _RECOVERY.get(action, f"recovery action {action}")
            return f"The driver says that the GPU needs {what} before it can be used again."
        return None

    def _xid_problem(self, device: _Device) -> str | None:
        xid = self._xids.get((device.board, None))
        if xid is None and device.instance is not None:
            xid = self._xids.get((device.board, device.instance))
        if xid is None:
            return None
        return (
            f"The driver reported the hardware error XID {xid}. Reset the GPU"
            f" (nvidia-smi --gpu-reset -i {device.board}) and restart the node manager."
        )

    # Measuring

    def _read(self, device: _Device, board_problem: str | None) -> GpuReading:
        uuid = device.gpu.uuid
        lost = GpuReading(uuid=uuid, problem=board_problem, used=None)
        if device.board in self._lost_boards:
            return lost
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            problem = board_problem or self._xid_problem(device)
            if problem is None and _compute_mode(handle) == pynvml.NVML_COMPUTEMODE_PROHIBITED:
                problem = _PROHIBITED.format(device.gpu.index)
            if device.instance is None and _in_mig_mode(handle):
                problem = "The GPU was switched to MIG mode; only its instances can be used."
            memory = _memory(handle)
            utilisation = _utilisation(handle)
            processes = self._processes(handle, uuid, utilisation)
            if memory.of_host:
                # What no process on the GPU has, the host uses for itself.
                processes += (ProcessReading((), None, system=True),)
            self._sensors[uuid] = _sensors(handle)
        except pynvml.NVMLError as error:
            _reraise_if_general(error)
            if error.value in _LOST and device.instance is None:
                self._lost_boards.add(device.board)
            return GpuReading(uuid=uuid, problem=_problem(error, device.board), used=None)
        used: int | None = memory.used
        if device.sharers > 1:  # the figure is that of all sharers together
            known = [process.memory for process in processes if process.memory is not None]
            # One unknown figure makes the sum unknown: a smaller one would promise memory that is
            # in use.
            used = sum(known) if len(known) == len(processes) else None
        return GpuReading(
            uuid=uuid,
            problem=problem,
            used=None if used is None else Bytes(used),
            processes=processes,
            utilisation=utilisation,
        )

    def _processes(
        self, handle: _Handle, uuid: GpuUuid, utilisation: float | None
    ) -> tuple[ProcessReading, ...]:
        """The processes on the device; ``utilisation`` is the sum of their work."""
        merged: dict[int, int | None] = {}
        compute, graphics, mps = (_one_list(handle, ask) for ask in _PROCESS_LISTS)
        draws = graphics.keys() - compute.keys() - mps.keys()
        for listed in (compute, graphics, mps):
            for pid, memory in listed.items():
                earlier = merged.get(pid)
                # One process can be on several lists, each time with all its
                # memory: the larger figure is right, and any is better than none.
                if earlier is None or (memory is not None and memory > earlier):
                    merged[pid] = memory
        work = self._work(handle, uuid, merged, utilisation)
        return tuple(
            ProcessReading(
                # The process is not visible from our pid namespace, or already gone. We cannot name
                # it, but its memory is taken all the same.
                lineage=lineage(pid, self._boot_id) or (ProcessId(self._boot_id, pid, 0),),
                memory=None if memory is None else Bytes(memory),
                utilisation=work.get(pid),
                # Pid 0 is everybody whom we cannot name, people in containers among them: never the
                # host's own.
                system=pid > 0 and self._system.has(pid, draws=pid in draws),
            )
            for pid, memory in sorted(merged.items())
        )

    def _work(
        self, handle: _Handle, uuid: GpuUuid, pids: Collection[int], whole: float | None
    ) -> dict[int, float]:
        """Utilisation (0-1) since the last reading by pid; a missing pid is unknown."""
        since = self._sampled.get(uuid)
        samples = _samples(handle, since or 0)
        if samples is None:
            # The device's own figure is a process's figure only if no other process is there:
            # drawing would count as computing.
            self._sampled.pop(uuid, None)
            return dict.fromkeys(pids, whole) if whole is not None and len(pids) == 1 else {}
        self._sampled[uuid] = max([since or 0, *(stamp for _, stamp, _ in samples)])
        if since is None:
            return {}  # the time of these samples is unknown
        shares: dict[int, list[float]] = {pid: [] for pid in pids if pid}
        for pid, _, share in samples:
            if pid in shares:
                shares[pid].append(share)
        # Samples without any work are not given.
        return {pid: sum(some) / max(1, len(some)) for pid, some in shares.items()}


# The newest call first; a driver that lacks it gets the one before.
_PROCESS_LISTS: tuple[tuple[Callable[[_Handle], Any], ...], ...] = (
    (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
    ),
)

_TEMPERATURES: tuple[Callable[..., Any], ...] = tuple(
    getattr(pynvml, name)
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    if hasattr(pynvml, name)  # one is newer than some pynvml, the other announced to go
)


def _one_list(
    handle: _Handle, versions: tuple[Callable[[_Handle], Any], ...]
) -> dict[int, int | None]:
    """Memory in bytes by pid, ``None`` where it is unknown.

    Entries with one pid on *one* list are different memory and add up: so it
    is for pid 0, by which a driver names every process of another namespace.
    """
    for version in versions:
        entries = _if_known(_with_room, version, handle)
        if entries is None:
            continue
        memory: dict[int, int | None] = {}
        for entry in entries:
            pid, size = int(entry.pid), entry.usedGpuMemory
            before = memory.get(pid, 0)
            memory[pid] = None if size is None or before is None else before + int(size)
        return memory
    return {}


def _with_room(ask: Callable[..., Any], *about: Any) -> Any:
    """An answer; asked again where more came between "how many?" and "which?"."""
    for _ in range(_PROCESS_LIST_TRIES - 1):
        with contextlib.suppress(pynvml.NVMLError_InsufficientSize):
            return ask(*about)
    return ask(*about)


def _samples(handle: _Handle, since: int) -> list[tuple[int, int, float]] | None:
    """Samples of work newer than the stamp ``since``: pid, stamp (microseconds), share (0-1).

    ``None`` if the driver does not tell. Some drivers fill their buffer with entries that were
    never written or are older than what was asked for: they are left out.
    """
    try:
        entries = _if_known(_with_room, pynvml.nvmlDeviceGetProcessUtilization, handle, since)
    except pynvml.NVMLError as error:
        # Nobody worked. pynvml raises "success" where a driver has room for none to tell.
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
            return []
        if error.value == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            return None
        raise
    if entries is None:
        return None
    return [
        (int(entry.pid), int(entry.timeStamp), int(entry.smUtil) / 100)
        for entry in entries
        if entry.pid and int(entry.timeStamp) > since and int(entry.smUtil) <= 100
    ]


def _describe(handle: _Handle, uuid: GpuUuid, number: int, sharers: int = 1) -> Gpu:
    return Gpu(
        uuid=uuid,
        index=number,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory=Bytes(_memory(handle).capacity // sharers),
    )


def _unreadable(position: int, place: int, error: pynvml.NVMLError) -> LeftOut:
    """A MIG instance that cannot be read; others of its board can."""
    _reraise_if_general(error)
    return LeftOut(position, f"Its MIG instance {place}: {_problem(error, str(position))}")


def _if_known(ask: Callable[..., Any], *about: Any) -> Any:
    """An answer; ``None`` if this driver or this device does not know the question."""
    try:
        return ask(*about)
    except pynvml.NVMLError as error:
        if error.value in _NO_ANSWER:
            return None
        raise


def _memory(handle: _Handle) -> _Memory:
    info = _if_known(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if info is not None:
        return _Memory(capacity=int(info.total) - int(info.reserved), used=int(info.used))
    try:
        # An older driver counts its reserve as used and does not tell it apart.
        info = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as none:
        if none.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        # The GPU has no memory of its own (GB10, in DGX Spark): it uses the host's.
        total, available = hostmemory.whole(hostmemory.look(groups=False))
        return _Memory(capacity=total, used=total - available, of_host=True)
    return _Memory(capacity=int(info.total), used=int(info.used))


def _utilisation(handle: _Handle) -> float | None:
    rates = _if_known(pynvml.nvmlDeviceGetUtilizationRates, handle)  # of MIG devices unknown
    return None if rates is None else int(rates.gpu) / 100


def _sensors(handle: _Handle) -> Sensors:
    """A MIG instance, for example, has none."""
    warm = _told(_TEMPERATURES, handle, pynvml.NVML_TEMPERATURE_GPU)
    milliwatt = _told((pynvml.nvmlDeviceGetPowerUsage,), handle)
    return Sensors(
        temperature=None if warm is None else float(warm),
        power=None if milliwatt is None else milliwatt / 1000,
    )


def _build(handle: _Handle) -> Build:
    found = _told((pynvml.nvmlDeviceGetCudaComputeCapability,), handle)
    capability = None if found is None else float(f"{found[0]}.{found[1]}")
    return Build(capability, _told((pynvml.nvmlDeviceGetNumGpuCores,), handle))


def _told(versions: tuple[Callable[..., Any], ...], *about: Any) -> Any:
    for version in versions:
        try:
            return version(*about)
        except pynvml.NVMLError as error:
            _reraise_if_general(error)  # other trouble with the GPU is its reading's to tell
    return None


def _compute_mode(handle: _Handle) -> int | None:
    """``None`` where it has none, as a MIG device."""
    mode: int | None = _told((pynvml.nvmlDeviceGetComputeMode,), handle)
    return mode


def _in_mig_mode(handle: _Handle) -> bool:
    mode = _if_known(pynvml.nvmlDeviceGetMigMode, handle)  # now, and after a reboot
    return mode is not None and bool(mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def _recovery_action(handle: _Handle) -> int | None:
    """0 if none is needed, ``None`` if the driver does not say."""
    values = _if_known(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION_FIELD])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _reraise_if_general(error: pynvml.NVMLError) -> None:
    if error.value in _NO_LIBRARY:
        raise error


_NOT_THERE = "The GPU is not there any more: the driver does not list it."
#: For a person, by NVML's answer for one GPU.
_PROBLEMS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "The GPU has fallen off the bus: the driver cannot reach it any more."
        " Usually only a reboot of this host brings it back."
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        "The GPU needs a reset before it can be used again: end what uses it,"
        " then nvidia-smi --gpu-reset -i {board}."
    ),
    pynvml.NVML_ERROR_NOT_FOUND: _NOT_THERE,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: _NOT_THERE,
    _GPU_NOT_FOUND: _NOT_THERE,
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "The node manager may not use the GPU: give its user access to /dev/nvidia*,"
        " or pass the GPU into its container."
    ),
}

_OR_SIMULATE = " (or start with --simulate 2x24GiB for simulated GPUs)."
#: The same by its answer for the library as a whole.
_SENTENCES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "NVIDIA's management library (libnvidia-ml.so.1) is not on this host: install the"
        f" NVIDIA driver, or pass the GPUs into this container{_OR_SIMULATE}"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "The NVIDIA driver is not loaded: try nvidia-smi, then modprobe nvidia or a"
        f" reboot{_OR_SIMULATE}"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA driver was updated while it ran: its library and its kernel module"
        " have different versions. Reboot this host, or load the module again."
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "The node manager may not talk to the NVIDIA driver: give its user access to"
        f" /dev/nvidia*, or pass the GPUs into its container{_OR_SIMULATE}"
    ),
}


def _problem(error: pynvml.NVMLError, board: str) -> str:
    """The sentence for a person about NVML's answer for one GPU."""
    said = _PROBLEMS.get(error.value, f"The driver cannot read the GPU ({error}).")
    return said.replace("{board}", board)


def _sentence(error: pynvml.NVMLError) -> str:
    """The sentence for a person about NVML's answer for the library, and what to do."""
    other = f"The NVIDIA driver does not answer ({error}): see nvidia-smi and the kernel's log."
    return _SENTENCES.get(error.value, other)
