"""A process's line to the node manager: one socket, one daemon thread.

The thread does all the I/O, sends signs of life, and comes back by itself when
the node manager was restarted: it greets again, shows each lease's secret, and
sends what is still unanswered once more (requests carry an id, so a retry
never gets a second lease). The user's thread only ever waits for events, so
Ctrl-C works at any moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from ..._version import __version__
from ...protocol import sockets
from ...protocol.connection import ClientConnection
from ...protocol.errors import ProtocolError, Reason, RemoteError
from ...protocol.messages import (
    PROTOCOL,
    Answer,
    CallId,
    ErrorAnswer,
    Incoming,
    Method,
    Notice,
    Notification,
)
from ..errors import GpuShareError, NodeUnavailable, error_for
from ..words.recalls import Give
from ..words.told import number
from .interrupts import deaf_to_interrupts

_log = logging.getLogger("jupyter_gpushare")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_EAGER_PAUSE: Final = 0.25  # seconds between two tries while somebody waits for an answer
OUTAGE: Final = 30.0  # seconds for which a node manager that was there is waited for
_GOODBYE: Final = 0.5  # seconds that hanging up takes at most
_IDLE_SETTLES: Final = 0.25  # seconds: cells that run one after the other are one busy time
_TRANSIENT: Final = (OSError, ProtocolError)
#: The call that takes another back, and the parameter by which it names what.
_TAKEN_BACK: Final = {
    Method.REQUEST: (Method.RELEASE, "request_id"),
    Method.RESUME: (Method.PARKED, "lease"),
}


class Link(Enum):
    """The state of the connection to the node manager."""

    DOWN = "down"
    UP = "up"
    CLOSED = "closed"


class _Waiting:
    """A call that still waits for its answer. ``again``: it is sent again after a reconnect.

    While it waits in the queue, ``news`` is the newest notification, and ``lease`` the one that it
    names.
    """

    def __init__(self, method: Method, params: Mapping[str, Any], again: bool) -> None:
        self.method, self.params, self.again = method, params, again
        self.sent_at = 0.0
        # Held until it is over. An event would be two more locks, made and taken for each call.
        self.pending = threading.Lock()
        self.pending.acquire()
        self.result: dict[str, Any] | None = None
        self.error: RemoteError | None = None
        self.failure: str | None = None
        self.news: Mapping[str, Any] | None = None
        self.lease: str | None = None

    def fail(self, why: str) -> None:
        """Nobody will answer it."""
        self.failure = why
        self.over()

    def over(self) -> None:
        """Whoever waits for it goes on."""
        if self.pending.locked():
            self.pending.release()


class Greeting:
    """Connects and says hello, within ``timeout`` seconds, together with the ``first`` call.

    ``result`` is hello's answer, and ``first_id`` the first call's id. A request that is no longer
    waited for is taken back. Raises :class:`NodeUnavailable`; :class:`NobodyThere` when no process
    listens at ``path``.
    """

    def __init__(
        self, path: str, token: str | None, timeout: float, first: _Waiting | None = None
    ) -> None:
        self.protocol = ClientConnection()
        self.early: list[Incoming] = []
        self.first_id: CallId | None = None
        deadline = time.monotonic() + timeout
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(timeout)
            try:
                sockets.connect(self.socket, path)
            except (ConnectionRefusedError, FileNotFoundError) as error:
                raise NobodyThere(_unreachable(path, error), Reason.UNAVAILABLE) from error
            except BlockingIOError as error:
                raise OSError("it takes no more connections at present") from error
            hello, line = self.protocol.call(
                Method.HELLO,
                protocol=PROTOCOL,
                client={"name": "jupyter_gpushare", "version": __version__},
                token=token,
            )
            if first is not None:
                self.first_id, more = self.protocol.call(first.method, **first.params)
                line += more
            self.socket.sendall(line)
            answer = self.answer(hello, deadline)
            if isinstance(answer, ErrorAnswer):
                raise NodeUnavailable(
                    f"The node manager does not let this process in: {answer.error.message}",
                    answer.error.reason,
                    answer.error.data,
                )
            self.result = answer.result
            self.socket.setblocking(False)
        except BaseException as error:
            self.take_back(first, waits=not isinstance(error, _TRANSIENT))
            self.socket.close()
            if isinstance(error, _TRANSIENT):
                raise NodeUnavailable(_unreachable(path, error), Reason.UNAVAILABLE) from error
            raise

    def take_back(self, first: _Waiting | None, *, waits: bool = True) -> None:
        """Nobody waits any more for the GPUs that the ``first`` call asks for, if it does.

        It ``waits`` for an instant until that is heard: a line that is hung up may not be read.
        """
        if first is None or first.method not in _TAKEN_BACK:
            return
        method, name = _TAKEN_BACK[first.method]
        with contextlib.suppress(*_TRANSIENT):
            call, line = self.protocol.call(method, **{name: first.params[name]})
            self.socket.send(line)
            if waits:
                self.answer(call, time.monotonic() + _GOODBYE)

    def answer(self, call: CallId, deadline: float) -> Answer | ErrorAnswer:
        """The answer to ``call``, before ``deadline`` (monotonic); what else comes is ``early``.

        Raises :class:`OSError` and ``ProtocolError``.
        """
        found = None
        while found is None:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("it closed the connection")
            for message in self.protocol.receive(data):
                if isinstance(message, Notification) or message.id != call:
                    self.early.append(message)
                else:
                    found = message
            if found is None and time.monotonic() >= deadline:
                raise TimeoutError("timed out")
        return found


class NobodyThere(NodeUnavailable):
    """Nobody listens at the socket, or it does not exist."""


def _unreachable(path: str, error: Exception) -> str:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return (
        f"The GPU node manager at {path} does not answer properly ({why}). "
        "Ask the administrator, or see `jupyter gpushare doctor`."
    )


def _away(path: str, seconds: float) -> str:
    return (
        f"The GPU node manager at {path} has been away for {seconds:g} s (outage_timeout). "
        "Try again later, ask the administrator, or see `jupyter gpushare doctor`."
    )


#: Hears of a lease that has ended, why, and whether its own person has released it.
OnLost = Callable[[str, str, bool], None]
#: The reason of such an end in the notice.
_RELEASED: Final = "released"
#: Signs of life of a lease: whoever has none any more is told so where it gives one.
_ALIVE: Final = (Method.HEARTBEAT, Method.ACTIVITY, Method.ATTACH)


class Session:
    """One connection to the node manager; one class, as its two threads share all that it has.

    They share it under one lock, so each method says on whose side it is (the user's, the thread's,
    or both). ``open``, or the first call, starts the thread.

    ``token`` is asked at each connect, for tokens change. ``timeout`` (seconds)
    bounds connecting and each answer. A request for GPUs waits ``outage`` seconds for a
    node manager that was there and is away. ``on_lost(lease, message, released)``
    and ``on_notice(notification)`` are called on the session's thread. ``released``: the person
    gave the lease back, in the panel, say.
    """

    def __init__(
        self,
        path: str,
        token: Callable[[], str | None],
        timeout: float,
        *,
        outage: float = OUTAGE,
        on_lost: OnLost = lambda lease, message, released: None,
        on_notice: Callable[[Notification], None] = lambda notice: None,
    ) -> None:
        self.path = path
        #: Hello's answer: node, environment, quota, heartbeat interval (seconds).
        self.hello: dict[str, Any] = {}
        self._token = token
        self._timeout = timeout
        self._outage = outage
        self._on_lost = on_lost
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._opening = threading.Lock()  # never held for longer than a hello
        #: The state of the connection at present.
        self.link = Link.DOWN
        self._secrets: dict[str, str] = {}
        self._vouchers: dict[str, str] = {}  # what is shown to a node manager that lost its ledger
        self._queued: dict[str, _Waiting] = {}  # by request or lease
        self._activity: dict[str, str] = {}
        self._told_activity: dict[str, str] = {}
        self._calls: dict[CallId, _Waiting] = {}
        self._unsent: list[_Waiting] = []
        self._greeting: Greeting | None = None
        self._out = b""
        self._wake_in, self._wake_out = -1, -1
        self._thread: threading.Thread | None = None
        #: Since when it is away (monotonic), until it says something: one that breaks after each
        #: hello is away all the time.
        self._down_since = 0.0
        self._settles_at = 0.0
        self._owner = os.getpid()

    # -- the user's side ----------------------------------------------------------

    def open(self, patience: float = 0.0, first: _Waiting | None = None) -> bool:
        """Connect and start the thread, where that was not done.

        Returns whether this call did, and ``first`` was sent with it. A node manager that is being
        restarted is waited for: ``patience`` seconds. One that is there is heard out.
        Raises :class:`NodeUnavailable`; then another session must be made.
        """
        with self._opening:
            if self._thread is not None or self.link is Link.CLOSED:
                return False
            try:
                self._connect(patience, first)
            except BaseException:
                if self._thread is None:
                    if self._greeting is not None:
                        self._greeting.take_back(first)
                    self._hang_up()
                raise  # where the thread runs, Ctrl-C came, and the session goes on
            return True

    def _connect(self, patience: float, first: _Waiting | None) -> None:
        self._greeting = greeting = self._greet(time.monotonic() + patience, first)
        thread = threading.Thread(target=self._run, name="gpushare-session", daemon=True)
        try:
            # Whoever asked can take it back by the thread only.
            with deaf_to_interrupts():
                self._take(greeting)
                if first is not None:
                    first.sent_at = time.monotonic()
                    assert greeting.first_id is not None, "it was sent with hello"
                    self._calls[greeting.first_id] = first
                self._wake_out, self._wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                thread.start()
                self._thread = thread
        except (OSError, RuntimeError) as error:  # no descriptors, no threads, or at its end
            raise NodeUnavailable(
                f"The thread that keeps a GPU lease alive cannot be started ({error}). "
                "Close what else runs in this process, or raise its limits (`ulimit`).",
                Reason.UNAVAILABLE,
            ) from error

    def _greet(self, until: float, first: _Waiting | None) -> Greeting:
        pause, left = _FIRST_PAUSE, self._timeout
        while True:
            try:
                return Greeting(self.path, self._token(), left, first)
            except NodeUnavailable as error:
                # One that ended meanwhile may have granted what was asked: it is asked again.
                ended = first is not None and isinstance(error.__cause__, ConnectionError)
                is_away = isinstance(error, NobodyThere) or ended
                if not is_away or time.monotonic() + pause >= until:
                    raise
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
            # Never no time at all: the last try must be one, however long those before it took.
            left = max(_FIRST_PAUSE, min(self._timeout, until - time.monotonic()))

    def greet_again(self) -> Greeting:
        """Another connection to the same node manager. Raises :class:`NodeUnavailable`."""
        return Greeting(self.path, self._token(), self._timeout)

    def call(self, method: Method, *, again: bool = False, **params: Any) -> dict[str, Any]:
        """Call and wait for the answer, at most the time-out. Opens, if that was not done.

        Raises :class:`GpuShareError` for an error answer or none.
        """
        waiting = _Waiting(method, params, again)
        self._begin(waiting)
        if not waiting.pending.acquire(timeout=self._timeout):
            self._abandon(waiting)
            raise NodeUnavailable(
                f"The GPU node manager did not answer within {self._timeout:g} s. "
                "It may be overloaded: try again, or see `jupyter gpushare doctor`.",
                Reason.TIMED_OUT,
            )
        return self._outcome(waiting)

    def _begin(self, waiting: _Waiting) -> None:
        """Send a call; the first one together with hello."""
        if not self.open(self._timeout, waiting):
            self._submit(waiting)

    def tell(self, method: Method, **params: Any) -> Callable[[], dict[str, Any] | None]:
        """Call without waiting for an answer; what is returned tells the result once it is there.

        Until then, and if the call fails, that is ``None``.
        """
        waiting = _Waiting(method, params, again=False)
        self._submit(waiting)
        return lambda: waiting.result

    def tell_surely(self, method: Method, **params: Any) -> None:
        """Call without waiting for an answer; sent again if the link breaks meanwhile."""
        self._submit(_Waiting(method, params, again=True))

    def gave(self, give: Give, lease: str, **what: Any) -> None:
        """Tell, as surely, what was given of what the node manager can ask for."""
        self.tell_surely(Method.GAVE, lease=lease, give=give.word, **what)

    def request(
        self,
        params: Mapping[str, Any],
        on_queued: Callable[[Mapping[str, Any]], None],
        on_waiting: Callable[[], None],
        wait_timeout: float,
        on_away: Callable[[float], None] = lambda left: None,
    ) -> dict[str, Any]:
        """Ask for a lease and wait in the queue; the result of ``request`` (see docs/protocol.md).

        ``on_queued`` gets each ``queued`` notification and ``on_waiting`` is
        called about four times a second; while the node manager is away
        ``on_away`` instead, with the seconds for which it is still waited for.
        All of them on the caller's thread. ``wait_timeout`` in seconds, 0: for
        ever. Any exception, Ctrl-C too, leaves the queue. Raises :class:`GpuShareError`.
        """
        request_id = str(params["request_id"])
        waiting = _Waiting(Method.REQUEST, params, again=True)

        def left() -> None:
            if waiting.lease is not None:
                self.let_go(waiting.lease)
            # It is sent after a reconnect, too: else a place in the queue that we gave up would
            # be served.
            self.tell_surely(Method.RELEASE, request_id=request_id)

        return self._in_queue(
            request_id, waiting, left, on_queued, on_waiting, wait_timeout, on_away
        )

    def _in_queue(
        self,
        key: str,
        waiting: _Waiting,
        left: Callable[[], None],
        *told: Any,
    ) -> dict[str, Any]:
        """Ask, and wait for the grant; ``left()`` says that it is not waited for any more."""
        try:
            self._queued[key] = waiting
            self._begin(waiting)
            result = self._await_grant(waiting, *told)
            self._queued.pop(key, None)
            return result
        except BaseException:
            with deaf_to_interrupts():
                self._queued.pop(key, None)
                self._abandon(waiting)
                left()
            raise

    def _await_grant(
        self,
        waiting: _Waiting,
        on_queued: Callable[[Mapping[str, Any]], None],
        on_waiting: Callable[[], None],
        wait_timeout: float,
        on_away: Callable[[float], None],
    ) -> dict[str, Any]:
        started = asked_at = time.monotonic()
        shown: Mapping[str, Any] | None = None
        # A grant ends the wait by itself. In between a place in the queue is to be seen soon.
        while not waiting.pending.acquire(
            timeout=0.05 if time.monotonic() - started < 0.5 else 0.25
        ):
            newest = waiting.news
            if newest is not None and newest is not shown:
                shown = newest
                on_queued(newest)
            now = time.monotonic()
            down = self._down_since
            if down and now - down >= self._outage:
                raise NodeUnavailable(_away(self.path, self._outage), Reason.UNAVAILABLE)
            if down and self.link is not Link.UP:
                on_away(self._outage - (now - down))
                asked_at = now  # it has not heard us yet
            else:
                on_waiting()
            # The time is for the queue. One that has said nothing yet is waited for as an answer,
            # below.
            if (newest is not None or down) and wait_timeout and now - started >= wait_timeout:
                raise NodeUnavailable(
                    f"No GPU became free within {wait_timeout:g} s (wait_timeout). "
                    "Try again later, ask for less, or wait longer.",
                    Reason.TIMED_OUT,
                )
            if newest is None and now - asked_at >= self._timeout:
                raise NodeUnavailable(_unreachable(self.path, TimeoutError("no answer")))
        result = self._outcome(waiting)
        if not isinstance(result.get("lease"), str):
            raise NodeUnavailable(_unreachable(self.path, ValueError("a grant without a lease")))
        return result

    def resume(
        self,
        lease: str,
        on_queued: Callable[[Mapping[str, Any]], None],
        on_waiting: Callable[[], None],
        wait_timeout: float,
        on_away: Callable[[float], None] = lambda left: None,
        *,
        wait: bool = True,
    ) -> dict[str, Any]:
        """Ask for the GPUs of a parked lease again, and wait in the queue as :meth:`request` does.

        ``wait`` false: now or never.

        Any exception, Ctrl-C too, leaves the queue and the lease parked. Raises
        :class:`GpuShareError`; :class:`LeaseLost` when the lease has ended.
        """
        waiting = _Waiting(Method.RESUME, {"lease": lease, "wait": wait}, again=True)

        def left() -> None:
            # Refused, it waits for nothing that could be taken back.
            if waiting.error is None:
                self.tell_surely(Method.PARKED, lease=lease)

        return self._in_queue(lease, waiting, left, on_queued, on_waiting, wait_timeout, on_away)

    def hold(self, lease: str, secret: str) -> None:
        """Send signs of life for ``lease`` and attach to it again after a reconnect."""
        with self._lock:
            self._secrets[lease] = secret
            self._told_activity[lease] = "busy"

    def holds(self, lease: str) -> bool:
        """Whether ``lease`` is ours and has not ended, so that we send its signs of life."""
        with self._lock:
            return lease in self._secrets

    def let_go(self, lease: str) -> None:
        """No more signs of life for ``lease``."""
        with self._lock:
            for what in (self._secrets, self._vouchers, self._activity, self._told_activity):
                what.pop(lease, None)

    def give_back(self, lease: str, *, ends: bool) -> None:
        """Release ``lease``, and wait until that is answered; what fails needs no word.

        Sent is not enough where this process ``ends``: a busy node manager may see that before it
        reads the line, and the lease would end as lost.
        """
        self.let_go(lease)
        with contextlib.suppress(GpuShareError):
            self.call(Method.RELEASE, lease=lease, ends=ends)

    def set_activity(self, lease: str, busy: bool) -> None:
        """Note what the task does; the thread tells it. Never waits."""
        with self._lock:
            if lease not in self._secrets:
                return
            state = "busy" if busy else "idle"
            if self._activity.get(lease) == state:
                return
            self._activity[lease] = state
            self._settles_at = 0.0 if busy else time.monotonic() + _IDLE_SETTLES
        self._wake()

    def close(self) -> None:
        """Hang up; waits for half a second at most until all that was told is sent."""
        if os.getpid() != self._owner:
            self.abandon_in_child()
            return
        with self._lock:
            self.link = Link.CLOSED
        self._wake()
        if self._thread is not None:
            self._thread.join(_GOODBYE)

    def abandon_in_child(self) -> None:
        """After a fork: the line is the parent's. Close our copies and forget them."""
        self.link = Link.CLOSED
        self._lock = threading.Lock()  # the parent's threads may hold both
        self._opening = threading.Lock()
        for end in (self._wake_in, self._wake_out):
            with contextlib.suppress(OSError):
                os.close(end)
        if self._greeting is not None:
            self._greeting.socket.close()
        self._thread = None

    # -- shared ---------------------------------------------------------------------

    def _submit(self, waiting: _Waiting) -> None:
        """Send a call at once if no call is in front of it; else the thread sends it."""
        with deaf_to_interrupts(), self._lock:
            if self.link is Link.CLOSED:
                waiting.fail("this process has hung up")
            elif self.link is Link.DOWN and not waiting.again:
                waiting.fail("it cannot be reached at present")
            # Behind what waits already: what a process says must be heard in the order in which it
            # says it.
            elif self.link is Link.DOWN or self._unsent or self._out:
                self._unsent.append(waiting)
            else:
                self._put(waiting)
                with contextlib.suppress(OSError):  # the thread meets the error, too
                    self._push()
                if not self._out:
                    return
        self._wake()

    def _abandon(self, waiting: _Waiting) -> None:
        with self._lock:
            self._unsent = [other for other in self._unsent if other is not waiting]
            self._calls = {key: w for key, w in self._calls.items() if w is not waiting}

    def _outcome(self, waiting: _Waiting) -> dict[str, Any]:
        if waiting.error is not None:
            raise error_for(waiting.error.reason, waiting.error.message, waiting.error.data)
        if waiting.result is None:
            raise NodeUnavailable(
                _unreachable(self.path, ConnectionError(waiting.failure or "no answer")),
                Reason.UNAVAILABLE,
            )
        return waiting.result

    def _wake(self) -> None:
        # Under the lock: a number closed meanwhile could be somebody else's file by now.
        # A full pipe means that the thread is about to wake anyway.
        with self._lock, contextlib.suppress(OSError):
            if self._wake_in >= 0:
                os.write(self._wake_in, b"x")

    # -- the thread's side --------------------------------------------------------------

    def _run(self) -> None:
        # Signals are the main thread's: Ctrl-C must wake it, not us.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._stay_connected()
        except Exception:  # noqa: BLE001 - a bug of ours must not leave anybody waiting for ever
            _log.exception("The session with the node manager has ended")
        finally:
            if os.getpid() == self._owner:
                self._hang_up()

    def _stay_connected(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            up_at = time.monotonic()
            try:
                self._serve()
                return
            except _TRANSIENT as error:
                _log.debug("The node manager is lost: %s", error)
                self._lost_link()
            if time.monotonic() - up_at > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE  # this connection worked, so we try again soon
            while self.link is Link.DOWN:
                if self._sleep(pause):
                    return
                pause = min(_LONGEST_PAUSE, pause * 2)
                with contextlib.suppress(GpuShareError):
                    # The leases are shown before anything is sent again, for that may name them.
                    self._take(Greeting(self.path, self._token(), self._timeout))
                    self._come_back()
            if self._greeting is None or self._greeting.socket.fileno() < 0:
                return  # closed while the wire was down: no goodbye is possible

    def _hang_up(self) -> None:
        """Close everything and wake everybody who still waits."""
        with self._lock:
            if self._greeting is not None:
                self._greeting.socket.close()
            self.link = Link.CLOSED
            for end in (self._wake_in, self._wake_out):
                if end >= 0:
                    os.close(end)
            self._wake_in = self._wake_out = -1
            left = [*self._calls.values(), *self._unsent]
            self._calls, self._unsent = {}, []
        for waiting in left:
            waiting.fail("this process has hung up")

    def _take(self, greeting: Greeting) -> None:
        with self._lock:
            self._greeting = greeting
            self.hello = greeting.result
            self._out = b""
            if self.link is not Link.CLOSED:
                self.link = Link.UP

    def _lost_link(self) -> None:
        """Fail what cannot be sent twice; the rest goes out again after the next hello."""
        self._down_since = self._down_since or time.monotonic()
        with self._lock:
            if self._greeting is not None:
                self._greeting.socket.close()
            if self.link is Link.UP:
                self.link = Link.DOWN
            open_calls = [*self._calls.values(), *self._unsent]
            self._calls, self._unsent = {}, [w for w in open_calls if w.again]
            # Whoever answers next may not know it: a node manager that was restarted, or an older
            # ledger.
            self._told_activity = {}
        for waiting in open_calls:
            if not waiting.again:
                waiting.fail("the connection was lost")

    def _come_back(self) -> None:
        with self._lock:
            held, vouchers = dict(self._secrets), dict(self._vouchers)
        for lease, secret in held.items():
            shown = {"lease": lease, "secret": secret, "voucher": vouchers.get(lease)}
            self._transmit(_Waiting(Method.ATTACH, shown, False))

    def _sleep(self, seconds: float) -> bool:
        """Sleep; True if the session was closed meanwhile. A waiting call shortens the sleep."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ)
            while self.link is not Link.CLOSED:
                if self._unsent:
                    deadline = min(deadline, time.monotonic() + _EAGER_PAUSE)
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if selector.select(left):
                    self._drain()
        return True

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_out, 4096):
                pass

    def _serve(self) -> None:
        """Talk until hung up (returns) or the link breaks (raises)."""
        assert self._greeting is not None
        wire = self._greeting.socket
        # Nonsense must not keep the signs of life away.
        interval = number(self.hello.get("heartbeat_interval"), 0.01, 3600) or 5.0
        next_beat = time.monotonic() + interval
        for early in self._greeting.early:
            self._incoming(early)
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_out, selectors.EVENT_READ)
            selector.register(wire, selectors.EVENT_READ)
            while True:
                # Looked at first, and obeyed last: what was said before it hung up is still sent.
                closing = self.link is Link.CLOSED
                self._gather()
                if time.monotonic() >= next_beat and not closing:
                    next_beat = time.monotonic() + interval
                    self._beat()
                with self._lock:
                    self._push()
                if closing:
                    return
                self._check_silence(interval)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
                selector.modify(wire, wanted)
                wake_at = min(next_beat, self._settles_at or next_beat)
                ready = selector.select(max(0.0, wake_at - time.monotonic()))
                for key, mask in ready:
                    if key.fileobj is not wire:
                        self._drain()
                    elif mask & selectors.EVENT_READ:
                        self._pull(wire)

    def _gather(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, []
            settled = time.monotonic() >= self._settles_at
            if settled:
                self._settles_at = 0.0
            changed = {
                lease: state
                for lease, state in self._activity.items()
                if self._told_activity.get(lease) != state and (settled or state == "busy")
            }
            self._told_activity.update(changed)
        for waiting in unsent:
            self._transmit(waiting)
        for lease, state in changed.items():
            self._transmit(_Waiting(Method.ACTIVITY, {"lease": lease, "state": state}, False))

    def _check_silence(self, interval: float) -> None:
        """A node manager that answers no sign of life hangs: another connection may do better.

        Raises :class:`TimeoutError`.
        """
        oldest = time.monotonic() - max(self._timeout, 2 * interval)
        with self._lock:
            hangs = any(
                waiting.method is Method.HEARTBEAT and waiting.sent_at < oldest
                for waiting in self._calls.values()
            )
        if hangs:
            raise TimeoutError("it does not answer")

    def _beat(self) -> None:
        with self._lock:
            leases = list(self._secrets)
        for lease in leases:
            self._transmit(_Waiting(Method.HEARTBEAT, {"lease": lease}, False))

    def _transmit(self, waiting: _Waiting) -> None:
        with self._lock:
            self._put(waiting)

    def _put(self, waiting: _Waiting) -> None:
        """Put a call behind what is to be sent. Call it under the lock."""
        assert self._greeting is not None
        try:
            call_id, line = self._greeting.protocol.call(waiting.method, **waiting.params)
        except ProtocolError as error:
            waiting.fail(str(error))
            return
        waiting.sent_at = time.monotonic()
        self._calls[call_id] = waiting
        self._out += line

    def _push(self) -> None:
        """Send as much of that as the kernel takes. Call it under the lock."""
        assert self._greeting is not None
        if self._out:
            with contextlib.suppress(BlockingIOError):
                sent = self._greeting.socket.send(self._out)
                self._out = self._out[sent:]

    def _pull(self, wire: socket.socket) -> None:
        assert self._greeting is not None
        try:
            data = wire.recv(65536)  # a larger buffer would be mapped and unmapped each time
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("it closed the connection")
        for message in self._greeting.protocol.receive(data):
            self._incoming(message)

    def _incoming(self, message: Incoming) -> None:
        self._down_since = 0.0
        if isinstance(message, Notification):
            self._notified(message)
            return
        with self._lock:
            waiting = self._calls.pop(message.id, None) if message.id is not None else None
        if waiting is None:
            return
        if isinstance(message, ErrorAnswer):
            waiting.error = message.error
            if waiting.method in _ALIVE and message.error.reason is Reason.UNKNOWN_LEASE:
                self._ended(str(waiting.params.get("lease")), message.error.message, False)
        else:
            waiting.result = message.result
            if waiting.method in (Method.REQUEST, Method.RESUME):
                # Here and not in the user's thread, so that the first sign of life is never late.
                lease, secret = message.result.get("lease"), message.result.get("secret")
                if isinstance(lease, str) and isinstance(secret, str):
                    self.hold(lease, secret)
            self._keep_voucher({**waiting.params, **message.result})
        waiting.over()

    def _keep_voucher(self, said: Mapping[str, Any]) -> None:
        """Keep a lease's newest voucher, which has its present state."""
        lease, voucher = said.get("lease"), said.get("voucher")
        if isinstance(lease, str) and isinstance(voucher, str):
            with self._lock:
                self._vouchers[lease] = voucher

    def _ended(self, lease: str, message: str, released: bool) -> None:
        if self.holds(lease):
            self.let_go(lease)
            self._on_lost(lease, message, released)

    def _notified(self, message: Notification) -> None:
        params = message.params
        if message.notice is Notice.QUEUED:
            with self._lock:
                by_request = self._queued.get(str(params.get("request_id")))
                waiting = by_request or self._queued.get(str(params.get("lease")))
                lease, secret = params.get("lease"), params.get("secret")
                if waiting is not None and isinstance(lease, str) and isinstance(secret, str):
                    # From here on this place in the queue gets signs of life, and is shown again
                    # after a restart.
                    self._secrets.setdefault(lease, secret)
                    waiting.lease = lease
            if waiting is not None:
                waiting.news = params
        elif message.notice is Notice.GRANTED:
            self._keep_voucher(params)
        elif message.notice is Notice.REVOKED:
            released = params.get("reason") == _RELEASED
            self._ended(str(params.get("lease")), str(params.get("message", "")), released)
        self._on_notice(message)
