"""The pretend GPUs of a storm: who really has memory on them, and what goes wrong with the driver.

The harness looks at the driver's own books (a file for each process, replaced at each change),
not at what anybody says. Memory is *certainly* on a GPU between two looks that found the same
file; whatever may have been between two different ones is not claimed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare.protocol.processes import start_time
from support.cuda import Call, Cuda, CudaWorld, children_of, end_helper, helper_pid

from .observed import Log, Saw, boot
from .stage import Player

LOCKED, CHECKPOINTED = 1, 2
#: How often each call has a mishap.
_CALLS = {Call.STATE: 1, Call.LOCK: 2, Call.CHECKPOINT: 4, Call.UNLOCK: 1}
_WHILE_PARKED = {Call.STATE: 1, Call.CHECKPOINT: 3, Call.RESTORE: 5, Call.UNLOCK: 1}
_OF_LOCKS = {Call.LOCK: 2, Call.UNLOCK: 3}  # where nobody is parked
NEXT_CALL = 5.0  # seconds in which somebody must come to a call that hangs
HANG = 3.0  # seconds for which a checkpoint call hangs, or the helper is stopped, at most


@dataclass(slots=True)
class _Look:
    """A process's books, as they were from one look to another."""

    version: tuple[int, int]
    state: int
    stuck: bool
    memory: dict[str, int]
    since: float
    until: float


class Devices:
    """The storm's pretend GPUs. ``after`` runs an action so many seconds later."""

    def __init__(
        self,
        world: CudaWorld,
        rng: random.Random,
        harness: Log,
        after: Callable[[float, Callable[[], None]], None],
        only: Call | None = None,
        *,
        locks: bool = False,
    ) -> None:
        """``only``: no other checkpoint call goes wrong. ``locks``: processes are only locked."""
        self.world = world
        self.runtime = Path(tempfile.mkdtemp(prefix="gpushare-"))
        self._rng = rng
        self._harness = harness
        self._after = after
        self._books = world.state.with_name(world.state.name + ".procs")
        self._looks: dict[str, _Look] = {}  # by client
        self._stuck: set[str] = set()
        self._only = only
        self._locks = locks
        self._ill: Call | None = None
        self._ill_since = 0.0

    # -- what is there ---------------------------------------------------------------------------

    def look(self, players: Iterable[Player]) -> None:
        """Look at the books of those who live, and write down what was found before."""
        here = set()
        for player in players:
            now = self._read(player)
            if now is None:
                continue
            here.add(player.name)
            before = self._looks.get(player.name)
            if before is not None and before.version == now.version:
                before.until = now.until
                continue
            if before is not None:
                self._write(player.name, before)
            self._looks[player.name] = now
            if now.stuck and player.name not in self._stuck:
                self._stuck.add(player.name)
                self._harness.note(Saw.STUCK, client=player.name)
        for name in [name for name in self._looks if name not in here]:
            self._write(name, self._looks.pop(name))

    def _read(self, player: Player) -> _Look | None:
        began = boot()
        # By its start, too: the books of a dead process with the same number stay there.
        for path in self._books.glob(f"{player.pid}.{start_time(player.pid)}"):
            with contextlib.suppress(OSError, ValueError, IndexError), path.open("rb") as file:
                stat = os.fstat(file.fileno())
                words = [line.split() for line in file.read().decode("ascii").splitlines()]
                if not player.alive:  # the file outlives its process
                    return None
                values = {word[0]: word[1:] for word in words}
                held = {w[1]: int(w[2]) + int(w[3]) for w in words if w[0] == "mem"}
                state, stuck = int(values["state"][0]), values["stuck"][0] == "1"
                version = (stat.st_ino, stat.st_mtime_ns)
                return _Look(version, state, stuck, held, boot(), began)
        return None

    def _write(self, name: str, look: _Look) -> None:
        if look.state == CHECKPOINTED or look.until <= look.since:
            return
        if look.state == LOCKED:
            self._harness.note(Saw.LOCKED, client=name, begin=look.since, end=look.until)
        for gpu, memory in look.memory.items():
            self._harness.note(
                Saw.RESIDENT,
                client=name,
                gpu=gpu,
                memory=memory,
                begin=look.since,
                end=look.until,
            )

    def parked_gpus(self) -> list[str]:
        """GPUs to which somebody who is checkpointed wants to come back."""
        looks = self._looks.values()
        return sorted({gpu for look in looks if look.state == CHECKPOINTED for gpu in look.memory})

    def locked(self) -> set[str]:
        """Who was locked at the last look."""
        return {name for name, look in self._looks.items() if look.state == LOCKED}

    def moving(self) -> set[str]:
        """Whose memory was on its way, or elsewhere, at the last look."""
        states = (LOCKED, CHECKPOINTED)
        return {name for name, look in self._looks.items() if look.state in states}

    # -- faults ----------------------------------------------------------------------------------

    @property
    def _place(self) -> Path | None:
        locks = (self.runtime / "jupyter-gpushare").glob("*.sock.lock")
        return next((path.with_suffix("") for path in locks), None)

    def _family(self) -> list[int]:
        """The helper, its workers, and its heir."""
        pid = None if self._place is None else helper_pid(self._place)
        if pid is None:
            return []
        with contextlib.suppress(OSError):
            return [pid, *children_of(pid)]
        return [pid]

    def _helpers(self) -> list[int]:
        """Without the heir: where that dies, too, nobody is left to unlock anybody."""
        return [pid for pid in self._family() if not _is_heir(pid)]

    def kill_helper(self) -> bool:
        pids = self._helpers()
        if not pids:
            return False
        for pid in self._rng.choice((pids, pids[:1], pids[-1:])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._harness.note(Saw.HELPER)
        return True

    def stop_helper(self) -> bool:
        pids, since = self._helpers(), boot()
        if not pids:
            return False
        pid = self._rng.choice(pids)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)
            self._harness.note(Saw.HELPER, since)

        self._after(self._rng.uniform(0.1, HANG), go_on)
        return True

    def hang(self) -> bool:
        """The next checkpoint call does not return for some time, beyond its deadline or not."""
        call, end = self._choose(), boot() + NEXT_CALL
        if call is None:
            return False
        self.world.hang(call, after=self._rng.random() < 0.5)
        seconds = self._rng.uniform(0.1, HANG)

        def look() -> None:
            is_hit = self.world.is_in(call)
            if is_hit or boot() > end:
                self._after(seconds if is_hit else 0.0, lambda: self._heal(call))
            else:
                self._after(0.02, look)

        look()
        return True

    def fail(self) -> bool:
        codes = (Cuda.UNKNOWN, Cuda.OPERATING_SYSTEM, Cuda.OUT_OF_MEMORY)
        return self._mishap(HANG, lambda call: self.world.fault(call, self._rng.choice(codes)))

    def fail_restore(self) -> bool:
        """Nobody comes back to a GPU for some time."""
        if self._ill is not None:
            return False
        self._ill, self._ill_since = Call.RESTORE, boot()
        self.world.fault(Call.RESTORE, self._rng.choice((Cuda.UNKNOWN, Cuda.OPERATING_SYSTEM)))
        self._after(self._rng.uniform(0.1, HANG), lambda: self._heal(Call.RESTORE))
        return True

    def give_up(self) -> bool:
        """The driver gives a process up, for good: what it had is lost, and it must be told."""

        def give_up(call: Call) -> None:
            self._harness.note(Saw.DRIVER_GIVES_UP)
            self.world.break_target(call)

        return self._mishap(0.3, give_up)

    def _choose(self) -> Call | None:
        """Whose turn it is to go wrong; ``None``: another one goes wrong already."""
        if self._ill is not None:
            return None
        calls = _WHILE_PARKED if self.parked_gpus() else _OF_LOCKS if self._locks else _CALLS
        if self._only is not None:
            calls = {self._only: 1}
        self._ill_since = boot()
        (self._ill,) = self._rng.choices(list(calls), list(calls.values()))
        return self._ill

    def _heal(self, call: Call) -> None:
        self._ill = None
        self.world.heal(call)
        self._harness.note(Saw.HELPER, self._ill_since)

    def _mishap(self, longest: float, begin: Callable[[Call], None]) -> bool:
        call = self._choose()
        if call is None:
            return False
        begin(call)
        self._after(self._rng.uniform(0.1, longest), lambda: self._heal(call))
        return True

    def close(self) -> None:
        """End the helper, and write down the last looks."""
        self.look([])
        self.world.heal()
        for pid in self._family()[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._place is not None:
            end_helper(self._place)
        shutil.rmtree(self.runtime, ignore_errors=True)


def _is_heir(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"--heir" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False
