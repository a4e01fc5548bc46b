"""The process that has the driver loaded. It may hang in any call, and is killed then.

Commands come on standard input, answers go to standard output, one JSON object a line. Nothing is
decided here. If its supervisor dies, the worker ends by itself: at the end of its input, or by its
own alarm if a call hangs.

It can also start a process tree, and then is an ancestor of all of it: where Yama lets only
ancestors trace a process, no other worker can act on one that does not let it in.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import math
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from jupyter_gpushare.protocol.processes import (
    adopt_orphans,
    start_time,
    stat_of,
    tree_of,
    user_ids,
)

from .starting import leave, shell_code

#: Seconds after a call's deadline after which a worker ends itself, if its supervisor did not.
_ALARM_GRACE: Final = 5
_STATES: Final = ("running", "locked", "checkpointed", "failed", "checkpointing", "restoring")
_MIGRATION_BINDINGS: Final = "CUcheckpointGpuPair"
#: Seconds between two looks at a child that somebody else waits for.
_LOOK: Final = 0.02
#: What every process maps that uses CUDA, or has loaded it.
_LIBRARY: Final = b"libcuda.so"


class CannotLoad(Exception):
    """The driver cannot be used at all; ``cause`` is one of the protocol's."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class Driver:
    """The real driver through cuda-bindings, initialised once."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver  # type: ignore[import-untyped]
        except ImportError as error:
            raise CannotLoad("no_bindings", str(error)) from error
        if not hasattr(driver, "cuCheckpointProcessGetState"):
            raise CannotLoad("no_bindings", f"cuda-bindings {_bindings()} is too old")
        self._driver: Any = driver
        try:
            (result,) = driver.cuInit(0)
        except Exception as error:  # without a library the bindings raise exceptions of their own
            raise CannotLoad("no_driver", str(error)) from error
        if int(result) != 0:
            raise CannotLoad("no_driver", f"cuInit said {result.name}")

    def state(self, pid: int) -> dict[str, Any]:
        result, state = self._driver.cuCheckpointProcessGetState(pid)
        answer = _result(result)
        if not answer["code"]:
            number = int(state)
            if number < len(_STATES):
                answer["state"] = _STATES[number]
            else:
                answer |= {"code": 999, "error": f"an unknown state {number}"}
        return answer

    def lock(self, pid: int, timeout: float) -> dict[str, Any]:
        arguments = self._driver.CUcheckpointLockArgs()
        # 0 would mean: wait for ever.
        arguments.timeoutMs = max(1, min(2**31, math.ceil(timeout * 1000)))
        return _result(*self._driver.cuCheckpointProcessLock(pid, arguments))

    def checkpoint(self, pid: int) -> dict[str, Any]:
        return _result(*self._driver.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int, gpu_map: dict[str, str]) -> dict[str, Any]:
        if not gpu_map:
            return _result(*self._driver.cuCheckpointProcessRestore(pid, None))
        if not hasattr(self._driver, _MIGRATION_BINDINGS):
            return {"code": 801, "error": "cuda-bindings before 13.0.3 cannot change GPUs"}
        try:
            pairs = permutation(gpu_map, [gpu["uuid"] for gpu in self._gpus()])
        except ValueError as error:
            return {"code": 1, "error": str(error)}
        arguments = self._driver.CUcheckpointRestoreArgs()
        arguments.gpuPairs = [self._pair(old, new) for old, new in pairs.items()]
        arguments.gpuPairsCount = len(pairs)
        return _result(*self._driver.cuCheckpointProcessRestore(pid, arguments))

    def unlock(self, pid: int) -> dict[str, Any]:
        return _result(*self._driver.cuCheckpointProcessUnlock(pid, None))

    def probe(self) -> dict[str, Any]:
        result, version = self._driver.cuDriverGetVersion()
        answer = _result(result)
        answer["bindings"] = _bindings()
        answer["cuda"] = int(version) if not answer["code"] else None
        answer["pairs"] = hasattr(self._driver, _MIGRATION_BINDINGS)
        answer["gpus"] = self._gpus()
        answer["driver"] = _ask_nvml(answer["gpus"])
        return answer

    def _gpus(self) -> list[dict[str, Any]]:
        found = []
        # Bindings 12 have the first version under the plain name, bindings 13 the second.
        get_uuid = getattr(self._driver, "cuDeviceGetUuid_v2", self._driver.cuDeviceGetUuid)
        result, count = self._driver.cuDeviceGetCount()
        for position in range(int(count) if int(result) == 0 else 0):
            _, device = self._driver.cuDeviceGet(position)
            result, raw = get_uuid(device)
            if int(result) != 0:
                continue
            _, name = self._driver.cuDeviceGetName(96, device)
            text = bytes(name).split(b"\0")[0].decode("utf-8", "replace")
            found.append({"uuid": f"GPU-{UUID(bytes=bytes(raw.bytes))}", "name": text})
        return found

    def _pair(self, old: str, new: str) -> Any:
        pair = self._driver.CUcheckpointGpuPair()
        pair.oldUuid = self._uuid(old)
        pair.newUuid = self._uuid(new)
        return pair

    def _uuid(self, text: str) -> Any:
        found = self._driver.CUuuid()
        plain = UUID(text.partition("-")[2])
        ctypes.memmove(int(found.getPtr()), plain.bytes, 16)  # its field cannot be set
        return found


def permutation(gpu_map: dict[str, str], gpus: list[str]) -> dict[str, str]:
    """``gpu_map`` made complete: the driver wants every GPU of the host in the list, once.

    A GPU that something moves to gives its own place in exchange. Raises
    :class:`ValueError` for a GPU that is not there.
    """
    for uuid in (*gpu_map, *gpu_map.values()):
        if uuid not in gpus:
            raise ValueError(f"{uuid} is not among the GPUs that the driver shows here")
    full = dict(gpu_map)
    free = [uuid for uuid in gpus if uuid not in gpu_map.values()]
    for uuid in gpus:
        if uuid not in full:
            # The instance's own place if that is free, else the first free one.
            full[uuid] = uuid if uuid in free else next(u for u in free if u in gpu_map)
            free.remove(full[uuid])
    return full


def _ask_nvml(gpus: list[dict[str, Any]]) -> str | None:
    """Note persistence and MIG mode in ``gpus``; the driver's version. NVML may be missing."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        for gpu in gpus:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu["uuid"])
            gpu["persistence"] = _flag(pynvml, "PersistenceMode", handle)
            gpu["mig"] = _flag(pynvml, "MigMode", handle)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


def _flag(pynvml: Any, name: str, handle: Any) -> bool | None:
    try:
        said = getattr(pynvml, f"nvmlDeviceGet{name}")(handle)
        return bool(said[0] if isinstance(said, list | tuple) else said)  # now, and after a reboot
    except pynvml.NVMLError as error:
        # A GPU without MIG answers "not supported"; after any other error we do not know.
        return False if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED else None


def _bindings() -> str:
    try:
        return importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def _result(result: Any) -> dict[str, Any]:
    code = int(result)
    return {"code": code, "error": None if code == 0 else str(getattr(result, "name", code))}


def _act(driver: Driver, command: dict[str, Any]) -> dict[str, Any]:
    step = command["step"]
    if step == "probe":
        return driver.probe()
    pid = int(command["pid"])
    # The last moment at which it can be noticed that the pid has gone to somebody else.
    if start_time(pid) != command["start_time"]:
        return {"gone": True}
    if step == "lock":
        answer = driver.lock(pid, float(command["lock_timeout"]))
    elif step == "restore":
        answer = driver.restore(pid, command["gpu_map"])
    else:
        calls = {"state": driver.state, "checkpoint": driver.checkpoint, "unlock": driver.unlock}
        answer = calls[step](pid)
    if answer["code"] and start_time(pid) != command["start_time"]:
        answer["gone"] = True
    return answer


# -- process trees -----------------------------------------------------------------------------


def listed(roots: list[list[int]], helper: int | None) -> list[list[int]]:
    """Pid and start time of each process of a tree that has loaded CUDA, and is of our user.

    ``helper``: what this helper's process has for descendants belongs to the tree, too, but for
    helpers and their workers.
    """
    tops = [pid for pid, started in roots if start_time(pid) == started]
    family = tree_of(tops if helper is None else [*tops, helper])
    ours = [one for one in family if user_ids(one) == {os.getuid()} and _has_cuda(one)]
    return [[pid, started] for pid in ours if (started := start_time(pid)) is not None]


def _has_cuda(pid: int) -> bool:
    """Whether it has loaded CUDA, and is no worker of a helper."""
    worker = f"{__package__}.worker".encode()
    # It may have ended, or may not be ours to look at.
    with (
        suppress(OSError),
        open(f"/proc/{pid}/cmdline", "rb") as words,
        open(f"/proc/{pid}/maps", "rb") as maps,
    ):
        is_worker = worker in words.read().split(b"\0")
        return not is_worker and any(_LIBRARY in line for line in maps)
    return False


def start(command: dict[str, Any]) -> dict[str, Any]:
    """Start a tree. Its root's end is said on the descriptor ``told``."""
    streams, told = command["streams"], command["told"]
    actions: list[Any] = [(os.POSIX_SPAWN_DUP2, old, new) for new, old in enumerate(streams)]
    actions += [(os.POSIX_SPAWN_CLOSE, old) for old in (*streams, told)]
    adopt_orphans()
    try:
        root = os.posix_spawnp(
            command["command"][0],
            command["command"],
            command["environ"],
            file_actions=actions,
            setsid=command["session"],
            setsigmask=(),
            setsigdef=command["signals"],
        )
    except OSError as error:
        return {"code": error.errno, "error": error.strerror}
    finally:
        for descriptor in streams:
            os.close(descriptor)
    started = int(stat_of(root)[19])  # also of one that has ended: nobody has waited for it yet
    threading.Thread(target=_bury, args=(root, told), daemon=True).start()
    leave(1, 2)
    return {"code": 0, "error": None, "pid": root, "start_time": started}


def _bury(root: int, told: int) -> None:
    """Wait for the children of this process, which are the tree's root and its orphans."""
    with suppress(ChildProcessError):  # there is none any more, and so nobody who could leave one
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None:
            if ended.si_pid == root:
                os.write(told, shell_code(ended))
            if _is_our_own(ended.si_pid):
                time.sleep(_LOOK)
            else:
                os.waitpid(ended.si_pid, 0)


def _is_our_own(pid: int) -> bool:
    """Whether the driver or its bindings have started it here, who wait for it themselves."""
    with suppress(ProcessLookupError):  # they have done so
        return os.getsid(pid) == os.getpid()
    return True


def _answer(driver: Driver | None, command: dict[str, Any]) -> tuple[Driver | None, dict[str, Any]]:
    try:
        if command["step"] == "start":
            return driver, start(command)
        if command["step"] == "list":
            processes = listed(command["roots"], command["helper"])
            return driver, {"code": 0, "error": None, "processes": processes}
        driver = driver or Driver()
        if command["step"] == "load":
            return driver, {"code": 0, "error": None}
        return driver, _act(driver, command)
    except CannotLoad as error:
        return driver, {"cannot_load": error.cause, "error": str(error), "bindings": _bindings()}
    except Exception as error:  # noqa: BLE001 - the bindings raise many kinds; all go to a person
        text = f"{type(error).__name__}: {error}"
        # The bindings raise this if the driver's library lacks a function.
        missing = isinstance(error, RuntimeError) and "not found" in str(error)
        return driver, {"code": 801 if missing else 999, "error": text}


def main() -> int:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Libraries print to standard output as they like; our answers must not be mixed with that.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    driver: Driver | None = None
    for line in sys.stdin.buffer:
        command = json.loads(line)
        # The default action of SIGALRM ends even a process whose only thread hangs in C.
        signal.alarm(math.ceil(command["seconds"]) + _ALARM_GRACE)
        began = time.monotonic()
        driver, answer = _answer(driver, command)
        signal.alarm(0)
        answer["seconds"] = time.monotonic() - began
        try:
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()
        except BrokenPipeError:
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
