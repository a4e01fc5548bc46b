"""A server's connection to the node manager, on the server's own event loop.

The Jupyter server has one, JupyterHub's page one for each person who looks.

It keeps itself alive: it connects, says hello, watches, and when the connection is lost it tries
again with a growing, jittered pause. A call meanwhile fails at once with the answer that the node
manager is away; no caller waits for a connection that may never come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from jupyter_gpushare._version import __version__
from jupyter_gpushare.protocol.background import Background, event_or_time
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import ProtocolError, RemoteError, RemoteProtocolError
from jupyter_gpushare.protocol.framing import MAX_LINE_FROM_HOST, MAX_LINE_FROM_NODE
from jupyter_gpushare.protocol.messages import (
    PROTOCOL,
    Answer,
    CallId,
    ErrorAnswer,
    Incoming,
    Method,
    Notice,
    Notification,
)
from jupyter_gpushare.protocol.secured import NotOfThePool, in_words

from .dial import Budget, Host, open_streams
from .errors import NodeProblem, NodeTimedOut, NodeUnavailable

_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)  # seconds before connecting again
_CONNECT_WITHIN = 5.0  # seconds for connecting, hello and watch, each
_CHUNK = 65536  # bytes read at once
# Who does not read will not answer in time either: a call fails then before its time is over.
_MOST_UNSENT = 1 << 20  # bytes that may wait for a node manager that does not read


@dataclass(frozen=True, slots=True)
class LinkState:
    """The present knowledge of the node manager; replaced as a whole at each change.

    ``status`` is ``None`` while no node manager is connected; then ``message``
    says why, for people. ``generation`` counts connections.
    """

    status: Mapping[str, Any] | None
    hello: Mapping[str, Any] | None
    message: str
    generation: int = 0

    @property
    def connected(self) -> bool:
        return self.status is not None


class NodeLink:
    """A self-healing client of one node manager.

    ``find`` returns the socket's path, or a host of the pool (``None``: there is
    none to try, and ``why`` says why). ``token`` returns the secret that identifies
    the caller where peer credentials do not; ``name`` is what the client calls itself.
    ``viewer``: the person for whom the pool asks, as ``hello`` has it; its certificate
    allows that.
    """

    #: Bytes of a line from a host of the pool, at most.
    LONGEST: ClassVar[int] = MAX_LINE_FROM_HOST
    #: The message of the state before the first try has ended.
    UNTRIED: Final = "The connection to the node manager was not tried yet."

    def __init__(
        self,
        *,
        find: Callable[[], str | Host | None],
        why: Callable[[], str | None],
        token: Callable[[], str | None] = lambda: None,
        viewer: Mapping[str, Any] | None = None,
        name: str = "jupyter-server",
        timeout: float = 5.0,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.state = LinkState(None, None, self.UNTRIED)
        self._find = find
        self._why = why
        self._token = token
        self._viewer = viewer
        self._name = name
        self._timeout = timeout
        self._log = log
        #: The certificate (DER) that the host at the other end showed last, if it is one.
        self.shown: bytes | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._protocol = ClientConnection()
        self._waiting: dict[CallId, asyncio.Future[Any]] = {}
        self._subscribers: list[Callable[[], None]] = []
        self._background = Background()
        self._hurry = asyncio.Event()
        self._dropped = ""

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect (needs the running loop)."""
        if not self._background:
            self._background.start(self._run())

    async def close(self) -> None:
        """Disconnect; every pending call hears so."""
        await self._background.cancel()

    def hurry(self) -> None:
        """Try to connect now instead of at the end of the pause."""
        self._hurry.set()

    def drop(self, why: str = "") -> None:
        """End the connection, whose other end is silent, and try again. People are told ``why``."""
        self._dropped = why
        if self._writer is not None:
            self._writer.transport.abort()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each change of :attr:`state`; returns how to stop that."""
        self._subscribers.append(changed)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(changed)

        return unsubscribe

    # -- calls --------------------------------------------------------------------------------

    async def call(
        self, method: Method, *, timeout: float | None = None, **params: Any
    ) -> dict[str, Any]:
        """Ask the node manager and return its result; ``None`` parameters are left out.

        Waits at most ``timeout`` seconds (the link's own by default). Raises
        :class:`NodeUnavailable`, :class:`NodeTimedOut`, or
        :class:`NodeProblem` with the node manager's reason and sentence.
        """
        if not self.state.connected:
            raise NodeUnavailable(self.state.message)
        return await self._ask(method, self._timeout if timeout is None else timeout, **params)

    async def _ask(self, method: Method, timeout: float, **params: Any) -> dict[str, Any]:
        writer = self._writer
        if writer is None or writer.is_closing():
            raise NodeUnavailable(self.state.message)
        if writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            raise NodeTimedOut(method.value, timeout)
        protocol = self._protocol
        call_id, line = protocol.call(method, **params)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        writer.write(line)
        try:
            # Not wait_for(): before Python 3.12 it may lose a cancellation, or what it waited for.
            async with asyncio.timeout(timeout):
                result = await answer
        except TimeoutError:
            raise NodeTimedOut(method.value, timeout) from None
        finally:
            self._waiting.pop(call_id, None)
            protocol.forget(call_id)
        if not isinstance(result, dict):
            raise NodeProblem(
                "unsupported_protocol",
                f"The node manager's answer to {method.value!r} cannot be read.",
            )
        return result

    # -- the connection -----------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                self._hurry.clear()
                generation = self.state.generation
                await self._connect_once()
                failures = 0 if self.state.generation != generation else failures + 1
                # All servers lose a node manager that restarts in the same instant, and must not
                # come back in one.
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)] * random.uniform(0.7, 1.3)
                await event_or_time(self._hurry, pause)
        finally:
            self._set(LinkState(None, None, "The server stops.", self.state.generation))

    async def _connect_once(self) -> None:
        """Connect, serve until the connection ends, and say why it ended."""
        path = self._find()
        if path is None:
            self._lost(self._why() or "There is no node manager on this host.")
            return
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                reader, writer = await open_streams(path)
        except (TimeoutError, OSError, NotOfThePool) as error:
            said = in_words(error)
            self._lost(
                self._why()
                or f"The node manager at {path} cannot be reached ({said}). It is tried again."
            )
            return
        self._writer = writer
        tls = writer.get_extra_info("ssl_object")
        self.shown = None if tls is None else tls.getpeercert(binary_form=True)
        budget, limit = None, MAX_LINE_FROM_NODE
        if isinstance(path, Host):
            budget, limit = path.budget, self.LONGEST
        self._protocol, self._dropped = ClientConnection(limit), ""
        reading = asyncio.create_task(self._read(reader, budget))
        greeting = asyncio.create_task(self._greet())
        try:
            await asyncio.wait({reading, greeting}, return_when=asyncio.FIRST_COMPLETED)
            if greeting.done():
                # First: why ``hello`` was refused says more than that the connection was closed
                # after it.
                greeting.result()
            await reading
            closed = "The node manager closed the connection. It is tried again."
            self._lost(self._dropped or closed)
        except NodeProblem as problem:
            self._lost(problem.message)
        except (OSError, ProtocolError) as error:
            self._log.debug("gpushare: the connection to %s failed", path, exc_info=True)
            said = in_words(error) if isinstance(error, ssl.SSLError) else str(error)
            self._lost(f"The connection to the node manager at {path} failed ({said}).")
        finally:
            # All of it before the next await: close() may cancel us there.
            self._writer = None
            writer.transport.abort()  # no caller waits for unsent messages
            for task in (reading, greeting):
                task.cancel()
            self._fail_waiting()
            await asyncio.gather(reading, greeting, return_exceptions=True)

    async def _greet(self) -> None:
        met = await self._ask(
            Method.HELLO,
            _CONNECT_WITHIN,
            protocol=PROTOCOL,
            client={"name": self._name, "version": __version__},
            token=self._token(),
            viewer=self._viewer,
        )
        status = await self._begin(_CONNECT_WITHIN)
        self._log.info("gpushare: connected to node manager %s", met.get("node", {}).get("name"))
        self._set(LinkState(status, met, "", self.state.generation + 1))

    async def _begin(self, within: float) -> dict[str, Any]:
        """The first document of those that are followed."""
        return await self._ask(Method.WATCH, within)

    def _news(self, message: Notification) -> Any:
        """The newer document in a notice, if it has one."""
        return message.params.get("status", ()) if message.notice is Notice.CHANGED else None

    async def _read(self, reader: asyncio.StreamReader, budget: Budget | None) -> None:
        clock = asyncio.get_running_loop().time
        while data := await reader.read(_CHUNK):
            begun = clock()
            for message in self._protocol.receive(data):
                self._receive(message)
            if budget is not None:
                budget.spend(seconds=clock() - begun)
                # A host that may have been taken over gets no more of our loop than its share,
                # however much it says.
                await budget.may_speak()

    def _receive(self, message: Incoming) -> None:
        match message:
            case Answer(id=call_id, result=result):
                waiting = self._waiting.get(call_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(result)
            case ErrorAnswer(id=call_id, error=error) if call_id is not None:
                waiting = self._waiting.get(call_id)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(_problem(error))
            case Notification() if self.state.connected:
                if (status := self._news(message)) is None:
                    return
                if not isinstance(status, dict):
                    raise RemoteProtocolError("The status that changed is malformed.")
                self._set(LinkState(status, self.state.hello, "", self.state.generation))

    def _lost(self, message: str) -> None:
        if self.state.connected:
            self._log.warning("gpushare: %s", message)
        if self.state.connected or self.state.message != message:
            self._set(LinkState(None, None, message, self.state.generation))

    def _fail_waiting(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(NodeUnavailable(self.state.message))
        self._waiting.clear()

    def _set(self, state: LinkState) -> None:
        self.state = state
        for changed in tuple(self._subscribers):
            try:
                changed()
            except Exception:  # noqa: BLE001 - one listener's bug must not cut the connection
                self._log.warning("gpushare: a listener failed", exc_info=True)


def _problem(error: RemoteError) -> NodeProblem:
    """Turn an error answer into our error; an answer that is no refusal is a protocol mismatch."""
    if error.reason is None:
        return NodeProblem(
            "unsupported_protocol",
            f"The node manager did not understand this server ({error.message}). "
            "Are both of the same version?",
        )
    numbers = {k: v for k, v in error.data.items() if k not in ("reason", "message")}
    return NodeProblem(error.reason.value, error.message, numbers)
