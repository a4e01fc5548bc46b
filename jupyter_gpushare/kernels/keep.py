"""Keeps one Jupyter kernel that cannot ask for a GPU itself; its provisioner starts this.

``python -m jupyter_gpushare.kernels.keep WISHES CONNECTION_FILE COMMAND…`` asks for the lease,
starts the kernel, and tells the node manager whether it is busy; the wishes are JSON, and weaker
than what the notebook and the environment say. Recalled while it is idle,
the kernel is parked by the driver; when it is busy again, its GPU memory is asked for. No message
is held up meanwhile: the kernel waits in its next CUDA call. Where it has none that could wait,
because it has not used CUDA yet, it is stopped (SIGSTOP) while it is busy and has no GPU.

An Interrupt comes here first. A kernel that waits for its first lease starts without a GPU then.
One that is stopped goes on, and has some seconds to end its cell. One that stands in a CUDA call
ends it when the call has returned; so its wish stays in the queue until the kernel says that it is
idle.

Where no GPU is to be had, this process becomes the kernel, and that has no keeper.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Final

from ..client.errors import GpuShareError, NotGranted
from ..client.session.origin import origin
from ..client.session.task import SESSION_NAME, describe_kernel
from ..client.words.classes import class_of
from ..client.words.settings import Fallback, Naming, Settings, read_settings
from ..keeper.holding import Holding, say
from ..keeper.keeper import NobodyWaits, Rest
from ..keeper.kept import Kept
from ..keeper.record import Record, noted
from ..protocol import names
from ..protocol.address import find_socket
from ..protocol.messages import Method
from .cells import Cells, name_of

#: Seconds between two looks at the kernel, where it says nothing.
EVERY: Final = 0.1
#: Seconds of work after which a parked kernel is taken to wait in a CUDA call.
STANDS_AFTER: Final = 0.3
#: Seconds in which a kernel comes from its own code, which may drop an Interrupt, to its cell's.
BEGINS: Final = 0.05
#: Seconds that a stopped kernel has after an Interrupt, to end its cell.
GRACE: Final = 2.0
#: Seconds before GPUs are asked for again, where that was refused.
AGAIN: Final = 5.0


class _Ends(Exception):
    """The kernel is not to run."""


class _Signals:
    """What we were sent, and whether the server has gone."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.interrupted = False
        self._number = 0
        # Jupyter's word for a kernel that ends with its server.
        self._parent = os.getppid() if environ.get("JPY_PARENT_PID") == str(os.getppid()) else 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._came)

    @property
    def ends(self) -> int:
        """The signal by which the kernel is to end; 0: none."""
        return self._number or (signal.SIGTERM if self.server_gone else 0)

    @property
    def server_gone(self) -> bool:
        """Whether the server that started this has ended."""
        return self._parent > 0 and os.getppid() != self._parent

    def _came(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self.interrupted = True
        else:
            self._number = number

    def heed(self) -> None:
        """While the first lease is waited for. Raises :class:`_Ends`, :class:`NotGranted`."""
        if self.ends:
            raise _Ends
        if self.interrupted:
            raise NotGranted("You interrupted the kernel while it waited for a GPU.")


class KeptKernel(Kept):
    """One kernel and its lease."""

    def __init__(
        self,
        file: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        settings: Settings,
        signals: _Signals,
    ) -> None:
        """Raises :class:`GpuShareError`."""
        ask = settings.ask
        request = {
            "task": describe_kernel(file, environ, environ.get(SESSION_NAME)),
            "gpus": 1 if ask.gpus is None else ask.gpus,
            **ask.sizes,
            "priority_class": ask.priority_class,
            "looks": class_of(origin(environ)._replace(kernel=True)),
            "reserve": ask.reserve,
            "keeper": True,
        }
        self._settings, self._signals = settings, signals
        self._cells = Cells(file)
        self._visible = ""  # the GPUs of a kernel that has no lease yet
        self._counts = False  # the keeper counts the kernel's work
        self._is_stopped = False
        self._told_end, self._interrupted_at = 0, -math.inf
        self._again_at = 0.0
        holding = Holding(
            environ,
            on_lost=self.lost,
            on_notice=self.noticed,
            heed=signals.heed,
            by_index=settings.visible_devices is Naming.INDICES,
        )
        record = Record(environ, name_of(file))
        self._noted = noted(environ, name_of(file))
        super().__init__(holding, request, command, record=record)

    def start(self, *, at_first_cell: bool) -> None:
        """Ask, wait, start the kernel; or keep the one of a keeper that was killed.

        Raises :class:`GpuShareError`, ``OSError``; `_Ends`.
        """
        if self._noted is not None:
            if not self.succeed(self._noted):
                raise _Ends
            self._is_stopped = True  # for all that we know
            self._stop(False)
            self._cells.ask()
            return
        self._visible = self._all_gpus() if at_first_cell else ""
        if self._visible:
            self.keeper.succeeds(holds=False, checkpointed=False)
        else:
            self.holding.ask(self.request, self._settings.wait_timeout)
        self.tree.start()

    def hold(self) -> int:
        """Keep it until it has ended; its exit code."""
        started = self.tree.started
        assert started is not None
        while (code := self.tree.exit_code()) is None:
            self._cells.hear(EVERY)
            if (number := self._signals.ends) != self._told_end:
                self._told_end = number
                self._stop(False)
                if self._signals.server_gone:
                    self.tree.stop()  # nobody is there who would kill one that goes on
                    return 128 + number
                started.signal(number)
            if self._signals.interrupted:
                self._interrupt(started.root.pid)
            self._look()
        self.keeper.ended()
        return code

    def close(self) -> None:
        """The kernel has ended: give the lease back, and stop listening."""
        super().close()
        self._cells.close()

    # -- inside -----------------------------------------------------------------------

    def _all_gpus(self) -> str:
        """All GPUs of the host, if the kernel asks for all; CUDA is told them at its start."""
        there = [str(gpu["uuid"]) for gpu in self.holding.session.call(Method.STATUS)["gpus"]]
        if len(there) == self.request["gpus"]:
            return ",".join(there)
        say("This host has more GPUs than the kernel asks for: it starts when it has its own.")
        return ""

    def environ(self) -> Mapping[str, str]:
        visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self._visible}
        return {**super().environ(), **({} if self.holding.lease else visible)}

    def _look(self) -> None:
        """Wake it where it works and has no GPU. Never waits."""
        busy, now = self._cells.busy, time.monotonic()
        self.keeper.set_busy(busy)
        if busy and not self._counts:
            self._counts = self.keeper.begins()
        elif not busy and self._counts:
            self.keeper.ends()
            self._counts = False
        # It works, though the keeper did not let it begin: it has no GPU.
        lacks = busy and not self._counts and self.keeper.rest in (Rest.ASLEEP, Rest.WAKING)
        asleep, stands = self.keeper.rest is Rest.ASLEEP, self.ladder.holds
        interrupted = self._interrupted_at
        # Only the cell that was interrupted has this time, not one that began after it.
        ends_cell = self._cells.since <= interrupted and now < interrupted + GRACE
        # With its memory elsewhere the driver holds it up in its next CUDA call. Without any there
        # is no such call, so a signal must.
        runs_free = not stands and (asleep or self._is_stopped)
        self._stop(lacks and runs_free and not ends_cell and not self._told_end)
        waits = lacks and asleep and now > self._again_at
        # A parked kernel that is soon done needed no GPU: completion, or a cell without CUDA.
        if waits and not ends_cell and (not stands or now - self._cells.since > STANDS_AFTER):
            self._again_at = now + EVERY
            self.wakes(self._wake)

    def _wake(self) -> None:
        try:
            self.keeper.wake(cancelled=lambda: not self._cells.busy)
        except NobodyWaits:
            pass  # it was interrupted, or did not need its GPU
        except GpuShareError as error:
            self._again_at = time.monotonic() + AGAIN
            if self.keeper.rest is not Rest.ENDED:
                say(f"{error} The kernel waits.")

    def _interrupt(self, root: int) -> None:
        self._signals.interrupted = False
        if self._is_stopped:
            self._stop(False)
            time.sleep(BEGINS)
        self._interrupted_at = time.monotonic()
        # As Jupyter does: the kernel and its children, but for those with groups of their own.
        for pid in self.tree.processes():
            with contextlib.suppress(OSError):  # as below
                if os.getpgid(pid) == os.getpgid(root):
                    os.kill(pid, signal.SIGINT)

    def _stop(self, stop: bool) -> None:
        if stop != self._is_stopped:
            self._is_stopped = stop
            for pid in self.tree.processes():
                with contextlib.suppress(OSError):  # it ended just now
                    os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)


def _become(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Be the kernel; returns only where that cannot be."""
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
    return 127


def main(words: Sequence[str]) -> int:
    """Keep a kernel; its exit code."""
    told, file, *command = words
    wishes = json.loads(told)
    environ = dict(os.environ)
    if find_socket(environ) is None:
        return _become(command, environ)
    asked = {names.GPUS: wishes["gpus"], names.MEMORY: wishes["memory"]}
    settings = read_settings(environ, read_settings(asked))
    for complaint in settings.complaints:
        say(complaint)
    if settings.ask.gpus == 0:
        return _become(command, {**environ, "CUDA_VISIBLE_DEVICES": ""})
    signals = _Signals(environ)
    try:
        with contextlib.closing(KeptKernel(file, command, environ, settings, signals)) as kernel:
            kernel.start(at_first_cell=wishes["lease"] == "first-cell")
            return kernel.hold()
    except _Ends:
        return 128 + signals.ends
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return 127
    except GpuShareError as error:
        if settings.fallback is Fallback.ERROR:
            say(f"{error} The kernel does not start.")
            return 1
        say(f"{error} The kernel runs without a GPU.")
    return _become(command, {**environ, "CUDA_VISIBLE_DEVICES": ""})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
