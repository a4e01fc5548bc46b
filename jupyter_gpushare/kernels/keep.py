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
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Final

from ..client.errors import GpuShareError, NotGranted
from ..client.session.origin import origin
from ..client.session.task import SESSION_NAME, describe_kernel
from ..client.words.classes import class_of
from ..client.words.recalls import MEMORY, read_recall
from ..client.words.settings import Fallback, Naming, Settings, read_settings
from ..keeper.holding import Holding
from ..keeper.keeper import Keeper, NobodyWaits, Rest
from ..keeper.program import ladder_of
from ..keeper.record import Noted, Record
from ..keeper.tree import KeptTree
from ..protocol import names
from ..protocol.address import find_socket
from ..protocol.checkpoint import State
from ..protocol.messages import Method, Notification
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


class KeptKernel:
    """One kernel and its lease."""

    def __init__(
        self,
        file: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        settings: Settings,
        record: Record,
        signals: _Signals,
    ) -> None:
        """Raises :class:`GpuShareError`."""
        ask = settings.ask
        self._request = {
            "task": describe_kernel(file, environ, environ.get(SESSION_NAME)),
            "gpus": 1 if ask.gpus is None else ask.gpus,
            **ask.sizes,
            "priority_class": ask.priority_class,
            "looks": class_of(origin(environ)._replace(kernel=True)),
            "reserve": ask.reserve,
            "keeper": True,
        }
        self._file, self._environ, self._settings = file, environ, settings
        self._record, self._signals = record, signals
        self._cells = Cells(file)
        self._visible = ""  # the GPUs of a kernel that has no lease yet
        self._counts = False  # the keeper counts the kernel's work
        self._is_stopped = False
        self._told_end, self._interrupted_at = 0, -math.inf
        self._again_at = 0.0
        self._waking: threading.Thread | None = None
        self._holding = Holding(
            environ,
            on_lost=lambda _lease, message, _released: self._keeper.lost(message),
            on_notice=self._noticed,
            heed=signals.heed,
            by_index=settings.visible_devices is Naming.INDICES,
        )
        self._tree = KeptTree(self._holding, command, self._environ_of_kernel)
        self._ladder = ladder_of(self._tree, environ, say)
        self._keeper = Keeper(
            self._holding, self._request, self._ladder, self._tree, on_rest=self._note, say=say
        )

    def start(self, *, at_first_cell: bool) -> None:
        """Ask, wait, start the kernel; or keep the one of a keeper that was killed.

        Raises :class:`GpuShareError`, ``OSError``; `_Ends`.
        """
        if (noted := self._record.read()) is not None:
            self._succeed(noted)
            return
        self._visible = self._all_gpus() if at_first_cell else ""
        if self._visible:
            self._keeper.succeeds(holds=False, checkpointed=False)
        else:
            self._holding.ask(self._request, self._settings.wait_timeout)
        self._tree.start()
        self._note(self._keeper.rest)

    def hold(self) -> int:
        """Keep it until it has ended; its exit code."""
        started = self._tree.started
        assert started is not None
        while (code := started.helper.poll()) is None:
            self._cells.hear(EVERY)
            if (number := self._signals.ends) != self._told_end:
                self._told_end = number
                self._stop(False)
                if self._signals.server_gone:
                    self._tree.stop()  # nobody is there who would kill one that goes on
                started.signal(number)
            if self._signals.interrupted:
                self._interrupt(started.root.pid)
            self._look()
        self._keeper.ended()
        return code

    def close(self) -> None:
        """Give the lease back, unless others go on with it."""
        self._holding.close()
        self._cells.close()

    # -- inside -----------------------------------------------------------------------

    def _succeed(self, noted: Noted) -> None:
        state = self._tree.succeed(noted)
        try:
            holds = self._holding.succeed(noted.grant, noted.secret, noted.root.pid)
        except GpuShareError as error:
            say(f"{error} The kernel is ended.")
            self._tree.stop()
            raise _Ends from error
        self._keeper.succeeds(holds=holds, checkpointed=state is State.CHECKPOINTED)
        self._is_stopped = True  # for all that we know
        self._stop(False)
        self._cells.ask()

    def _all_gpus(self) -> str:
        """All GPUs of the host, if the kernel asks for all; CUDA is told them at its start."""
        there = [str(gpu["uuid"]) for gpu in self._holding.session.call(Method.STATUS)["gpus"]]
        if len(there) == self._request["gpus"]:
            return ",".join(there)
        say("This host has more GPUs than the kernel asks for: it starts when it has its own.")
        return ""

    def _environ_of_kernel(self) -> Mapping[str, str]:
        if self._holding.grant is not None:
            return self._holding.environ_of_program()
        visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self._visible}
        return {**self._environ, **visible}

    def _noticed(self, message: Notification) -> None:
        recall = read_recall(message)
        if recall is not None and recall.lease == self._holding.lease and recall.give in MEMORY:
            self._keeper.asked(recall)

    def _note(self, rest: Rest) -> None:
        held = self._holding.grant is not None and self._tree.started is not None
        if rest is Rest.AWAKE and held:
            self._record.write(self._tree.noted())

    def _look(self) -> None:
        """Wake it where it works and has no GPU. Never waits."""
        busy, now = self._cells.busy, time.monotonic()
        self._keeper.set_busy(busy)
        if busy and not self._counts:
            self._counts = self._keeper.begins()
        elif not busy and self._counts:
            self._keeper.ends()
            self._counts = False
        lacks = busy and not self._counts and self._keeper.rest in (Rest.ASLEEP, Rest.WAKING)
        asleep, stands = self._keeper.rest is Rest.ASLEEP, self._ladder.holds
        interrupted = self._interrupted_at
        ends_cell = self._cells.since <= interrupted and now < interrupted + GRACE
        runs_free = not stands and (asleep or self._is_stopped)
        self._stop(lacks and runs_free and not ends_cell and not self._told_end)
        waits = lacks and asleep and now > self._again_at
        if waits and not ends_cell and (not stands or now - self._cells.since > STANDS_AFTER):
            self._again_at = now + EVERY
            if self._waking is None or not self._waking.is_alive():
                self._waking = threading.Thread(target=self._wake, daemon=True)
                self._waking.start()

    def _wake(self) -> None:
        try:
            self._keeper.wake(cancelled=lambda: not self._cells.busy)
        except NobodyWaits:
            pass  # it was interrupted, or did not need its GPU
        except GpuShareError as error:
            self._again_at = time.monotonic() + AGAIN
            if self._keeper.rest is not Rest.ENDED:
                say(f"{error} The kernel waits.")

    def _interrupt(self, root: int) -> None:
        self._signals.interrupted = False
        if self._is_stopped:
            self._stop(False)
            time.sleep(BEGINS)
        self._interrupted_at = time.monotonic()
        # As Jupyter does: the kernel and its children, but for those with groups of their own.
        for pid in self._tree.processes():
            with contextlib.suppress(OSError):  # as below
                if os.getpgid(pid) == os.getpgid(root):
                    os.kill(pid, signal.SIGINT)

    def _stop(self, stop: bool) -> None:
        if stop != self._is_stopped:
            self._is_stopped = stop
            for pid in self._tree.processes():
                with contextlib.suppress(OSError):  # it ended just now
                    os.kill(pid, signal.SIGSTOP if stop else signal.SIGCONT)


def say(text: str) -> None:
    """For the server's log."""
    with contextlib.suppress(OSError, ValueError):
        print(f"jupyter_gpushare: {text}", file=sys.stderr, flush=True)


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
        with (
            Record(environ, name_of(file)) as record,
            contextlib.closing(
                KeptKernel(file, command, environ, settings, record, signals)
            ) as kernel,
        ):
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
