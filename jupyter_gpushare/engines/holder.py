"""A holder: it runs where an engine gave GPUs, with a node manager for these, until they go.

It joins the pool by the token in its letter. Before the end it takes its host out of service, so
that people are told, what idles leaves the GPUs, and programs that can save their state stop. What
still computes shortly before the end loses its lease with the reason. All of this works without the
pool, which may be away.

Slurm sends SIGTERM to every process of a job, not only to the first. The node manager must live
until the GPUs are empty: so it is started with SIGTERM blocked, and ended by SIGINT.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

from ..console.node import Node, NodeRefused, NodeSilent, whole_status
from ..console.verb import Refused, WithCommand, flag, number, option
from ..daemon.membership import POOL_DIRECTORY
from ..pool.joinverb import JoinApp
from ..protocol.errors import Reason
from ..protocol.messages import LONGEST_SINCE, Method
from ..protocol.privateplace import UnsafePlace
from ..protocol.times import parse_duration
from . import letters

#: By which people's servers come to be processes of the job.
DOOR: Final = "jupyter_gpushare.starts.door"
#: Seconds between two looks: while nothing happens, and while it ends.
_LOOK: Final = 2.0
_LOOK_AT_END: Final = 0.5
#: Seconds between two questions when it ends.
_ASK: Final = 30.0
#: Seconds before the end in which leases are ended, or a third of the time that there is.
_LAST: Final = 60.0
_NOTICE: Final = "--Policy.notify_before="
#: Seconds for which people are warned before an idle kernel is parked, at most.
_WARNS: Final = 30.0
#: Seconds before the end in which all must be out, and in which a node manager has to end.
_MARGIN: Final = 5.0
_ENDS: Final = 3.0
_CUT_SHORT: Final = "was cancelled or preempted, or its time is over"


class HolderVerb(WithCommand, ABC):
    """What an engine starts where it gives GPUs; each engine says which piece it is."""

    arguments = "[-- OPTIONS OF THE NODE MANAGER]"
    #: What ends, in sentences to people.
    what = ""

    folder = option(".", "The folder of the letters.")
    sockets = option("", "The folder of the sockets. Left out: only this user may connect.")
    door = flag("People's servers start here, beside the node manager. Only root can.")
    port = option(0, "The node manager's port for the pool. 0: any.", read=number(0, 65535))
    notice = option(
        600.0, "How long before the end nothing new begins and people are told.", parse_duration
    )
    grace = option(30.0, "Seconds from SIGTERM until SIGKILL.", read=number(1.0, 86400.0))

    @abstractmethod
    def piece(self) -> str:
        """The engine's name for it."""

    @abstractmethod
    def ends(self) -> float | None:
        """When it ends (Unix time), or ``None`` where the engine does not say now."""

    def run(self, arguments: list[str]) -> int:
        self._told_to_end = 0.0
        signal.signal(signal.SIGTERM, self._sigterm)
        letter = self._letter(Path(self.folder), self.piece())
        if letter is None:
            return 0
        with tempfile.TemporaryDirectory(prefix="gpushare-") as own:
            return self._hold(Path(own), letter, arguments)

    def _sigterm(self, *_: object) -> None:
        self._told_to_end = self._told_to_end or time.time()

    def _letter(self, folder: Path, piece: str) -> dict[str, Any] | None:
        """The letter; ``None`` where it is to end before one came."""
        print(f"{piece} waits to be let into the pool.", flush=True)
        while not self._told_to_end:
            try:
                letter = letters.take(folder, piece)
            except (OSError, UnsafePlace, ValueError) as error:
                raise Refused(f"The token in {folder} cannot be used: {error}.") from error
            if letter is not None:
                return letter
            # The folder may be on another host's disk, which tells nobody of a new file.
            time.sleep(_LOOK_AT_END)
        return None

    # -- hold --------------------------------------------------------------------------------------

    def _hold(self, own: Path, letter: dict[str, Any], arguments: list[str]) -> int:
        name, pool = str(letter["name"]), own / POOL_DIRECTORY
        place = self._socket(name)
        with socket.socket() as probe:
            probe.bind(("", self.port))
            port = probe.getsockname()[1]
        said = {"as_name": name, "port": port, "directory": str(pool)}
        while not self._joins(str(letter["token"]), said):
            if self._told_to_end:
                return 0
            # A pool tells nobody when it is back. The token's end bounds how long we look.
            time.sleep(_LOOK)
        line = [sys.executable, "-m", "jupyter_gpushare.cli", "node", f"--socket={place}"]
        line += [f"--ledger={own / 'ledger.sqlite'}", *(["--shared"] if self.sockets else ())]
        line += [f"--NodeManagerApp.pool_directory={pool}"]
        line += [f"--NodeManagerApp.pool_listen=0.0.0.0:{port}"]
        # What idles must be out within the grace, and its people are warned before it is asked.
        if not any(one.startswith(_NOTICE) for one in arguments):
            line.append(f"{_NOTICE}{min(_WARNS, self.grace / 3):g}")
        line += arguments
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        node = subprocess.Popen(line)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        print(f"{name} joined the pool; its socket is {place}.", flush=True)
        try:
            if self.door:
                # It ends with the job, as all does that it started.
                door = place.removesuffix("sock") + "door"
                subprocess.Popen([sys.executable, "-m", DOOR, "open", door])
            return self._until_the_end(node, place)
        finally:
            node.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(_ENDS)
            node.kill()
            node.wait()

    def _socket(self, name: str) -> str:
        """Where it listens. Raises `Refused` where others could put a socket of theirs."""
        folder = Path(self.sockets or self.folder)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        there = folder.lstat()
        if there.st_uid not in (0, os.geteuid()) or there.st_mode & 0o022:
            raise Refused(f"{folder} must be a folder of yours into which only you may write.")
        return str(folder / f"{name}.sock")

    def _joins(self, token: str, said: dict[str, Any]) -> bool:
        """Join as the verb does, unless the pool is away. Raises `Refused`."""
        join = JoinApp()
        join.given = {"json": True, **said}
        try:
            join.run([token])
        except Refused as error:
            if error.reason == Reason.UNAVAILABLE.value:
                print(error, flush=True)
                return False  # until the token has expired
            raise Refused(
                f"{error} If nobody used it here, somebody else has: look who joined as "
                f"{said['as_name']}."
            ) from error
        return True

    # -- the end -----------------------------------------------------------------------------------

    def _until_the_end(self, node: subprocess.Popen[bytes], place: str) -> int:
        """Hold the GPUs until their time is over; 1 if something was left there then."""
        ends: float | None = None
        asked_at, drained, left = 0.0, "", [""]
        while node.poll() is None:
            now, notice = time.time(), self.notice
            if self._told_to_end:
                # The engine kills after that, whatever it said of the end before.
                ends, notice = self._told_to_end + self.grace, self.grace
            # An administrator may have given the job more time, and each question costs the
            # engine's server.
            elif now >= asked_at + _ASK:
                ends, asked_at = self.ends() or ends, now
            seconds = float("inf") if ends is None else ends - now - _MARGIN
            # The first look also sees that it would do what we say then.
            with contextlib.suppress(NodeSilent), self._at(place) as there:
                if seconds <= notice:
                    why = f"{self.what} ends at {time.strftime('%H:%M', time.localtime(ends))}"
                    why = f"{self.what} {_CUT_SHORT}" if self._told_to_end else why
                    last = min(_LAST, notice / 3)
                    if why != drained:
                        within = max(0.0, seconds - last)
                        there.call(Method.NODE_DRAIN, reason=why, within=within)
                        print(f"Nothing new begins: {why}.", flush=True)
                    drained = why
                    left = _left(there, why if seconds <= last else "")
            if not left or seconds <= 0:
                self._keep_usage(place)
                print(*(f"{one} still has memory there." for one in left), sep="\n", flush=True)
                return 1 if left else 0
            # Until SIGTERM comes, which ends no sleep, and until memory is measured as gone.
            time.sleep(_LOOK_AT_END if seconds <= notice + _LOOK else _LOOK)
        raise Refused("The node manager has ended; what it said is above.")

    def _keep_usage(self, place: str) -> None:
        """Whose GPU-hours these were: the node manager's ledger ends with the job."""
        with contextlib.suppress(NodeSilent), self._at(place) as there:
            told = there.call(Method.USAGE, since=LONGEST_SINCE)
            kept = Path(self.folder, f"{self.piece().split()[-1]}.usage.json")
            kept.write_text(json.dumps(told), encoding="utf-8")

    def _at(self, place: str) -> Node:
        """The node manager. Raises `NodeSilent`, and `Refused` where we may not command it."""
        with contextlib.suppress(NodeRefused):
            node = Node(place, None)
            if node.hello["admin"]:
                return node
        raise Refused(
            f"The node manager does not take {self.command()} for an administrator, so GPUs could "
            "not be emptied in time. With JupyterHub set c.Hub.host_admins = True."
        )


def _left(node: Node, why: str) -> list[str]:
    """Whose memory is still on the GPUs, as measured last; with a ``why`` held leases end."""
    left = []
    for lease in whole_status(node)["leases"]:
        if lease["phase"] == "held" and why:
            with contextlib.suppress(NodeRefused):  # it has ended a moment ago
                node.call(Method.LEASE_REVOKE, lease=lease["id"], reason=why)
        if any(gpu["there_since"] is not None for gpu in lease["gpus"]):
            left.append(f"{lease['environment']}: {lease['name']}")
    return left
