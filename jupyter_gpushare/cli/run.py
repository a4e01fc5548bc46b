"""``jupyter gpushare run -- CMD…``: any command under a lease; ``request``: a shell.

For programs without the import hook: C++, R, Julia, another Python. They cannot ask for a GPU, so
this process is their *keeper*: it asks for the lease, starts the command with
``CUDA_VISIBLE_DEVICES`` set, and gives the lease back when the command has ended. To its caller it
must look as if it were the command: the same exit code, the same signals, the same terminal.

Signals and the command's end are waited for in one place, so a signal is never lost between two of
them. Meanwhile a session, as kernels have one, keeps the lease and the place in the queue alive on
a thread of its own. The keeper may be killed like any process; the command has joined the lease by
then, and goes on with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import shutil
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..client.errors import PREEMPTED
from ..client.requests.promises import Promises
from ..client.session.origin import origin
from ..client.words.classes import class_of
from ..client.words.promises import Wish, read_rate, read_wish
from ..client.words.recalls import Give, Recall, read_recall
from ..client.words.settings import ONE_PART, Ask
from ..console.verb import Refused, UsageError, Verb, WithCommand, flag, option
from ..keeper.holding import Holding, say
from ..protocol import names
from ..protocol.messages import Method, Notice, Notification
from ..protocol.names import RESERVES
from ..protocol.sizes import Memory, parse_gpus, parse_memory, parse_size
from ..protocol.tables import clean
from ..protocol.times import parse_duration

if TYPE_CHECKING:
    from ..keeper.program import RestingProgram

#: Passed on to the command. Keys typed at the terminal reach it by themselves.
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
#: After one of these the command is not started again.
ENDS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
#: Seconds after which a command that goes on is taken not to end by it.
ENDS_WITHIN = 60.0
#: ``si_code`` of a signal that the kernel sent, as the terminal's Ctrl-C is.
SI_KERNEL = 0x80


def read_gpus(text: str) -> int | str:
    """How many GPUs a command gets. Raises `ValueError`."""
    gpus = parse_gpus(text)
    if not gpus:
        raise ValueError("a command under a lease needs a GPU; without one, start it by itself.")
    return gpus


def read_memory(text: str) -> Memory | None:
    """Bytes on each GPU, or a range; ``none`` is what the quota gives. Raises `ValueError`."""
    return None if text.lower() == "none" else parse_memory(text)


class UnderLease(Verb):
    """A verb that runs a command under a lease."""

    #: What is said after what was granted, before the command starts. It may be empty.
    told = ""
    gpus: int | str | None = option(
        None,
        "GPUs to ask for; quota: as many as the quota allows. Default: 1.",
        read_gpus,
        variable=names.GPUS,
    )
    memory: Memory | None = option(
        None,
        "Memory on each GPU, such as 8GiB, or 8GiB..40GiB: at least so much, and up to so much as "
        "others leave. Default: what the quota gives.",
        read_memory,
        variable=names.MEMORY,
    )
    priority_class: str | None = option(
        None,
        "interactive (a person waits) or batch. Default: interactive in a terminal's foreground, "
        "else batch.",
        name="class",
        choices=("interactive", "batch"),
        variable=names.CLASS,
    )
    persistent: int | None = option(
        None, "What lives across its steps, where tasks take turns; with --temporary.", parse_size
    )
    temporary: int | None = option(
        None, "What a step needs beyond that. Default: measured after two steps.", parse_size
    )
    turn_offset: int | None = option(
        None,
        "Head-room before its part where tasks take turns. Default: the node's.",
        parse_size,
        name="turn-offset",
    )
    reserve: str | None = option(
        None,
        "Without a memory: whole (all that the quota gives), quota (that, until it is measured) or "
        "estimate (what earlier runs needed). Default: as the administrator has it.",
        choices=RESERVES,
        variable=names.RESERVE,
    )
    lasts: float | None = option(
        None,
        "How long the command will run, such as 2h: a short batch command may go before an "
        "interactive request that it does not delay.",
        parse_duration,
    )
    deadline: float | None = option(
        None,
        "Promise the command to be ready by then, such as 10m from now, also where others compute "
        "on its GPU. Where that cannot be kept it is not started.",
        lambda text: parse_duration(text, 1.0),
    )
    rate: float | None = option(
        None,
        "Promise it so many steps a second at least, such as 2.",
        read_rate,
        name="min-steps-per-second",
    )
    visible_devices: str | None = option(
        None,
        "Name the GPUs in CUDA_VISIBLE_DEVICES by uuids or by indices, for programs that take its "
        "entries for numbers. Default: uuids.",
        name="visible-devices",
        choices=("uuids", "indices"),
        variable=names.VISIBLE_DEVICES,
    )
    wait = flag("Fail at once when nothing is free.", name="no-wait", default=True)
    timeout: float | None = option(
        None,
        "Wait at most this long: 90s, 10m, 2h.",
        parse_duration,
        variable=names.WAIT_TIMEOUT,
    )
    task_name = option("", "The name shown to people. Default: the command's.", name="name")

    def start_command(
        self,
        command: list[str],
        stops_by: signal.Signals | None = None,
        *,
        parks: bool = False,
    ) -> int:
        """Ask, wait, run the command; its exit code.

        Raises :class:`GpuShareError`, `Refused`, `UsageError`.

        With ``parks`` its memory leaves the GPUs while it rests and somebody waits. With
        ``stops_by`` it is asked to stop by that signal when an interactive request needs its GPUs,
        and started again, at the end of the queue, when there are some.
        """
        program = shutil.which(command[0])
        if program is None:
            return _cannot_start(command[0])
        if (self.persistent is None) != (self.temporary is None):
            raise UsageError(ONE_PART)
        name, began = self.task_name or command_name(command), time.monotonic()
        wish = read_wish(self.deadline, self.rate)
        asked = {
            "task": {"name": name[:256], "kind": "process", "path": program[:4096]},
            "gpus": self.gpus,
            **Ask(memory=self.memory).sizes,
            "priority_class": self.priority_class or _class_named(wish, stops_by),
            "looks": class_of(origin(os.environ)),
            "reserve": self.reserve,
            "lasts": self.lasts,
            "stops": stops_by is not None,
            "wait": self.wait,
            **({"keeper": True} if parks else {}),
            **Ask(
                persistent=self.persistent,
                temporary=self.temporary,
                turn_offset=self.turn_offset,
            ).parts,
        }
        with (
            contextlib.closing(Signals()) as signals,
            contextlib.closing(
                _Command(
                    signals,
                    asked,
                    stops_by,
                    parks=parks,
                    by_index=self.visible_devices == "indices",
                )
            ) as held,
        ):
            for restarts in itertools.count():
                try:
                    held.ask(self.timeout)
                except _Signalled as signalled:
                    return 128 + signalled.number  # as a shell expects of what this signal ended
                if self.told:
                    say(f"{held.holding.words}. {self.told}")
                with held.promises.kept(wish, time.monotonic() - began) as words:
                    if words:
                        say(words)
                    code = held.hold(program, command, restarts)
                if stops_by is None or not held.stopped_with(code):
                    return code
                held.holding.give_back()
                say(
                    f"the command has stopped (exit code {code}); it is started again when GPUs "
                    "are free."
                )
        raise AssertionError("it counts for ever")


class RunApp(WithCommand, UnderLease):
    """Run any command under a lease: wait until GPUs are free, start the command with
    CUDA_VISIBLE_DEVICES set to them, and give them back when it ends. Signals are passed on. What
    is not given is taken from JUPYTER_GPUSHARE_GPUS, _MEMORY, _CLASS and _WAIT_TIMEOUT.

    With --requeue the command is batch, and says that it can be stopped: when an interactive
    request needs its GPUs, it gets SIGTERM (--stop-signal) and time to save its state. When it has
    ended with another exit code than 0, it waits for GPUs again and is started again, with
    JUPYTER_GPUSHARE_RESTARTS one higher. A command that goes on is not killed. After Ctrl-C, or a
    signal from somebody else, it is not started again.

    With --park the command keeps all that it has: when it has computed nothing for a minute and
    somebody waits, the driver moves its GPU memory to the host. It comes back when the command
    computes again, or when a GPU is free. Its next CUDA call waits for that."""

    name = "run"
    arguments = "[--] COMMAND [ARGUMENT...]"
    examples = """
    jupyter gpushare run -- python train.py --epochs 3
    jupyter gpushare run --gpus 2 --memory 8GiB --class batch -- ./simulate
    jupyter gpushare run --requeue -- python train.py --resume last.pt
    jupyter gpushare run --deadline 30m -- python train.py
    jupyter gpushare run --park -- ./simulation-with-a-window

    The exit code is the command's; 128+n when signal n ended it; 126 or 127 when it cannot be
    started; 1 when no lease could be had; 2 for wrong usage.
    """

    requeue = flag("Stop the command when an interactive request needs its GPUs; start it again.")
    park = flag(
        "Move the command's GPU memory to the host while it rests and somebody needs its GPUs."
    )
    stop_signal = option(
        "TERM",
        "The signal for that: TERM or USR1. Default: TERM.",
        name="stop-signal",
        choices=("TERM", "USR1"),
    )

    def run(self, arguments: list[str]) -> int:
        if not arguments:
            raise UsageError("run what? jupyter gpushare run -- python train.py")
        if self.requeue and self.park:
            raise UsageError("--requeue stops the command, --park keeps it: choose one.")
        stops_by = signal.Signals[f"SIG{self.stop_signal}"] if self.requeue else None
        return self.start_command(arguments, stops_by, parks=self.park)


class RequestApp(UnderLease):
    """Request GPUs, wait until they are free, and open your shell ($SHELL) with
    CUDA_VISIBLE_DEVICES set to them. All commands in that shell share them. They are given back
    when you leave it. What is not given is taken from JUPYTER_GPUSHARE_GPUS, _MEMORY, _CLASS and
    _WAIT_TIMEOUT."""

    name = "request"
    examples = """
    jupyter gpushare request --gpus 2
    jupyter gpushare request --memory 8GiB --timeout 10m
    """

    told = "Leave this shell to give it back."

    def run(self, arguments: list[str]) -> int:
        return self.start_command([os.environ.get("SHELL") or "/bin/sh"])


def _class_named(wish: Wish | None, stops_by: signal.Signals | None) -> str | None:
    """The class that other options name: somebody waits for what is to be ready by then."""
    return "batch" if stops_by else "interactive" if wish is not None else None


def command_name(arguments: list[str]) -> str:
    """``python train.py`` without the rest: options may hold what others should not see."""
    program = os.path.basename(arguments[0])
    script = arguments[1] if len(arguments) > 1 else ""
    return program if not script or script.startswith("-") else f"{program} {script}"


def _cannot_start(command: str) -> int:
    found = os.path.exists(command)
    why = "is not executable" if found else "was not found"
    say(f"{command} {why}")
    return 126 if found else 127


class _Signalled(Exception):
    """A signal came before the command ran."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Stop(Enum):
    """Whether the command was asked to stop, and may be started again."""

    NONE = "none"
    ASKED = "asked"
    LATE = "late"
    FOR_GOOD = "for_good"


class _Command:
    """A command under a lease: started, sent signals, asked to stop, waited for."""

    def __init__(
        self,
        signals: Signals,
        asked: Mapping[str, Any],
        stops_by: signal.Signals | None = None,
        *,
        parks: bool = False,
        by_index: bool = False,
    ) -> None:
        """Raises :class:`GpuShareError`."""
        self._signals = signals
        self._asked = asked
        self._parks = parks
        self._resting: RestingProgram | None = None  # where the command is parked while it rests
        self._watch: int | None = None  # pidfd of the command
        self._sends = threading.Lock()  # while it is used, or closed
        self._stops_by = stops_by
        self._late: threading.Timer | None = None
        self._stop, self._ends_at = Stop.NONE, 0.0
        self.holding = Holding(
            os.environ,
            on_lost=self._ended,
            on_notice=self._noticed,
            heed=self._heed_signals,
            by_index=by_index,
        )
        self.promises = Promises(
            lambda: self.holding.session,
            lambda: self.holding.lease,
            begins=lambda: None,
            ends=lambda: None,
            what=lambda: "The command",
            say=say,
        )

    def ask(self, timeout: float | None) -> None:
        """Request the lease and wait for it. Leaves the queue when a signal comes.

        Raises :class:`GpuShareError`; `_Signalled`.
        """
        self._stop = Stop.NONE
        self.holding.ask(self._asked, timeout)

    def _heed_signals(self) -> None:
        if (number := self._signals.wait(0.0)) is not None:
            raise _Signalled(number)

    def hold(self, program: str, arguments: list[str], restarts: int = 0) -> int:
        """Run the command while the session keeps the lease alive; the command's exit code."""
        more = {} if self._stops_by is None else {names.RESTARTS: str(restarts)}
        try:
            if self._parks:
                from ..keeper.program import RestingProgram

                command = [program, *arguments[1:]]
                self._resting = RestingProgram(self.holding, self._asked, command)
                child = self._resting.tree.start().root.pid
                ours = self._resting.tree.helper
            else:
                # With the signals as a program expects them: none blocked, SIGPIPE not ignored.
                child = ours = os.posix_spawn(
                    program,
                    arguments,
                    {**self.holding.environ_of_program(), **more},
                    setsigmask=(),
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
                )
        except OSError as error:
            say(f"{program}: {error.strerror}")
            return 126
        # Who is waited for is started by us; who is sent signals is the command.
        watch, ended_by = os.pidfd_open(child), os.pidfd_open(ours)
        self._watch = watch
        if self._resting is None and not self.holding.joined_by(child):
            self._end_command()  # it was taken back before there was a command to end
        every = None if self._resting is None else self._resting.every
        try:
            while True:
                number = self._signals.wait(every, ended_by, on_typed=self._ends_for_good)
                if self._resting is not None:
                    self._resting.look()
                if number is not None:
                    self._ends_for_good(number)
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(watch, number)
                # Looked at after each wake-up: `ended_by` is ready from its end on, and signals
                # come first.
                ended, status = os.waitpid(ours, os.WNOHANG)
                if ended:
                    self._hear_the_rest()
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
        finally:
            if self._late is not None:
                self._late.cancel()
            # Another thread may be about to signal it: after this the number can be another
            # descriptor's.
            with self._sends:
                self._watch = None
                os.close(watch)
            os.close(ended_by)

    def stopped_with(self, code: int) -> bool:
        """Whether the command has ended because it was asked to, and is to be started again.

        Where it said that it goes on, and ended later, only its exit code can tell that.
        """
        signal_ = None if self._stops_by is None else 128 + self._stops_by
        late = self._stop is Stop.LATE and code in (PREEMPTED, signal_)
        return code != 0 and (self._stop is Stop.ASKED or late)

    def _ends_for_good(self, number: signal.Signals) -> None:
        """The person, or the system, wants an end: the command is not started again."""
        if number in ENDS:
            self._stop, self._ends_at = Stop.FOR_GOOD, time.monotonic()

    def _hear_the_rest(self) -> None:
        """The command has ended, perhaps by a signal that has come here, too, and is not read."""
        while (number := self._signals.read()) is not None:
            self._ends_for_good(number)

    def close(self) -> None:
        """Give it back, unless others have joined it and go on, and hang up."""
        self.holding.close()

    # -- on the session's thread -------------------------------------------------------------

    def _ended(self, message: str) -> None:
        say(f"the lease has ended: {clean(message)}")

    def _noticed(self, message: Notification) -> None:
        if message.notice is Notice.REVOKED:
            self._end_command()
        if message.notice is Notice.PROMISE:
            self.promises.heard(message.params)
        recall = read_recall(message)
        if recall is not None and recall.give is Give.STOP:
            self._stop_command(recall)
        if self._resting is not None:
            self._resting.noticed(message)

    def _stop_command(self, recall: Recall) -> None:
        """Ask the command to save its state and end. It is not killed if it goes on.

        Without ``--requeue`` the command itself has said that it can (`on_preempt`), by SIGTERM.
        """
        # One that has had its minute goes on in spite of it, and may be asked again.
        ends = self._stop is Stop.FOR_GOOD and time.monotonic() < self._ends_at + ENDS_WITHIN
        if self._watch is None or ends:
            return
        self._stop = Stop.ASKED
        say(clean(recall.message))
        if self._late is not None:
            self._late.cancel()
        self._late = threading.Timer(recall.seconds, self._goes_on, (recall.lease,))
        self._late.daemon = True
        self._late.start()
        self._send(self._stops_by or signal.SIGTERM)

    def _goes_on(self, lease: str) -> None:
        if self._watch is not None and self._stop is Stop.ASKED:
            self._stop = Stop.LATE
            why = "The command was asked to stop and goes on."
            say(why)
            self.holding.session.tell_surely(Method.KEPT, lease=lease, reason=why)

    def _end_command(self) -> None:
        self._ends_for_good(signal.SIGTERM)
        if self._watch is not None:
            say("the command is asked to end.")
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with self._sends, contextlib.suppress(ProcessLookupError):
            if self._watch is not None:
                signal.pidfd_send_signal(self._watch, number)


class Signals:
    """The signals to pass on, as a descriptor that can be waited for beside others (signalfd).

    They stay blocked from here on, so that none is lost; a process that is
    started must be given its own signal mask.
    """

    _INFO = struct.Struct("=IiI116x")  # struct signalfd_siginfo: number, errno, code

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        # A `sigset_t` as glibc has it. Python has no call for a signalfd.
        mask = sum(1 << (number - 1) for number in FORWARDED).to_bytes(128, sys.byteorder)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
        if self._fd < 0:
            raise Refused(f"The system gives no signalfd: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        os.close(self._fd)

    def wait(
        self,
        timeout: float | None,
        *others: int,
        on_typed: Callable[[signal.Signals], object] | None = None,
    ) -> signal.Signals | None:
        """Wait for a signal or until one of ``others`` can be read; the signal, if it was one.

        Keys typed at the terminal reach every process of the foreground, the
        command too: with ``on_typed`` that is told of them, and they are left out.
        """
        ready = select.poll()  # not select: it cannot take a descriptor over 1023
        for descriptor in (self._fd, *others):
            ready.register(descriptor, select.POLLIN)
        if (self._fd, select.POLLIN) not in ready.poll(None if timeout is None else timeout * 1000):
            return None
        number, code = self._next()
        # A terminal's end is told to its session's leader alone, which this process may be.
        if code == SI_KERNEL and number != signal.SIGHUP and on_typed is not None:
            on_typed(number)
            return None
        if on_typed is None and number == signal.SIGWINCH:
            return None  # a terminal's new size is no reason to leave
        return number

    def read(self) -> signal.Signals | None:
        """One that has come, typed or not, or ``None``."""
        with contextlib.suppress(BlockingIOError):
            return self._next()[0]
        return None

    def _next(self) -> tuple[signal.Signals, int]:
        number, _errno, code = self._INFO.unpack(os.read(self._fd, self._INFO.size))
        return signal.Signals(number), code
