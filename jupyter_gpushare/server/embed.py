"""Hosts a node manager for this OS user, where the host has no system one.

Several servers of one user elect one host by a lock on a file in the Jupyter runtime directory; the
lock's name contains the host's, because hosts may share the home. The host runs the node manager as
a *child process*, so NVML and SQLite never touch the server's event loop and a crash of either
takes nothing else with it. The child dies with its server (the kernel sends it a signal), the lock
goes with the server too, and the next server starts another one on the same ledger and the same
socket: kernels re-attach by themselves.

This is the only module of the server that knows the node manager's program.
It is also that child's entry point (``python -m jupyter_gpushare.server.embed``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from jupyter_gpushare.protocol.address import EMBEDDED_STEM, host_id
from jupyter_gpushare.protocol.background import Background, event_or_time
from jupyter_gpushare.protocol.keeper import BACK_OFF, end_process, next_failures
from jupyter_gpushare.protocol.privateplace import lock_file
from jupyter_gpushare.protocol.sockets import answers

_SYSTEMD = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
_READY_WITHIN = 30.0  # seconds a node manager may take until it serves
_STOP_WITHIN = 5.0  # seconds it may take to end when asked
_POLL = 2.0  # seconds between two looks at the lock when all is quiet
_EAGER_POLL = 0.1  # the same, just after the node manager was lost
_EAGER_FOR = 10.0  # seconds of eagerness
_KEPT_LINES = 20  # of what the child said last, for the story when it fails


def gpu_driver_present() -> bool:
    """Say whether this host shows an NVIDIA driver, without loading any of it."""
    signs = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
    return any(os.path.exists(sign) for sign in signs)


class HostLock:
    """The election: the process with the lock hosts. The kernel frees the lock when we die."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Raises ``OSError`` if there can be no lock at all."""
        if self._fd is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = lock_file(self.path)
            if self._fd is not None:
                os.ftruncate(self._fd, 0)
                os.write(self._fd, f"{os.getpid()}\n".encode())  # for people
        return self._fd is not None

    def release(self) -> None:
        # The file stays: removing it would let two processes lock two different files.
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class EmbeddedNode:
    """Keeps this OS user's embedded node manager running, here or in another server.

    ``on_change`` is called (on the loop) when :attr:`hosting`, :attr:`pid` or
    :attr:`problem` changed. ``may_host`` says whether this server may take part in the election by
    now; from then on it does.
    """

    def __init__(
        self,
        *,
        socket: str,
        arguments: Sequence[str],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        on_change: Callable[[], None] = lambda: None,
        may_host: Callable[[], bool] = lambda: True,
    ) -> None:
        self.socket = socket
        self.problem: str | None = None
        self._may_host = may_host
        self._takes_part = False
        self._arguments = tuple(arguments)
        self._log = log
        self._on_change = on_change
        self._lock = HostLock(Path(socket).with_name(f"{EMBEDDED_STEM}-{host_id(os.environ)}.lock"))
        self._child: asyncio.subprocess.Process | None = None
        self._left: int | None = None  # pidfd of a child that we no longer supervise
        #: Whether the node manager is a child of this server, and serves.
        self.hosting = False
        self._lost = asyncio.Event()
        self._background = Background()

    @property
    def takes_part(self) -> bool:
        """Whether this server is one of those that host."""
        self._takes_part = self._takes_part or self._may_host()
        return self._takes_part

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    def start(self) -> None:
        """Begin to take part in the election (needs the running loop)."""
        self._background.start(self._run())

    def lost(self) -> None:
        """Hear that the node manager went away: look at the lock at once."""
        self._lost.set()

    async def stop(self) -> None:
        """Leave the election and end our child, if we host."""
        await self.leave()
        if self._child is not None:
            await end_process(self._child, _STOP_WITHIN)
            self._child = None
        if self._left is not None:
            os.close(self._left)
            self._left = None
        self._lock.release()

    async def leave(self) -> None:
        """Stop supervising, but let our child serve until :meth:`end_child` or our death."""
        if (pid := self.pid) is not None and self._left is None:
            with contextlib.suppress(ProcessLookupError):
                self._left = os.pidfd_open(pid)
        await self._background.cancel()

    def end_child(self) -> None:
        """End a child left by :meth:`leave`, without a loop (at the interpreter's exit)."""
        if self._left is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._left, signal.SIGTERM)
            ended = select.poll()  # not select: it cannot take a descriptor over 1023
            ended.register(self._left, select.POLLIN)
            if not ended.poll(_STOP_WITHIN * 1000):
                signal.pidfd_send_signal(self._left, signal.SIGKILL)
        os.close(self._left)
        self._left = None
        # Until Python 3.12 a daemon thread of asyncio waits for the child, and writes that its loop
        # is closed. Where it still writes while the interpreter ends, Python aborts. Others like it
        # wait for children of other extensions, which may live on: they are not waited for long.
        for thread in threading.enumerate():
            if thread.name.startswith("asyncio-waitpid"):
                thread.join(0.2)

    # -- the election -------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        eager_until = loop.time() + _EAGER_FOR
        failures = 0
        while True:
            self._lost.clear()
            try:
                elected = self.takes_part and self._lock.try_acquire()
            except OSError as error:
                elected = False
                self._say_problem(
                    f"Cannot lock {self._lock.path} ({error.strerror}), so this server cannot "
                    "host a node manager. Check the Jupyter runtime directory."
                )
            if elected and answers(self.socket):
                # It has a host all the same: the lock's folder was emptied, or a person started it.
                self._lock.release()
                self.problem, elected = None, False
            if elected:
                began = loop.time()
                await self._serve()
                failures = next_failures(failures, loop.time() - began)
                await asyncio.sleep(BACK_OFF[failures])
                continue
            pause = _EAGER_POLL if loop.time() < eager_until else _POLL
            await event_or_time(self._lost, pause)
            if self._lost.is_set():
                eager_until = loop.time() + _EAGER_FOR
                await asyncio.sleep(_EAGER_POLL)

    async def _serve(self) -> None:
        """Run one child from start to end."""
        command = [
            *(sys.executable, "-m", "jupyter_gpushare.server.embed", str(os.getpid())),
            *("--socket", self.socket, *self._arguments),
        ]
        said: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # A terminal's Ctrl-C is for the server: it asks before it stops.
                start_new_session=True,
                # If this server is a systemd service, systemd must hear only of the server.
                env={
                    **{name: value for name, value in os.environ.items() if name not in _SYSTEMD},
                    "JUPYTER_GPUSHARE": "off",
                },
            )
        except OSError as error:
            self._say_problem(f"Cannot start the node manager: {error}.")
            return
        self._child = child
        assert child.stdout is not None
        assert child.stderr is not None
        ready = asyncio.Event()
        readers = [
            asyncio.create_task(self._read_ready(child.stdout, ready)),
            asyncio.create_task(self._read_log(child.stderr, said)),
        ]
        try:
            await self._wait_ready(child, ready)
            if ready.is_set():
                self.hosting = True
                self.problem = None
                self._log.info("gpushare: hosting the node manager at %s", self.socket)
                self._on_change()
            await child.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.gather(*readers)
            story = said[-1] if said else "it said nothing"
            self._say_problem(
                f"The node manager ended with status {child.returncode} ({story}). "
                "It is being started again."
            )
        finally:
            for reader in readers:
                reader.cancel()
            self.hosting = False
            self._on_change()

    async def _wait_ready(self, child: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
        waiting = {asyncio.create_task(ready.wait()), asyncio.create_task(child.wait())}
        try:
            done, _ = await asyncio.wait(
                waiting, timeout=_READY_WITHIN, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._log.warning("gpushare: the node manager does not get ready; starting anew")
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
        finally:
            for task in waiting:
                task.cancel()

    async def _read_ready(self, stream: asyncio.StreamReader, ready: asyncio.Event) -> None:
        while line := await _next_line(stream):
            if line.startswith("ready"):
                ready.set()

    async def _read_log(self, stream: asyncio.StreamReader, said: deque[str]) -> None:
        while line := await _next_line(stream):
            said.append(line)
            grave = any(word in line for word in ("WARNING", "ERROR", "CRITICAL", "Traceback"))
            self._log.log(logging.WARNING if grave else logging.DEBUG, "gpushare node: %s", line)

    def _say_problem(self, problem: str) -> None:
        if problem != self.problem:
            self._log.warning("gpushare: %s", problem)
        self.problem = problem
        self._on_change()


async def _next_line(stream: asyncio.StreamReader) -> str | None:
    """Return the next non-empty line, ``None`` at the end; an endless line is dropped."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the reader's limit, which it has discarded
            continue
        if not line:
            return None
        if text := line.decode("utf-8", "replace").rstrip():
            return text


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` (which started it) dies."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        raise SystemExit("The server that started this node manager is gone.")


def child_main(argv: Sequence[str]) -> None:
    """Run the node manager as the child of process ``argv[0]`` with arguments ``argv[1:]``."""
    import runpy

    _die_with(int(argv[0]))
    sys.argv = ["jupyter-gpushare-node", *argv[1:]]
    runpy.run_module("jupyter_gpushare.node", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    child_main(sys.argv[1:])
