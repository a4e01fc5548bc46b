"""``jupyter gpushare run -- CMD…``: any command under a lease.

For programs without the import hook: C++, R, Julia, another Python. This
process asks for the lease, starts the command with ``CUDA_VISIBLE_DEVICES``
set, and keeps the lease alive for as long as the command runs. One thread: it
waits for signals, the command's end and the node manager in one place, so a
signal is never lost between two of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from traitlets import Bool, Enum, Integer, Unicode

from ..protocol import names
from ..protocol.messages import Answer, ErrorAnswer, Incoming, Method, Notice, Notification
from .node import Node, NodeRefused, NodeSilent, connect, refusal
from .table import clean, duration
from .verb import Duration, Refused, Size, UsageError, Verb

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
#: ``si_code`` of a signal that the kernel sent, as the terminal's Ctrl-C is.
SI_KERNEL = 0x80
#: Seconds between attempts to reach a node manager that has gone away.
RETRY = 1.0


class RunApp(Verb):
    """Run any command under a lease."""

    name = "jupyter-gpushare-run"
    arguments = "[--] COMMAND [ARGUMENT...]"
    description = """Run any command under a lease: wait until GPUs are free, start the command with
    CUDA_VISIBLE_DEVICES set to them, and give them back when it ends. Signals are passed on. What
    is not given is taken from JUPYTER_GPUSHARE_GPUS, _MEMORY, _CLASS and _WAIT_TIMEOUT."""
    flags: ClassVar[Any] = {
        **Verb.flags,
        "no-wait": ({"RunApp": {"wait": False}}, "Fail at once when nothing is free."),
    }
    aliases: ClassVar[Any] = {
        **Verb.aliases,
        "gpus": "RunApp.gpus",
        "memory": "RunApp.memory",
        "class": "RunApp.priority_class",
        "timeout": "RunApp.timeout",
        "name": "RunApp.task_name",
    }
    examples = """
    jupyter gpushare run -- python train.py --epochs 3
    jupyter gpushare run --gpus 2 --memory 8GiB --class batch -- ./simulate

    The exit code is the command's; 128+n when signal n ended it; 126 or 127 when it cannot be
    started; 1 when no lease could be had; 2 for wrong usage.
    """

    gpus = Integer(None, allow_none=True, min=1, help="GPUs to ask for. Default: 1.").tag(
        config=True
    )
    memory = Size(help="Memory on each GPU, such as 8GiB. Default: what the quota gives.").tag(
        config=True
    )
    priority_class = Enum(
        ("interactive", "batch"),
        None,
        allow_none=True,
        help="interactive (a person waits) or batch. Default: interactive.",
    ).tag(config=True)
    wait = Bool(True, help="Wait in the queue when nothing is free.").tag(config=True)
    timeout = Duration(
        default_value=None, allow_none=True, help="Wait at most this long: 90s, 10m, 2h."
    ).tag(config=True)
    task_name = Unicode("", help="The name shown to people. Default: the command's.").tag(
        config=True
    )

    def parse_command_line(self, argv: Any = None) -> None:
        """Options up to the command are ours, all that follows is the command's."""
        argv = list(sys.argv[1:] if argv is None else argv)
        at = self._command_starts(argv)
        super().parse_command_line(argv[:at])
        command = argv[at:]
        self.extra_args = command[1:] if command[:1] == ["--"] else command

    def _command_starts(self, argv: list[str]) -> int:
        at = 0
        while at < len(argv) and argv[at] != "--" and argv[at].startswith("-"):
            takes_value = argv[at].removeprefix("--") in self.aliases
            at += 2 if takes_value else 1
        return min(at, len(argv))

    def run(self, arguments: list[str]) -> int:
        if not arguments:
            raise UsageError("run what? jupyter gpushare run -- python train.py")
        self._take_from(os.environ)
        program = shutil.which(arguments[0])
        if program is None:
            return _cannot_start(arguments[0])
        with contextlib.closing(Signals()) as signals:
            lease = _Lease(connect(), signals)
            name = self.task_name or command_name(arguments)
            lease.ask(
                {
                    "task": {"name": name[:256], "kind": "process", "path": program[:4096]},
                    "gpus": self.gpus,
                    "memory": self.memory,
                    "priority_class": self.priority_class,
                    "wait": self.wait,
                },
                self.timeout,
            )
            try:
                return lease.hold(program, arguments)
            finally:
                lease.release()

    def _take_from(self, environ: Mapping[str, str]) -> None:
        """Options that were not given, from the environment."""
        from traitlets import TraitError

        for trait, variable in (
            ("gpus", names.GPUS),
            ("memory", names.MEMORY),
            ("priority_class", names.CLASS),
            ("timeout", names.WAIT_TIMEOUT),
        ):
            value = environ.get(variable)
            if getattr(self, trait) is None and value:
                try:
                    setattr(self, trait, int(value) if trait == "gpus" else value)
                except (TraitError, ValueError) as error:
                    raise UsageError(f"{variable}={value!r} cannot be used: {error}") from error


def command_name(arguments: list[str]) -> str:
    """``python train.py`` without the rest: options may hold what others should not see."""
    program = os.path.basename(arguments[0])
    script = arguments[1] if len(arguments) > 1 else ""
    return program if not script or script.startswith("-") else f"{program} {script}"


def _cannot_start(command: str) -> int:
    found = os.path.exists(command)
    why = "is not executable" if found else "was not found"
    print(f"jupyter gpushare: {command} {why}", file=sys.stderr)
    return 126 if found else 127


class _Lease:
    """A lease of this process, the connection it hangs on, and the command under it."""

    def __init__(self, node: Node, signals: Signals) -> None:
        self._signals = signals
        self._node: Node | None = node
        self._interval = float(node.hello.get("heartbeat_interval") or 5.0)
        self._line = _WaitingLine()
        self._id: str | None = None
        self._secret = ""
        self._gpus: list[dict[str, Any]] = []
        self._lost: str | None = None
        self._next_beat = 0.0

    # -- getting it --------------------------------------------------------------------------

    def ask(self, request: Mapping[str, Any], timeout: float | None) -> None:
        """Request the lease and wait for it. Leaves the queue when a signal comes.

        Raises `NodeRefused`, `NodeSilent`, or `Refused` when the time is over.
        """
        request = {**request, "request_id": f"run-{os.getpid()}-{time.monotonic_ns()}"}
        begun = time.monotonic()
        assert self._node is not None
        answer_id = self._node.send(Method.REQUEST, **request)
        try:
            while not self._gpus:
                waited = time.monotonic() - begun
                if timeout is not None and waited >= timeout:
                    self._leave_queue(request["request_id"])
                    raise Refused(f"No GPU was free within {duration(timeout)}.", "timed_out")
                remaining = 1.0 if timeout is None else min(1.0, timeout - waited)
                if (number := self._signals.wait(remaining, self._node)) is not None:
                    self._leave_queue(request["request_id"])
                    self._line.end()
                    _die_of(number)
                self._line.tick(waited)
                try:
                    self._take_news(answer_id)
                except NodeSilent:
                    # Ask again with the same request id: it never gives a second lease.
                    self._reconnect(begun, timeout)
                    answer_id = self._node.send(Method.REQUEST, **request)
        finally:
            self._line.end()

    def _take_news(self, answer_id: int | str) -> None:
        for message in self._news():
            if isinstance(message, ErrorAnswer) and message.id == answer_id:
                raise refusal(message.error)
            if isinstance(message, Answer) and message.id == answer_id:
                self._granted(message.result)
            elif isinstance(message, Notification) and message.notice is Notice.QUEUED:
                self._line.show(message.params)

    def _granted(self, result: Mapping[str, Any]) -> None:
        self._id, self._secret = result["lease"], result["secret"]
        self._gpus = list(result["gpus"])

    def _leave_queue(self, request_id: str) -> None:
        if self._node is not None:
            with contextlib.suppress(Refused):
                self._node.call(Method.RELEASE, patience=2.0, request_id=request_id)

    def _reconnect(self, begun: float, timeout: float | None) -> None:
        if self._node is not None:
            self._node.close()
        while True:
            try:
                self._node = connect()
                return
            except NodeSilent:
                if timeout is not None and time.monotonic() - begun >= timeout:
                    raise
                if (number := self._signals.wait(RETRY)) is not None:
                    self._line.end()
                    _die_of(number)

    # -- holding it --------------------------------------------------------------------------

    def hold(self, program: str, arguments: list[str]) -> int:
        """Run the command, keep the lease alive, return the command's exit code."""
        assert self._id is not None
        environ = {
            **os.environ,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(gpu["uuid"] for gpu in self._gpus),
            names.LEASE: self._id,
            names.SECRET: self._secret,
        }
        if self._node is not None:
            environ[names.SOCKET] = self._node.path
        try:
            # With the signals as a program expects them: none blocked, SIGPIPE not ignored.
            child = os.posix_spawn(
                program,
                arguments,
                environ,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError as error:
            print(f"jupyter gpushare: {program}: {error.strerror}", file=sys.stderr)
            return 126
        watch = os.pidfd_open(child)
        try:
            while True:
                self._beat()
                wait = max(0.0, min(self._next_beat - time.monotonic(), RETRY))
                number = self._signals.wait(wait, self._node, watch, typed_too=False)
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(watch, number)
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
                self._hear(watch)
        finally:
            os.close(watch)

    def _beat(self) -> None:
        """A sign of life when it is due; a node manager that was restarted is found again."""
        now = time.monotonic()
        if self._lost is not None or now < self._next_beat:
            return
        self._next_beat = now + self._interval
        try:
            if self._node is None:
                self._next_beat = now + RETRY
                node = connect()
                try:
                    node.call(Method.ATTACH, lease=self._id, secret=self._secret)
                except Refused:
                    node.close()
                    raise
                self._node, self._next_beat = node, now + self._interval
            else:
                self._node.send(Method.HEARTBEAT, lease=self._id)
        except NodeRefused as error:
            self._lost = str(error)
            print(f"jupyter gpushare: the lease is lost: {error}", file=sys.stderr)
        except NodeSilent:
            self._drop_node()

    def _hear(self, watch: int) -> None:
        """What the node manager says while the command runs."""
        try:
            news = self._news()
        except NodeSilent:
            self._drop_node()
            return
        for message in news:
            if (
                isinstance(message, Notification)
                and message.notice is Notice.REVOKED
                and message.params.get("lease") == self._id
            ):
                self._lost = str(message.params.get("message") or message.params.get("reason"))
                print(
                    f"jupyter gpushare: {clean(self._lost)} The command is asked to end.",
                    file=sys.stderr,
                )
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(watch, signal.SIGTERM)

    def release(self) -> None:
        """Give it back, if anybody is there to take it; the kernel tells of our end otherwise."""
        if self._node is not None and self._id is not None and self._lost is None:
            with contextlib.suppress(Refused):
                self._node.call(Method.RELEASE, patience=2.0, lease=self._id)
        self._drop_node()

    def _drop_node(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None
            self._next_beat = 0.0

    def _news(self) -> list[Incoming]:
        if self._node is None or not select.select([self._node], [], [], 0.0)[0]:
            return []
        return self._node.receive(0.0)


class Signals:
    """The signals to pass on, as a descriptor that can be waited for beside others (signalfd).

    They stay blocked from here on, so that none is lost; a process that is
    started must be given its own signal mask.
    """

    _INFO = struct.Struct("=IiI116x")  # struct signalfd_siginfo: number, errno, code

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        mask = sum(1 << (number - 1) for number in FORWARDED).to_bytes(128, sys.byteorder)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))
        if self._fd < 0:
            code = ctypes.get_errno()
            raise Refused(f"The system gives no signalfd: {os.strerror(code)}")

    def close(self) -> None:
        os.close(self._fd)

    def wait(
        self, timeout: float, *others: Node | int | None, typed_too: bool = True
    ) -> signal.Signals | None:
        """Wait for a signal or until one of ``others`` can be read; the signal, if it was one.

        Keys typed at the terminal reach every process of the foreground, the
        command too: ``typed_too=False`` leaves them out.
        """
        readable = [other for other in others if other is not None]
        ready, _, _ = select.select([self._fd, *readable], [], [], max(0.0, timeout))
        if self._fd not in ready:
            return None
        number, _errno, code = self._INFO.unpack(os.read(self._fd, self._INFO.size))
        if code == SI_KERNEL and number != signal.SIGHUP and not typed_too:
            return None
        if typed_too and number == signal.SIGWINCH:
            return None  # a terminal's new size is no reason to leave
        return signal.Signals(number)


class _WaitingLine:
    """One line on stderr that says where we stand; rewritten in place on a terminal."""

    def __init__(self) -> None:
        self._text = ""
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def show(self, queued: Mapping[str, Any]) -> None:
        ahead = queued.get("ahead") or {}
        text = f"waiting for GPUs: position {queued.get('position')}"
        counts = [f"{ahead[word]} {word}" for word in ("interactive", "batch") if ahead.get(word)]
        if counts:
            text += f" (ahead: {', '.join(counts)})"
        if text != self._text:
            self._text = text
            if not self._terminal:
                print(f"jupyter gpushare: {text}", file=sys.stderr, flush=True)

    def tick(self, waited: float) -> None:
        """Rewrite the line with the time so far."""
        if self._terminal and self._text:
            self._shown = True
            line = f"\rjupyter gpushare: {self._text}, {duration(waited)} so far\x1b[K"
            print(line, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _die_of(number: signal.Signals) -> NoReturn:
    """End as a shell expects of a program that this signal ended."""
    sys.exit(128 + number)
