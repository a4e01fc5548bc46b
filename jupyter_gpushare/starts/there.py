"""Runs on a host of the pool: starts programs there, looks after them, signals them.

A line of its standard input is one call, a line of its standard output is the answer. Everything
that must stay private, an environment with tokens above all, comes over the pipe: anybody on the
host may read a command line. A process is named by its id, its start time and the host's boot id,
so that no other process is ever signalled.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from ..protocol.processes import start_time

#: Seconds that an attached process has to end after SIGTERM, when whoever attached it is gone.
GRACE: Final = 5.0


class There:
    """What was started over one connection."""

    def __init__(self) -> None:
        #: By their process ids: these end with the connection.
        self._attached: dict[int, subprocess.Popen[bytes]] = {}
        self._folders: list[str] = []
        self._calls: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
            "port": self.port,
            "start": self.start,
            "poll": self.poll,
            "signal": self.signal,
        }

    def serve(self, calls: TextIO, answers: TextIO) -> None:
        """dict[str, Any] until the input ends."""
        try:
            for line in calls:
                call = json.loads(line)
                try:
                    answer = self._calls[call.pop("do")](**call)
                except OSError as error:
                    answer = {"error": f"{error.filename or call.get('command')}: {error.strerror}"}
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
        finally:
            self._end()

    def port(self, address: str) -> dict[str, Any]:
        """A free port at ``address``."""
        with socket.create_server((address, 0)) as probe:
            return {"port": probe.getsockname()[1]}

    def start(
        self,
        command: list[str],
        environ: Mapping[str, str],
        cwd: str | None = None,
        output: str | None = None,
        attached: bool = False,
        folder: str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Start ``command``; ``folder`` is made for it alone, with ``files``.

        What it prints goes to ``output``, or is dropped. An ``attached`` one ends with the
        connection; any other outlives it.
        """
        if folder is not None:
            os.mkdir(folder, 0o700)  # fails if anybody made it before
            self._folders.append(folder)
            for name, text in (files or {}).items():
                with open(os.path.join(folder, name), "x", encoding="utf-8") as file:
                    os.fchmod(file.fileno(), 0o600)
                    file.write(text)
        where = os.path.expanduser(output) if output else os.devnull
        if output:
            os.makedirs(os.path.dirname(where) or ".", 0o700, exist_ok=True)
        if cwd is not None and not os.path.isdir(cwd):
            cwd = None  # a server or kernel that starts elsewhere is better than none
        handle = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as told:
            process = subprocess.Popen(
                command,
                env=dict(environ),
                cwd=cwd or os.path.expanduser("~"),
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if attached:
            self._attached[process.pid] = process
        started = start_time(process.pid)
        return {
            "pid": process.pid,
            "started": started if started is not None else 0,
            "boot": _boot_id(),
            "host": socket.gethostname(),
        }

    def poll(self, pid: int, started: int, boot: str) -> dict[str, Any]:
        """Whether it is alive, and else its exit status, if this connection started it."""
        child = self._attached.get(pid)
        if child is not None:
            code = child.poll()
            return {"alive": code is None, "code": code}
        return {"alive": _is(pid, started, boot), "code": None}

    def signal(
        self, pid: int, started: int, boot: str, number: int, group: bool = False
    ) -> dict[str, Any]:
        """Send it a signal, if it is that process still; with ``group`` also to its children."""
        answer = self.poll(pid, started, boot)
        if answer["alive"]:
            try:
                (os.killpg if group else os.kill)(pid, number)
            except ProcessLookupError:
                return {"alive": False, "code": None}
        return answer

    def _end(self) -> None:
        deadline = time.monotonic() + GRACE
        for child in self._attached.values():
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
        for child in self._attached.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        for folder in self._folders:
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def _is(pid: int, started: int, boot: str) -> bool:
    return boot == _boot_id() and start_time(pid) == started


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def main() -> None:
    """Serve standard input. An interrupt at the terminal is not meant for what runs here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    There().serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
