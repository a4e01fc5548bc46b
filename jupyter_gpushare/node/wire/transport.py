"""The node manager's connections: its Unix socket, their limits, and their peers.

One process serves everybody on the host, on one loop. So what one person does, with any number of
connections and calls, may cost others a bounded delay and bounded memory, and no more. Four bounds
see to that, each counted for a person (an *owner*: the environment, or the OS user until it is
known) and not for a connection, of which a person may have thousands:

- how many connections there are (:mod:`.admission`),
- how many calls come, how long they take and how much they leave in the ledger (:mod:`.turnstile`):
  whoever has spent the allowance is not read for a while, and no call is refused for it,
- how many bytes were sent and not read (:mod:`.unread`): nobody waits for a client to read. Status
  changes are dropped first, because a newer one replaces them, and then connections are closed,
- how long a connection may be silent before its hello.

A connection that is closed loses nothing: the client comes back, presents its lease, and is told
again what it missed. So whatever cannot go on with one client ends in closing it.

Who a peer is says the kernel (``SO_PEERCRED``), or the Hub for a token, never the client's own
word. Connections over TLS (:mod:`.tls`) come here when their handshake is over. Their peers are no
users of this host: only a certificate or a token says who they are.

Here nobody knows what a call means: the lines are read, counted, and handed to the
:class:`Handler`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import ssl
import stat
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, cast

from ...daemon.fairness import Purses
from ...daemon.troubles import Trouble
from ...policy.words.model import ProcessId
from ...policy.words.settings import Unit, setting
from ...protocol import messages, secured, sockets
from ...protocol.background import Background
from ...protocol.calls import Call, Hello
from ...protocol.errors import (
    DOMAIN_ERROR,
    INTERNAL_ERROR,
    LocalProtocolError,
    Reason,
    RemoteProtocolError,
)
from ...protocol.framing import MAX_LINE, MAX_LINE_FROM_NODE, Encoded, encode
from ...protocol.messages import CallId, Method, Notice
from ...protocol.nodeside import Phase, ServerConnection
from ..host.processes import container_of
from ..manager import DEAR
from ..people.identity import Identity, IdentityRefused, Peer, Principal, elsewhere
from ..people.osusers import SubordinateIds
from ..views.logs import LogLines, call_tag, say_refused
from .admission import Admission, Places, Refusal
from .turnstile import READ_COSTS, Newcomers, Turnstile
from .unread import Unread

#: Bytes that the kernel did not take at once. A client with more of them counts as not reading.
SMALL_BUFFER: Final = 16 * 1024
#: The size of the kernel's own buffer of sent bytes for each connection; the kernel doubles it.
#: These bytes are not counted, and with the usual size (some 200 KiB) they would exceed the counted
#: ones.
_KERNEL_BUFFER: Final = 32 * 1024
#: The same over TCP: with so few bytes the other kernel waits for more before it acknowledges, and
#: a long answer took fifteen times as long (measured on the loopback).
_TCP_BUFFER: Final = 128 * 1024
#: Bytes that are read of a connection at once.
_READ: Final = 16 * 1024
#: Seconds between two looks whether the socket's name still leads to it.
NAME_LOOK: Final = 2.0
#: Seconds after which a socket for everybody is touched, as a sign that somebody listens.
SIGN_OF_LIFE: Final = 60.0
SO_PEERPIDFD: Final = 77


class SocketInUse(Exception):
    """Another node manager answers on this socket."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one client. Sizes are in bytes, times in seconds; other fields are internal.

    Three limits count the unread bytes of all connections of one owner (an environment; before it
    is known, an OS user). Beyond ``soft_buffer`` status changes are dropped. Beyond
    ``hard_buffer``, or beyond the owner's part of the ``total_buffer`` of all owners, the
    connections with most unread bytes are closed. The kernel holds up to 64 KiB more for each
    connection.
    """

    line: int = MAX_LINE
    connections: int = setting(
        20_000,
        Unit.COUNT,
        "Connections in all. When there are so many, the environment that has most of them "
        "loses one for each newcomer of another.",
        name="most",
        least=1,
    )
    connections_per_user: int = setting(
        2_000,
        Unit.COUNT,
        "Connections of one environment.",
        name="most_per_user",
        least=1,
    )
    strangers: int = setting(
        2_000,
        Unit.COUNT,
        "Connections that may be open without a hello; if there are more, the one that has "
        "been silent for longest is closed.",
        least=1,
    )
    calls_in_flight: int = setting(
        256,
        Unit.COUNT,
        "Open calls of one connection.",
        least=1,
    )
    calls_per_second: float = setting(
        500.0,
        Unit.NUMBER,
        "Calls a second of one environment, over all its connections; a call that keeps the "
        "node manager busy for 1 ms counts as two. Further calls wait; they are not refused.",
        least=1.0,
    )
    burst: int = setting(
        100,
        Unit.COUNT,
        "Calls of one environment at once.",
        least=1,
    )
    recorded_per_second: float = setting(
        8192.0,
        Unit.NUMBER,
        "Bytes a second that the calls of one environment may leave in the ledger, over time. "
        "Its further calls wait.",
        least=1.0,
    )
    recorded_at_once: int = setting(
        4 * 1024 * 1024,
        Unit.BYTES,
        "The same, at once.",
        least=65536,
    )
    hello_timeout: float = setting(
        10.0,
        Unit.SECONDS,
        "Seconds for a new connection to say hello.",
        least=0.1,
    )
    soft_buffer: int = 4 * 1024 * 1024
    hard_buffer: int = 24 * 1024 * 1024
    total_buffer: int = 256 * 1024 * 1024


class Handler(Protocol):
    """Answers the calls of connections. All methods are called on the loop and must not wait."""

    def on_open(self, conn: Connection) -> None: ...
    def on_hello(self, conn: Connection, principal: Principal, call: Call) -> None: ...
    def on_call(self, conn: Connection, call: Call) -> None: ...
    def on_close(self, conn: Connection) -> None: ...


@dataclass(frozen=True, slots=True)
class _Greeting:
    """A hello of a known person, as it waits for its turn: it costs as much as a call."""

    conn: Connection
    principal: Principal
    call: Call

    @property
    def owner(self) -> Hashable:
        return self.principal.environment

    def serve(self) -> bool:
        try:
            self.conn.greet(self.principal, self.call)
        except Exception:  # noqa: BLE001 - it is logged there
            self.conn.failed()
        return False


class Connection(asyncio.BufferedProtocol):
    """One client; one class, as its reading, answers and end hang on the same counts of bytes.

    It is read a line at a time, when it is its owner's turn.
    """

    def __init__(self, transport: Transport, number: int) -> None:
        self.id = number
        self.peer: Peer | None = None
        self.principal: Principal | None = None
        #: The owner whose allowance it spends: an environment; while that is unknown, an OS user;
        #: before the first line, the newcomers.
        self.owner: Hashable = None
        self.process: ProcessId | None = None
        #: Whether it came over TLS.
        self.is_remote = False
        self._holder: secured.Holder | None = None  # of the certificate that it has shown
        self._home = transport
        self._limits = transport.limits
        self._wire: asyncio.Transport | None = None
        self._protocol = ServerConnection(transport.limits.line)
        self._in_flight: set[CallId] = set()
        self._waiting: bytes | None = None  # a line that is not handled yet
        self._deadline: asyncio.TimerHandle | None = None
        self._admitted = False
        self._refusals_told = 0
        self._expires: float | None = None  # when its certificate does, in wall seconds

    # -- asyncio calls these ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        # Above this, what is not read is counted against its owner.
        self._wire.set_write_buffer_limits(high=SMALL_BUFFER)
        sock = self._wire.get_extra_info("socket")
        tls = self._wire.get_extra_info("ssl_object")
        self.is_remote = tls is not None
        size = _TCP_BUFFER if self.is_remote else _KERNEL_BUFFER
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        if self.is_remote:
            self.peer = elsewhere(self._wire.get_extra_info("peername")[0])
        else:
            peer = peer_of(sock)
            self.peer = replace(peer, owner=self._home.subordinates.owner(peer.uid))
        refusal = self._home.admit(self)
        if refusal is not None:
            self.turn_away(*refusal)
            return
        self._admitted = True
        self._deadline = self._home.loop.call_later(self._limits.hello_timeout, self._no_hello)
        if self.is_remote:
            self._shows(tls)
        else:
            self._look_at_process()
        self._home.handler.on_open(self)

    def _shows(self, tls: ssl.SSLObject) -> None:
        """Only the pool's certificate opens anything; a host's is good for answering the pool."""
        try:
            self._holder = secured.holder_of(tls)
            if self._holder is not None and not self._holder.is_pool:
                raise secured.NotOfThePool("Only the pool may call a host, and no other host.")
            self._expires = secured.until(tls)
        except secured.NotOfThePool as error:
            self.turn_away(Reason.NOT_ALLOWED, str(error))

    def _look_at_process(self) -> None:
        assert self.peer is not None
        try:
            self.process = self._home.identify_process(self.peer)
        except OSError as error:
            # Out of descriptors, say: this one client is told, and may come again.
            self._home.looks_trouble.came(f"A connection could not be looked at: {error}")
            why = f"The node manager cannot look at the calling process now: {error.strerror}."
            self.turn_away(Reason.UNAVAILABLE, why)
        else:
            self._home.looks_trouble.is_over()
        if self.peer.pidfd is not None:
            # It has shown that the pid is the peer's; ten thousand need not stay open.
            os.close(self.peer.pidfd)
            self.peer = replace(self.peer, pidfd=None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._home.buffer

    def buffer_updated(self, nbytes: int) -> None:
        home = self._home
        begun, turnstile = home.loop.time(), home.turnstile
        if self.owner is None and self.peer is not None:
            # The OS user alone would not do: everybody's containers may run as the same one.
            self.owner = Newcomers((self.peer.charged, container_of(self.peer.pid)))
        self._protocol.framer.push(home.buffer[:nbytes])
        waits = self._has_line()
        if waits:
            if turnstile.enter(self):
                waits = self._serve(begun, 1 + READ_COSTS)
                if waits:
                    turnstile.again(self)
            else:
                turnstile.charge(self.owner, home.loop.time() - begun, READ_COSTS)
        else:
            turnstile.charge(self.owner, home.loop.time() - begun, READ_COSTS)
            if self._protocol.phase is not Phase.CLOSED:
                # Our clients send hello in one piece. If the first line comes in many, its user
                # pays for the next.
                self._is_of_its_user()
                waits = not turnstile.reads_on(self)
        if waits and self._wire is not None:
            # It is not read while it waits for its turn.
            self._wire.pause_reading()

    def serve(self) -> bool:
        """Handle the waiting line. Returns whether there is another; if not, more is read."""
        return self._serve(self._home.loop.time(), 1)

    def _serve(self, begun: float, calls: float) -> bool:
        line, self._waiting = self._waiting, None
        if line is None:
            # It waited to be read further. That costs as much as a line, so that not all read on at
            # once.
            self._home.turnstile.charge(self.owner, 0.0)
            return self._has_line()
        if self._protocol.phase is Phase.CLOSED:
            return False
        owner = self.owner
        try:
            self._line(line)
        except Exception:  # noqa: BLE001 - it is logged there
            self.failed()
        self._home.turnstile.charge(owner, self._home.loop.time() - begun, calls)
        self._is_of_its_user()
        return self._has_line()

    def failed(self) -> None:
        """Close this one connection after a bug of ours; the client reconnects and asks again."""
        self._home.log.exception("Connection %d: a call could not be handled", self.id)
        self.close()

    def _is_of_its_user(self) -> None:
        """Spend the OS user's allowance from the first line on, unless an environment is known."""
        if isinstance(self.owner, Newcomers):
            self._belongs_to(self.owner.of)

    def _belongs_to(self, owner: Hashable) -> None:
        """Spend another's allowance from now on."""
        self._home.unread.reads(self)
        self.owner = owner
        if self.buffered > SMALL_BUFFER:
            self.pause_writing()

    def _has_line(self) -> bool:
        """Whether a whole line waits to be handled; the connection is read only when none does."""
        if self._protocol.phase is Phase.CLOSED or self._wire is None:
            return False
        if self._protocol.phase is Phase.GREETING:
            # Lines behind hello wait until the caller is identified.
            if self._protocol.framer.holds:
                self._wire.pause_reading()
            return False
        try:
            self._waiting = self._protocol.framer.pop()
        except RemoteProtocolError as error:
            # We do not know where the next message begins, so we can read no more.
            self.turn_away(Reason.BAD_REQUEST, str(error), code=error.code)
            return False
        if self._waiting is not None:
            return True
        self._wire.resume_reading()
        return False

    def pause_writing(self) -> None:
        self._home.unread.stops(self)

    def resume_writing(self) -> None:
        self._home.unread.reads(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._protocol.phase is not Phase.CLOSED:
            self._protocol.move(Phase.CLOSED)
        if self._deadline is not None:
            self._deadline.cancel()
        self._home.unread.reads(self)
        if self._admitted:
            self._home.forget(self)
            self._home.handler.on_close(self)
        if self.peer is not None and self.peer.pidfd is not None:
            os.close(self.peer.pidfd)

    # -- the service calls these --------------------------------------------------

    def reply(self, call_id: CallId, result: Any) -> None:
        """Answer a call."""
        begun = self._home.loop.time()
        self._in_flight.discard(call_id)
        self._send(messages.answer(call_id, result))
        # A long answer takes long to encode; the time counts for the environment that asked.
        took = self._home.loop.time() - begun
        if took > DEAR:
            self._home.turnstile.took(self.owner, took)

    def error(
        self,
        call_id: CallId | None,
        reason: Reason,
        message: str,
        data: dict[str, Any] | None = None,
        code: int = DOMAIN_ERROR,
    ) -> None:
        """Answer a call with an error; ``message`` is for a person."""
        if call_id is not None:
            self._in_flight.discard(call_id)
        self._count(call_id, reason)
        self._send(messages.error_answer(call_id, reason, message, code=code, data=data))

    def notify(self, method: str, params: Mapping[str, object] | Encoded) -> bool:
        """Tell something unasked.

        A ``changed`` is dropped while the client does not read: then the
        answer is False, and the caller tells it again later.
        """
        notice = Notice(method)
        most = min(self._limits.soft_buffer, self._home.unread.budget())
        if notice is Notice.CHANGED and self._is_slow(most):
            return False
        self._send(messages.notification(notice, params))
        return True

    def turn_away(
        self,
        reason: Reason,
        why: str,
        call_id: CallId | None = None,
        code: int = DOMAIN_ERROR,
    ) -> None:
        """Say why it may not stay, as the answer to a call if there is one, and close."""
        self.error(call_id, reason, why, code=code)
        self.close()

    def close(self) -> None:
        """Close when what was said is sent; at once if the client does not read."""
        if self._protocol.phase is not Phase.CLOSED:
            self._protocol.move(Phase.CLOSED)
        if self._wire is not None and not self._wire.is_closing():
            if self._is_slow(self._limits.soft_buffer):
                self._wire.abort()
            else:
                self._wire.close()
                # A client that never reads would keep a closing connection for ever.
                self._home.loop.call_later(self._limits.hello_timeout, self._wire.abort)

    # -- inside -----------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Bytes that were sent and not read."""
        return self._wire.get_write_buffer_size() if self._wire is not None else 0

    def _is_slow(self, most: int) -> bool:
        """Whether the client does not read and its owner has more than ``most`` unread bytes."""
        if self.buffered <= SMALL_BUFFER:
            return self.buffered > most
        return self._home.unread.of(self.owner) > most

    def give_up(self) -> None:
        """Close it at once, with what was not read."""
        # One person's clients must not fill the log either.
        if self._home.lines.tells(self._environment or ("uid", self._uid)):
            self._home.log.warning("Connection %d does not read and is closed", self.id)
        self._home.unread.reads(self)
        if self._wire is not None:
            self._wire.abort()

    def _send(self, message: dict[str, Any]) -> None:
        if self._wire is None or self._wire.is_closing():
            return
        try:
            line = encode(message, MAX_LINE_FROM_NODE)
        except LocalProtocolError as error:
            self._home.log.error("A message could not be sent: %s", error)
            if "id" not in message:
                return  # a notification: an error without an id would end the connection
            line = encode(
                messages.error_answer(
                    message["id"],
                    Reason.UNAVAILABLE,
                    "The node manager made an answer it cannot send; tell the developers.",
                    code=INTERNAL_ERROR,
                )
            )
        # Only earlier unread bytes count: one long message is not the client's fault.
        while (slow := self._home.unread.beyond(self.owner)) is not None:
            slow.give_up()
        if not self._wire.is_closing():
            self._home.unread.adds(self, len(line))
            self._wire.write(line)

    def _line(self, line: bytes) -> None:
        try:
            call = self._protocol.receive(line)
        except RemoteProtocolError as error:
            self._refuse(error.call_id, error.reason, str(error), error.code)
            return
        if call.id in self._in_flight:
            self._refuse(call.id, Reason.BAD_REQUEST, f"A call with id {call.id!r} is still open.")
        elif len(self._in_flight) >= self._limits.calls_in_flight:
            self._refuse(call.id, Reason.RATE_LIMITED, _SLOW_DOWN)
        elif call.method is Method.HELLO:
            self._in_flight.add(call.id)
            self._home.background.start(self._hello(call))
        else:
            self._in_flight.add(call.id)
            self._home.handler.on_call(self, call)

    def _refuse(
        self, call_id: CallId | None, reason: Reason, message: str, code: int = DOMAIN_ERROR
    ) -> None:
        """Answer a call that was never let in: an open call of the same id stays open."""
        self._count(call_id, reason)
        self._send(messages.error_answer(call_id, reason, message, code=code))

    def _count(self, call_id: CallId | None, reason: Reason) -> None:
        self._home.refusals[reason] += 1
        about = call_tag(self.id, call_id), reason, self._environment, self._uid
        log, lines = self._home.log, self._home.lines
        self._refusals_told += say_refused(log, lines, *about, self._refusals_told)

    @property
    def _environment(self) -> str | None:
        return None if self.principal is None else self.principal.environment

    @property
    def _uid(self) -> int:
        return -1 if self.peer is None else self.peer.uid

    async def _hello(self, call: Call) -> None:
        assert self.peer is not None
        self._home.admission.speaks(self, self.peer.charged)
        try:
            principal = await self._identified(call.params)
        except IdentityRefused as error:
            self.turn_away(Reason.NOT_ALLOWED, str(error), call.id)
            return
        except Exception:
            # The border to the code that identifies users: a bug there must not leave a client
            # hanging.
            self._home.log.exception("Connection %d could not be identified", self.id)
            why = "The node manager could not find out who you are; its log says why."
            self.turn_away(Reason.UNAVAILABLE, why, call.id, INTERNAL_ERROR)
            return
        greeting = _Greeting(self, principal, call)
        if self._home.turnstile.enter(greeting):
            greeting.serve()

    async def _identified(self, hello: Hello) -> Principal:
        """Who it is. Raises :class:`IdentityRefused`."""
        assert self.peer is not None
        identity, viewer = self._home.identity, hello.viewer
        if self._holder is not None:
            if viewer is None:
                return Principal(secured.POOL.uri, pool=True)
            return identity.vouched(viewer.name, viewer.groups, viewer.admin)
        if viewer is not None:
            raise IdentityRefused("Only the pool may say for whom it asks, by its certificate.")
        if self.is_remote and not (identity.by_token and hello.token):
            raise IdentityRefused(_NOBODY)
        return await identity.identify(self.peer, hello.token)

    def greet(self, principal: Principal, call: Call) -> None:
        """Let ``principal`` in, whose turn it is."""
        # It may have gone, or have been given up, while the Hub was asked who it is.
        if self._protocol.phase is not Phase.GREETING:
            return
        begun = self._home.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
        refusal = self._home.greet(self, principal)
        if refusal is not None:
            self._refuse(call.id, Reason.RATE_LIMITED, refusal)
            self.close()
            return
        self.principal = principal
        self._belongs_to(principal.environment)
        self._protocol.move(Phase.READY)
        self._home.handler.on_hello(self, principal, call)
        self._check_later(call.params.token)
        turnstile, now = self._home.turnstile, self._home.loop.time()
        turnstile.charge(principal.environment, now - begun)
        # A call that came behind hello is decided together with it.
        if self._has_line() and turnstile.enter(self) and self._serve(now, 1):
            turnstile.again(self)

    def _check_later(self, token: str | None) -> None:
        if self._expires is not None:
            # A connection must not outlive the certificate that opened it.
            left = max(0.0, self._expires - self._home.wall())
            self._deadline = self._home.loop.call_later(left, self.close)
            return
        seconds = self._home.identity.recheck
        if seconds is not None and token is not None:
            self._deadline = self._home.loop.call_later(
                seconds, lambda: self._home.background.start(self._check_again(token))
            )

    async def _check_again(self, token: str) -> None:
        """A token may be revoked, or its owner's groups change, while a connection lives."""
        assert self.peer is not None
        try:
            principal = await self._home.identity.identify(self.peer, token)
        except IdentityRefused as error:
            self.turn_away(Reason.NOT_ALLOWED, str(error))
            return
        except Exception:
            # As at hello: a peer that cannot be checked again must not stay for ever.
            self._home.log.exception("Connection %d could not be identified again", self.id)
            self.close()
            return
        if self._protocol.phase is not Phase.READY:
            return
        if principal != self.principal:
            # It comes back by itself, and then is who it is now.
            self.close()
            return
        self._check_later(token)

    def _no_hello(self) -> None:
        if self.principal is None:
            self.turn_away(Reason.TIMED_OUT, "No hello came in time.")


_NOBODY: Final = (
    "From another host only the pool of this node manager may come in, by its certificate, or "
    "somebody with a JupyterHub token where JupyterHub says who people are."
)
_SLOW_DOWN: Final = "Too many open calls; wait for answers before you send more."


# The kernel's answers to SO_PEERPIDFD when the peer has ended and was waited for; they differ by
# version. (From Linux 6.16 on it gives a pidfd all the same.)
_ENDED: Final = frozenset({errno.ESRCH, errno.EINVAL, errno.ENODATA})


def peer_of(sock: socket.socket) -> Peer:
    """The peer as the kernel tells it. The pid is the one at the time of ``connect``.

    The pid is 0 for a process that has ended since: a process that waited long to be accepted may
    be gone, and another may have its pid.
    """
    pid, uid, gid = sockets.peer(sock)
    pidfd: int | None = None
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        fcntl.fcntl(pidfd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        if error.errno in _ENDED:
            pid = 0
        # Otherwise it is a Linux before 6.5.
        pidfd = None
    return Peer(pid, uid, gid, pidfd)


def turnstile_of(limits: Limits) -> Turnstile:
    """A turnstile on this loop, for what each owner may do."""
    return Turnstile(
        asyncio.get_running_loop(),
        # An owner owes a second's calls at most, so one slow call does not stop its heart-beats.
        Purses(limits.calls_per_second, float(limits.burst), owes=limits.calls_per_second),
        Purses(limits.recorded_per_second, float(limits.recorded_at_once)),
    )


class Transport:
    """Listens on ``path`` and serves :class:`Connection` objects to ``handler``.

    ``shared`` makes a socket that every user of the host may connect to;
    otherwise it is for the owner only. ``identify_process`` names the
    peer's process, ``None`` when it is gone. ``inherited`` listens at
    ``path`` already and belongs to somebody else, who made it with the mode
    it has: it is neither changed nor removed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: Limits,
        turnstile: Turnstile,
        identity: Identity,
        handler: Handler,
        identify_process: Callable[[Peer], ProcessId | None],
        shared: bool = False,
        inherited: socket.socket | None = None,
        subordinates: SubordinateIds | None = None,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
        lines: LogLines | None = None,
    ) -> None:
        self.path = Path(path)
        self.loop: Final = asyncio.get_running_loop()
        self.subordinates = subordinates or SubordinateIds()
        self.limits = limits
        self.turnstile = turnstile
        self.identity = identity
        self.handler = handler
        self.identify_process = identify_process
        self.wall = wall
        self.log = log or logging.getLogger(__name__)
        self.looks_trouble = Trouble(self.log, self.loop.time, "Connections are looked at again")
        #: Calls and connections that were answered with an error.
        self.refusals = Counter({reason: 0 for reason in Reason})
        self.lines = lines or LogLines(self.loop.time)
        self._shared = shared
        self._inherited = inherited
        self._server: asyncio.Server | None = None
        self._name: os.stat_result | None = None
        self._numbers = count(1)
        self.admission: Admission[Connection] = Admission(
            Places(limits.strangers, limits.connections, limits.connections_per_user)
        )
        self._connections: set[Connection] = set()
        #: One for all: what is read into it is copied before anything else is read.
        self.buffer = memoryview(bytearray(_READ))
        self.unread: Unread[Connection] = Unread(
            limits.hard_buffer, limits.total_buffer, lambda call: self.loop.call_soon(call)
        )
        self.background = Background()
        self._is_closing = False

    @property
    def open_connections(self) -> int:
        """Clients that are connected."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen. Raises :class:`SocketInUse` when somebody answers there, :class:`OSError`."""
        await self._listen(self._bind() if self._inherited is None else self._inherited)
        if self._inherited is None:
            self.background.start(self._keep_name())

    async def _listen(self, sock: socket.socket) -> None:
        # asyncio accepts as many connections at once as the backlog. We accept few at once, so that
        # a flood does not hold up the open connections, and let many wait.
        self._server = await self.loop.create_unix_server(
            self.connect, sock=sock, backlog=8, **sockets.KEEPS_FILE
        )
        sock.listen(4096)
        self._name = self._named()

    def _named(self) -> os.stat_result | None:
        """What is at our path; ``None`` if there is nothing, or nobody may look."""
        try:
            return self.path.lstat()
        except OSError:
            return None

    def _is_ours(self, there: os.stat_result | None) -> bool:
        ours = self._name
        return there is not None and ours is not None and os.path.samestat(there, ours)

    async def _keep_name(self) -> None:
        """Listen anew where somebody emptied the socket's folder: nobody would find us again.

        Who is connected stays so.
        """
        trouble = Trouble(self.log, self.loop.time, f"{self.path} leads here again")
        while True:
            await asyncio.sleep(NAME_LOOK)
            # A home directory may be on a network file system that hangs.
            there = await asyncio.to_thread(self._named)
            if there is not None and self._is_ours(there):
                trouble.is_over()
                if self._shared and self.wall() - there.st_mtime > SIGN_OF_LIFE:
                    # If we are killed, the name's time shows since when nobody listens.
                    with contextlib.suppress(OSError):
                        os.utime(self.path)
            else:
                deaf = self._server
                try:
                    await self._listen(self._bind())
                except (OSError, SocketInUse) as error:
                    trouble.came(f"New clients do not find this node manager any more: {error}")
                    continue
                self.log.warning("The name %s was taken away, and is there again", self.path)
                if deaf is not None:
                    deaf.close()

    async def close(self) -> None:
        """Close all connections and remove the socket, unless it was inherited.

        A client that connects to an inherited socket from now on waits for the next node manager.
        """
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        await self.background.cancel()
        self.identity.close()
        if self._inherited is not None:
            self._inherited.close()
        elif self._server is not None and self._is_ours(self._named()):
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        # Let connection_lost run for the connections that could be closed at once.
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> tuple[Reason, str] | None:
        """Count a new connection; the reason and a sentence when it may not come in."""
        assert connection.peer is not None
        uid = connection.peer.uid
        is_foreign = not connection.is_remote and uid not in (0, os.getuid())
        if self._inherited is not None and not self._shared and is_foreign:
            # Its mode is not ours: what our own socket's would keep out is kept out here.
            return Reason.NOT_ALLOWED, (
                "This node manager serves only the user who runs it. For everybody the "
                "administrator starts it with --shared."
            )
        if self._is_closing:
            # It was accepted just before the listening ended.
            return Reason.RATE_LIMITED, "The node manager is ending; try again later."
        self._connections.add(connection)
        goes = self.admission.arrive(connection, connection.peer.charged)
        if goes is not None:
            goes.turn_away(Reason.RATE_LIMITED, Refusal.SILENT.value)
        return None

    def greet(self, connection: Connection, principal: Principal) -> str | None:
        """Count a connection whose principal is known now; a sentence when it may not stay."""
        refusal, goes = self.admission.greet(connection, principal.environment)
        if goes is not None:
            goes.turn_away(Reason.RATE_LIMITED, Refusal.GIVEN_UP.value)
        return None if refusal is None else refusal.value

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        assert connection.peer is not None
        self._connections.discard(connection)
        principal = connection.principal
        whose = None if principal is None else principal.environment
        self.admission.leave(connection, connection.peer.charged, whose)

    def connect(self) -> Connection:
        """A new connection, for whoever listens."""
        return Connection(self, next(self._numbers))

    def _bind(self) -> socket.socket:
        # In a shared folder we make only the last one: others could have made those above it.
        mode = 0o755 if self._shared else 0o700
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(mode=mode, parents=not self._shared)
            self.path.parent.chmod(mode)  # whatever the mask
        if self._shared and (closed := _closed_to_others(self.path)) is not None:
            self.log.warning(
                "Nobody but its owner may enter %s, so nobody else can reach %s. Name a socket "
                "elsewhere (--socket), or let others enter: chmod o+x %s",
                *(closed, self.path, closed),
            )
        self._remove_stale()
        sock = sockets.bound(self.path, 0o111 if self._shared else 0o177)
        sock.setblocking(False)
        return sock

    def _remove_stale(self) -> None:
        try:
            there = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(there.st_mode):
            raise SocketInUse(f"{self.path} exists and is no socket; move it away.")
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        probe.settimeout(1.0)
        try:
            sockets.connect(probe, self.path)
        except ConnectionRefusedError:
            self.path.unlink()
        except OSError as error:
            raise SocketInUse(f"{self.path} cannot be checked: {error}") from error
        else:
            raise SocketInUse(f"Another node manager answers on {self.path}.")
        finally:
            probe.close()


def _closed_to_others(path: Path) -> Path | None:
    """The first folder on the way to ``path`` that neither its group nor others may enter."""
    for folder in reversed(path.absolute().parents):
        with contextlib.suppress(OSError):
            if not folder.stat().st_mode & 0o011:
                return folder
    return None
