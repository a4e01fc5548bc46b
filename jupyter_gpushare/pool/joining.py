"""How a host joins: it shows a secret that works once, and gets a certificate.

An administrator makes a token at the pool and takes it to the host. The token has the pool's
address, its authority (so that nobody else can answer in the pool's place), and the secret. The
pool keeps a hash of the secret only. One JSON-RPC call over TLS does the rest; the host's key
never leaves the host.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ..link.errors import NodeProblem
from ..protocol import secured
from ..protocol.calls import Call, Name, methods, parse_call
from ..protocol.errors import Reason, RemoteProtocolError
from ..protocol.framing import MAX_LINE, encode
from ..protocol.listening import listening
from ..protocol.messages import PEM, ErrorAnswer, call, parse_incoming
from ..protocol.poolcalls import TOKEN_LASTS, HostName
from ..protocol.privateplace import replace_private
from ..protocol.shapes import Range, Text
from .pki import Authority, BadRequest
from .socket import answered
from .words.hosts import Holding

#: Tokens that are open at once.
_MOST_OPEN: Final = 100
#: Hosts that join at the same moment; seconds for the handshake, and for all of it.
_AT_ONCE: Final = 32
_HANDSHAKE: Final = 5.0
_WITHIN: Final = 10.0


class Joining(Enum):
    """The one call that is answered where hosts join."""

    JOIN = "join"


class NotJoined(Exception):
    """A host does not join the pool; the text says why and what to do."""


class PoolAway(NotJoined):
    """Nobody answered. The token may be used up all the same, if the answer was lost."""


@dataclass(frozen=True, slots=True)
class Token:
    """What an administrator takes from the pool to a host."""

    address: str
    port: int
    authority: bytes
    secret: str
    expires: float

    def __str__(self) -> str:
        told = [self.address, self.port, base64.b64encode(self.authority).decode()]
        text = json.dumps([*told, self.secret, self.expires], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Token:
        """Raises :class:`NotJoined` for anything else."""
        try:
            padded = text.strip() + "=" * (-len(text.strip()) % 4)
            address, port, authority, secret, expires = json.loads(
                base64.urlsafe_b64decode(padded.encode("ascii"))
            )
            return cls(
                str(address), int(port), base64.b64decode(authority), str(secret), float(expires)
            )
        except (ValueError, TypeError) as error:
            raise NotJoined(
                "This is no token of a pool, or not all of it. Copy the whole line that "
                "`jupyter gpushare pool token` printed."
            ) from error

    @property
    def pinned(self) -> str:
        """The pool's authority as PEM."""
        return ssl.DER_cert_to_PEM_cert(self.authority)


@dataclass(frozen=True, slots=True)
class _Invitation:
    """An open token: for one host, or, without a name, for a host that is new.

    ``held``: what holds the host that joins by it; without a piece, that is the host itself.
    """

    expires: float
    host: str | None
    by: str
    held: Holding | None = None

    def is_for_same(self, other: _Invitation) -> bool:
        """Whether both let in what holds one piece of an engine: only one host is there."""
        mine, its = self.held, other.held
        if mine is None or its is None or not mine.piece:
            return False
        return (mine.engine, mine.piece) == (its.engine, its.piece)


class Invitations:
    """Secrets that work once, kept in a file as hashes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, _Invitation] = {}
        self._standing: dict[str, _Invitation] = {}
        with contextlib.suppress(FileNotFoundError):
            self._open = msgspec.json.decode(path.read_bytes(), type=dict[str, _Invitation])

    def invite(
        self,
        now: float,
        by: str,
        host: str | None = None,
        *,
        lasts: float = TOKEN_LASTS,
        held: Holding | None = None,
    ) -> tuple[str, float]:
        """A new secret, and when it expires. Only ``host`` may join by it, if named, also again.

        Raises :class:`NotJoined` where too many are open, :class:`OSError`.
        """
        self._expire(now)
        if len(self._open) >= _MOST_OPEN:
            raise NotJoined(f"{_MOST_OPEN} tokens are open already; each expires within an hour.")
        secret = secrets.token_urlsafe(32)
        self._open[_digest(secret)] = _Invitation(now + lasts, host, by, held)
        self._keep()
        return secret, now + lasts

    def stand(self, token: Token, engine: str = "") -> None:
        """Let any number of new hosts, of an ``engine``, join by this token. It stays unwritten."""
        held = Holding(engine, "") if engine else None
        invitation = _Invitation(token.expires, None, "the join token", held)
        self._standing[_digest(token.secret)] = invitation

    def spend(
        self, secret: str, host: str, now: float, *, is_known: bool
    ) -> tuple[str, Holding | None]:
        """Use a secret up, unless it stands. Returns who made it, and what holds the host.

        Raises :class:`NotJoined`, and leaves the secret as it is, where it is not for ``host``.
        """
        self._expire(now)
        digest = _digest(secret)
        invitation = self._standing.get(digest) or self._open.get(digest)
        if invitation is None:
            raise NotJoined(
                "The pool does not take this token: it was used already, or has expired. Make a "
                "new one at the pool with `jupyter gpushare pool token`."
            )
        if invitation.host is None and is_known:
            raise NotJoined(
                f"The pool has a host {host} already. Give this one another name with --name; if "
                "it is the same host, make a token for it at the pool with "
                f"`jupyter gpushare pool token {host}`."
            )
        if invitation.host is not None and invitation.host != host:
            raise NotJoined(
                f"The token is for the host {invitation.host}, and this one says that it is {host}."
            )
        if digest in self._open:
            # Who asks for tokens may have been restarted, and asked again for the same job.
            self._open = {
                one: told
                for one, told in self._open.items()
                if one != digest and not told.is_for_same(invitation)
            }
            self._keep()
        held = invitation.held
        if held is not None and not held.piece:
            held = replace(held, piece=host)
        return invitation.by, held

    def _expire(self, now: float) -> None:
        for known in (self._open, self._standing):
            for digest in [one for one, told in known.items() if told.expires <= now]:
                del known[digest]

    def _keep(self) -> None:
        replace_private(self._path, msgspec.json.encode(self._open))


def _digest(secret: str) -> str:
    # Not a slow hash: a secret has 256 bits, so nobody finds it by trying.
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class JoinParams:
    """What a host says when it joins."""

    secret: Name
    name: HostName
    port: Annotated[int, Range(1, 65535)]
    csr: Annotated[str, Text(PEM)]
    version: Name
    address: Annotated[Name | None, "where the pool reaches it; null: where it calls from"] = None


_parse: Final = partial(parse_call, known_methods=methods({Joining.JOIN: JoinParams}))
_BUG: Final = "The pool could not write it down; its log says why. Make a new token."


class JoinEndpoint:
    """Where hosts join. ``joined`` writes into the pool's books before the host is answered.

    It gets the host's name, its address and port, who invited it, and what holds it.
    ``is_known``: whether the pool has a host of that name. ``wall``: the time in seconds.
    """

    def __init__(
        self,
        authority: Authority,
        invitations: Invitations,
        *,
        is_known: Callable[[str], bool],
        joined: Callable[[str, str, str, Holding | None], Awaitable[None]],
        wall: Callable[[], float],
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._authority = authority
        self._invitations = invitations
        self._is_known = is_known
        self._joined = joined
        self._wall = wall
        self._log = log
        self._server: asyncio.Server | None = None
        # In the order in which they came.
        self._guests: dict[asyncio.Task[None], None] = {}

    async def start(self, address: str, port: int = secured.JOIN_PORT) -> int:
        """Listen. Returns the port. Raises :class:`OSError`."""
        listener = await listening(address, port)
        self._server = await asyncio.start_server(self._come, sock=listener, limit=MAX_LINE)
        bound: int = listener.getsockname()[1]
        return bound

    async def close(self) -> None:
        """Listen no more; whoever joins now is not answered."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._guests):
            task.cancel()
        await asyncio.gather(*self._guests, return_exceptions=True)

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._guests) >= _AT_ONCE:
            # A host joins in a moment: the one that came first has been silent for longest.
            next(iter(self._guests)).cancel()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._guests[task] = None
        task.add_done_callback(lambda done: self._gone(done, writer))

    def _gone(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        # Not where the task ends by itself: one that is cancelled at once never starts.
        del self._guests[task]
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_WITHIN):
                # The present one: it is renewed. Nothing is awaited before, so that no byte of the
                # handshake is taken for a line.
                context = self._authority.join_context()
                await writer.start_tls(context, ssl_handshake_timeout=_HANDSHAKE)
                line = await reader.readline()
                asks = partial(self._answer, writer.get_extra_info("peername")[0])
                writer.write(encode(await answered(line, _parse, asks, self._log, _BUG)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, ValueError):
            pass  # it went away, or says nothing: it is told nothing

    async def _answer(self, peer: str, call: Call) -> dict[str, Any]:
        try:
            return await self._join(call.params, call.params.address or peer)
        except BadRequest as error:
            raise NodeProblem(Reason.BAD_REQUEST.value, str(error)) from error
        except NotJoined as error:
            self._log.warning("%s did not join: %s", peer, error)
            raise NodeProblem(Reason.NOT_ALLOWED.value, str(error)) from error

    async def _join(self, asked: JoinParams, address: str) -> dict[str, Any]:
        now = self._wall()
        # Signed before the secret is used up: a bad request costs no token.
        chain = self._authority.sign(asked.csr, asked.name, now)
        known = self._is_known(asked.name)
        by, held = self._invitations.spend(asked.secret, asked.name, now, is_known=known)
        await self._joined(asked.name, f"{address}:{asked.port}", by, held)
        return {
            "pool": self._authority.pool,
            "name": asked.name,
            "address": address,
            "certificates": chain,
            "authorities": self._authority.authorities,
        }


async def ask(token: Token, params: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Join by a token; the pool's answer. Raises :class:`NotJoined`."""
    if token.expires <= now:
        raise NotJoined(
            "The token has expired. Make a new one at the pool with `jupyter gpushare pool token`."
        )
    where = f"{token.address}:{token.port}"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_WITHIN):
            context = secured.client_context(token.pinned)
            reader, writer = await asyncio.open_connection(
                token.address, token.port, ssl=context, limit=MAX_LINE
            )
            secured.expect(writer.get_extra_info("ssl_object"), secured.POOL)
            writer.write(encode(call(1, Joining.JOIN, {**params, "secret": token.secret})))
            told = parse_incoming(await reader.readline())
    except (ssl.SSLError, secured.NotOfThePool) as error:
        raise NotJoined(
            f"The server at {where} is not the pool that made this token ({error}). Nothing was "
            "sent. Is the address right, and does nothing stand between?"
        ) from error
    except (OSError, TimeoutError) as error:
        said = getattr(error, "strerror", None) or "no answer"
        raise PoolAway(
            f"The pool cannot be reached at {where} ({said}). Does it run, and may this host "
            "connect to it?"
        ) from error
    except (RemoteProtocolError, ValueError) as error:
        raise NotJoined(f"The pool's answer at {where} cannot be read: {error}.") from error
    finally:
        if writer is not None:
            writer.transport.abort()
    if isinstance(told, ErrorAnswer):
        raise NotJoined(told.error.message)
    result = getattr(told, "result", None)
    needed = ("pool", "name", "address", "certificates", "authorities")
    if not isinstance(result, dict) or not all(isinstance(result.get(n), str) for n in needed):
        raise NotJoined(f"The pool's answer at {where} cannot be read.")
    return result
