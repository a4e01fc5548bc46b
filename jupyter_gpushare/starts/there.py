"""Runs on a host of the pool: starts programs there, looks after them, signals them.

A line of its standard input is one call, a line of its standard output is the answer. Everything
that must stay private, an environment with tokens above all, comes over the pipe: anybody on the
host may read a command line. A process is named by its id, its start time and the host's boot id,
so that no other process is ever signalled.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from ..protocol.processes import read_boot_id, start_time

#: Seconds that an attached process has to end after SIGTERM, when whoever attached it is gone.
GRACE: Final = 5.0


class There:
    """What was started over one connection."""

    def __init__(self) -> None:
        #: It ends with the connection, and the connection with it.
        self._attached: subprocess.Popen[bytes] | None = None
        self._watched = False
        self._folder: str | None = None
        self._calls: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
            "port": self.port,
            "start": self.start,
            "signal": self.signal,
        }

    def serve(self, calls: TextIO, answers: TextIO) -> None:
        """Answer until the input ends; a ``quiet`` call has no answer."""
        try:
            for line in calls:
                call = json.loads(line)
                quiet = call.pop("quiet", False)
                try:
                    answer = self._calls[call.pop("do")](**call)
                except OSError as error:
                    answer = {"error": f"{error.filename or call.get('command')}: {error.strerror}"}
                if not quiet:
                    answers.write(json.dumps(answer) + "\n")
                    answers.flush()
                if self._attached is not None and not self._watched:
                    self._watched = True
                    threading.Thread(target=self._follow, daemon=True).start()
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

        What it prints goes to ``output``, or is dropped. An ``attached`` one, of which there may
        be one, ends with the connection, which then has its exit status. Any other outlives it.
        """
        if folder is not None:
            os.mkdir(folder, 0o700)  # fails if anybody made it before
            self._folder = folder
            for name, text in (files or {}).items():
                with open(os.path.join(folder, name), "x", encoding="utf-8") as file:
                    # Whatever the umask is: a connection file has the kernel's key.
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
                # A group of its own, to be signalled as a whole (`group` of `signal`).
                start_new_session=True,
            )
        if attached:
            self._attached = process
        started = start_time(process.pid)
        return {
            "pid": process.pid,
            "started": started if started is not None else 0,
            "boot": read_boot_id(),
            "host": socket.gethostname(),
        }

    def signal(
        self, pid: int, started: int, boot: str, number: int, group: bool = False
    ) -> dict[str, Any]:
        """Send it a signal, if it is that process still; with ``group`` also to its children.

        Whether it is alive; the signal 0 only looks.
        """
        alive = boot == read_boot_id() and start_time(pid) == started
        if alive:
            try:
                (os.killpg if group else os.kill)(pid, number)
            except ProcessLookupError:
                alive = False
        return {"alive": alive}

    def _follow(self) -> None:
        """End with the attached process, and as it did."""
        assert self._attached is not None
        code = self._attached.wait()
        self._tidy()
        # The main thread waits for a line of input, which nothing but the process's end breaks off.
        os._exit(code if code >= 0 else 128 - code)

    def _end(self) -> None:
        child = self._attached
        # What is not attached outlives the connection; that is what it was started for.
        if child is None:
            return
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        self._tidy()

    def _tidy(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Serve standard input. An interrupt at the terminal is not meant for what runs here."""
    # Not SIG_IGN: what is started here would inherit it, and no kernel could be interrupted.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    There().serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
