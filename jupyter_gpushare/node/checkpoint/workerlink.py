"""One worker process behind two pipes.

Each call has a deadline; a worker that misses it is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import Any, Final

from jupyter_gpushare.protocol import names

#: Seconds that a killed worker may take to end; a worker inside the kernel's driver takes longer.
_BURIAL: Final = 2.0


class WorkerLost(Exception):
    """It is no more: ``late`` where it was killed as it did not answer, else it ended by itself."""

    def __init__(self, how: str, *, late: bool = False) -> None:
        super().__init__(how)
        self.late = late


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Close our ends of its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


class WorkerLink:
    """A worker, started at the first question and again after its death.

    ``passes``: the descriptors that the next one is given.
    """

    def __init__(self) -> None:
        self.passes: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._unburied: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        """The pid of the worker that runs now."""
        return None if self._process is None else self._process.pid

    def ask(self, command: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The worker's answer within ``seconds``.

        Raises :class:`WorkerLost`; the next question then goes to a new worker.
        """
        self._unburied = [one for one in self._unburied if one.poll() is None]
        if self._process is None or self._process.poll() is not None:
            self.close()  # one that has ended by itself still has its pipes
            try:
                self._start()
            except OSError as error:
                # The host has no memory or process left just now; the next question may find some.
                raise WorkerLost(f"it cannot be started ({error.strerror})") from error
        process = self._process
        assert process is not None
        assert process.stdin is not None
        line = json.dumps({**command, "seconds": seconds}).encode() + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died(process) from None
        return self._read(process, time.monotonic() + seconds)

    def close(self) -> None:
        """Let the worker end; kill it when it does not at once."""
        process, self._process = self._process, None
        if process is not None:
            let_go(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_BURIAL)
                return
            self._kill(process)

    def _start(self) -> None:
        environ = dict(os.environ)
        # The worker must see all GPUs of the host: a map of GPUs must name each of them.
        environ.pop("CUDA_VISIBLE_DEVICES", None)
        # Python's start would load our own client into it, which the worker must not depend on.
        environ[names.SWITCH] = "off"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            pass_fds=self.passes,
        )

    def _read(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        poll = select.poll()  # not select: it cannot take a descriptor over 1023
        poll.register(descriptor, select.POLLIN)
        data = b""
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                self._process = None
                self._kill(process)
                raise WorkerLost("it did not answer in time", late=True)
            more = os.read(descriptor, 65536)
            if not more:
                raise self._died(process)
            data += more
        answer = json.loads(data)
        assert isinstance(answer, dict)
        return answer

    def _died(self, process: subprocess.Popen[bytes]) -> WorkerLost:
        self._process = None
        self._kill(process)
        code = process.returncode
        return WorkerLost("it cannot be ended" if code is None else f"exit status {code}")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        let_go(process)
        try:
            process.wait(_BURIAL)
        except subprocess.TimeoutExpired:
            self._unburied.append(process)  # in the kernel, uninterruptible; it ends some day
