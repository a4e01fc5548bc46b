"""The node manager's TLS port for its pool, and for people with a Hub token: never plain TCP.

A connection is handed on when its handshake is over. Until then it is bounded: in number, in time,
and by whose it is, so that no flood takes all places, or the time of clients of this host. Whose it
is goes by what an attacker cannot make: on this host by the user, elsewhere by the network, for
one person may have many addresses of it. From where the pool came is remembered over restarts, and
has an allowance of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from ...daemon.fairness import Purse, Purses
from ...daemon.loopback import Whose, whose
from ...daemon.troubles import Trouble
from ...protocol import secured
from ...protocol.background import Background
from ...protocol.listening import listening
from .admission import Admission, Places

#: Handshakes at once. When there are more, the oldest of the network with most of them ends.
_HANDSHAKES: Final = 64
#: Seconds for a handshake.
WITHIN: Final = 5.0
#: Handshakes a second and at once: of all strangers, and of one strange network. One takes some
#: milliseconds.
_ALL: Final = (50.0, 100.0)
_EACH: Final = (10.0, 20.0)
#: The same of where the pool came from already: many people may open its pages at once.
_POOLS: Final = (200.0, 400.0)
_MOST_POOLS: Final = 4
#: Bytes of a client that are taken before the handshake is over: certificates are shorter.
_MOST_BEFORE: Final = 64 * 1024
#: Seconds after which it is tried again where no connection can be taken.
_PAUSE: Final = 1.0


class SecuredWire(asyncio.Protocol):
    """TLS around one TCP connection: a protocol to asyncio, and a transport to what is inside.

    asyncio's own keeps apart what it has encrypted and not sent; then nobody could count the bytes
    that a client leaves unread. Here a line is encrypted when it is written, and counts until the
    kernel takes it.
    """

    def __init__(
        self,
        peer: str,
        context: ssl.SSLContext,
        inside: Callable[[], asyncio.BufferedProtocol],
        arrived: Callable[[SecuredWire], None],
        shaken: Callable[[SecuredWire], None],
        whose: Whose,
    ) -> None:
        #: The address at the other end, which may be gone by the time that it is asked for.
        self.peer: Final = peer
        self.whose: Final = whose
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: Final = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make_inside = inside
        self._inside: asyncio.BufferedProtocol | None = None
        self._arrived, self._shaken = arrived, shaken
        self._wire: asyncio.Transport | None = None
        self._taken = 0
        self._is_paused = False

    # -- asyncio calls these --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = cast(asyncio.Transport, transport)
        self._arrived(self)

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            if self._inside is None:
                self._taken += len(data)
                self._shake()
            if self._inside is not None:
                self._pump()
        except ssl.SSLError:
            # What it says is no TLS, or not for us. The alert tells its end why.
            self._flush()
            self.close()

    def pause_writing(self) -> None:
        if self._inside is not None:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        if self._inside is not None:
            self._inside.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._shaken(self)
        if self._inside is not None:
            self._inside.connection_lost(error)

    # -- a transport's --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt and send; nothing is kept here."""
        left = memoryview(data)
        try:
            while left:  # OpenSSL may take a part at a time
                left = left[self.tls.write(left) :]
        except ssl.SSLError:  # it has ended its side already
            self.abort()
        else:
            self._flush()

    def get_write_buffer_size(self) -> int:
        return self.wire.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.wire.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "ssl_object":
                return self.tls
            case "peername":
                return (self.peer,)
        return self.wire.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.wire.is_closing()

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.wire.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            # What was decrypted meanwhile comes first, but not inside of the caller's call.
            asyncio.get_running_loop().call_soon(self._go_on)

    def close(self) -> None:
        """Close when what was written is sent."""
        if not self.wire.is_closing():
            with contextlib.suppress(ssl.SSLError):  # it has not said goodbye: it need not
                self.tls.unwrap()
            self._flush()
            self.wire.close()

    def abort(self) -> None:
        self.wire.abort()

    # -- inside ---------------------------------------------------------------------------------

    @property
    def is_pools(self) -> bool:
        """Whether the pool's certificate was shown."""
        try:
            return self.tls.version() is not None and secured.holder_of(self.tls) == secured.POOL
        except (secured.NotOfThePool, ValueError):  # before the handshake is over
            return False

    @property
    def wire(self) -> asyncio.Transport:
        """The TCP connection."""
        assert self._wire is not None
        return self._wire

    def _shake(self) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            # A client that never ends its handshake must not fill our memory within its time.
            if self._taken > _MOST_BEFORE:
                self.abort()
            return
        self._flush()
        self._shaken(self)
        self._inside = self._make_inside()
        self._inside.connection_made(cast(asyncio.Transport, self))

    def _go_on(self) -> None:
        if self.is_closing() or self._is_paused:
            return
        self.data_received(b"")
        if not self._is_paused and not self.is_closing():
            self.wire.resume_reading()

    def _pump(self) -> None:
        """Give what is decrypted to the inside, until it wants no more."""
        assert self._inside is not None
        while not self._is_paused and not self.is_closing():
            buffer = cast(memoryview, self._inside.get_buffer(-1))
            try:
                size = self.tls.read(len(buffer), cast(Any, buffer))
            except ssl.SSLWantReadError:
                break
            if not size:  # it said goodbye
                self.close()
                break
            self._inside.buffer_updated(cast(int, size))
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and not self.wire.is_closing():
            self.wire.write(self._outgoing.read())


class TlsPort:
    """Listens, and hands on what has shaken hands.

    ``context`` gives the present certificates; ``inside`` makes the connection that is handed on.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        inside: Callable[[], asyncio.BufferedProtocol],
        *,
        log: logging.Logger,
        within: float = WITHIN,
        seen: Iterable[str] = (),
        keep_seen: Callable[[Iterable[str]], None] = lambda places: None,
    ) -> None:
        self._context, self._inside = context, inside
        self._keep_seen = keep_seen
        self._within = within
        self._log = log
        self._admission: Admission[SecuredWire] = Admission(Places(_HANDSHAKES, 0, 0))
        now = time.monotonic()
        self._pools = {place: Purse(*_POOLS, now) for place in [*seen][-_MOST_POOLS:]}
        self._deadlines: dict[SecuredWire, tuple[str, asyncio.TimerHandle]] = {}
        self._background = Background()
        self._listener: socket.socket | None = None

    async def start(self, address: str, port: int) -> tuple[str, int]:
        """Listen; the address that it is. Raises :class:`OSError`."""
        listener = self._listener = await listening(address, port)
        self._background.start(self._accept(listener))
        host, bound = listener.getsockname()[:2]
        return str(host), int(bound)

    async def close(self) -> None:
        """Listen no more, and end the handshakes. Connections are their owner's."""
        await self._background.cancel()
        if self._listener is not None:
            self._listener.close()
        for wire in tuple(self._deadlines):
            wire.abort()
        await asyncio.sleep(0)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        everybody = Purse(*_ALL, loop.time())
        each = Purses(*_EACH)
        trouble = Trouble(self._log, loop.time, "The pool's port takes connections again")
        while True:
            # An accept that is ready at once does not give way by itself.
            # Between any two the loop does everything else.
            await asyncio.sleep(0)
            try:
                sock, where = await loop.sock_accept(listener)
                now, whence = loop.time(), whose(sock, where[:2])
                # A flood of strangers must not keep the pool out, so it does not spend what they
                # share.
                if (pools := self._pools.get(whence.place)) is not None:
                    may = pools.pays(1.0, now)
                else:
                    may = each.of(whence.network, now).pays(1.0, now) and everybody.pays(1.0, now)
                if not may:
                    sock.close()
                    continue
                await self._begin(sock, where[0], whence)
                trouble.is_over()
            except OSError as error:
                # Out of descriptors, say, or the certificates cannot be read.
                trouble.came(f"The pool's port takes no connection: {error}")
                await asyncio.sleep(_PAUSE)

    async def _begin(self, sock: socket.socket, peer: str, whence: Whose) -> None:
        try:
            # Lines are small and are answered at once: they must not wait for more to fill a
            # packet.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Else a host that was switched off would keep its place, as no packet says that it has
            # gone.
            keep = (socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in keep:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            hear = self._arrived, self._shaken
            wire = SecuredWire(peer, self._context(), self._inside, *hear, whence)
        except OSError:
            sock.close()
            raise
        await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, sock)

    def _arrived(self, wire: SecuredWire) -> None:
        whence = wire.whose
        group = whence.place if whence.place in self._pools else whence.network
        deadline = asyncio.get_running_loop().call_later(self._within, wire.abort)
        self._deadlines[wire] = group, deadline
        if (goes := self._admission.arrive(wire, group)) is not None:
            goes.abort()

    def _shaken(self, wire: SecuredWire) -> None:
        """The handshake is over, by whatever end; called a second time when all is."""
        group, deadline = self._deadlines.pop(wire, (None, None))
        if group is not None and deadline is not None:
            deadline.cancel()
            self._admission.leave(wire, group, None)
            if wire.is_pools and wire.whose.place not in self._pools:
                self._met(wire.whose.place)

    def _met(self, place: str) -> None:
        """The pool came from there: it is let in from there, also after a restart."""
        if len(self._pools) >= _MOST_POOLS:
            del self._pools[next(iter(self._pools))]
        self._pools[place] = Purse(*_POOLS, asyncio.get_running_loop().time())
        try:
            self._keep_seen(tuple(self._pools))
        except OSError as error:
            self._log.error("From where the pool comes could not be written down: %s", error)
