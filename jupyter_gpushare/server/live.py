"""``gpushare/api/live``: the status, pushed to a browser over a WebSocket.

A listener is authorized before the connection is upgraded. A listener that reads slowly gets fewer,
newer messages: at most one is on its way to it and the next one is made when that has gone, so
nothing piles up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_gpushare.link.nodelink import LinkState, NodeLink

from .handlers import AUTH_RESOURCE

_WRITE_WITHIN = 30.0  # seconds a message may take to leave; then the listener is dropped
_LARGEST_INCOMING = 1024  # bytes; listeners need not send anything


class LiveFeed:
    """The listeners of one server. ``limit`` is how many there may be at once."""

    def __init__(self, link: NodeLink, limit: int) -> None:
        self.link = link
        self.limit = limit
        self._sockets: set[LiveHandler] = set()
        self._state: LinkState | None = None
        self._text = ""
        self._unsubscribe = link.subscribe(self._changed)

    @property
    def full(self) -> bool:
        return len(self._sockets) >= self.limit

    def add(self, socket: LiveHandler) -> None:
        self._sockets.add(socket)

    def remove(self, socket: LiveHandler) -> None:
        self._sockets.discard(socket)

    def message(self) -> str:
        """Return the newest message; made once for all listeners."""
        state = self.link.state
        if state is not self._state:
            self._text = json.dumps(describe(state))
            self._state = state
        return self._text

    def close(self) -> None:
        """Say goodbye to every listener (1001, going away)."""
        self._unsubscribe()
        for socket in tuple(self._sockets):
            socket.close(1001, "The server stops.")

    def _changed(self) -> None:
        for socket in tuple(self._sockets):
            socket.wake()


def describe(state: LinkState) -> dict[str, Any]:
    """Return the message that tells ``state``."""
    if state.status is not None:
        return {"type": "status", "status": state.status}
    return {"type": "unavailable", "reason": "unavailable", "message": state.message}


class Upgrades(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """Decides who may listen before the connection is upgraded."""

    auth_resource = AUTH_RESOURCE

    @property
    def max_message_size(self) -> int:
        return _LARGEST_INCOMING

    @property
    def is_full(self) -> bool:
        """Whether nobody else may listen now."""
        raise NotImplementedError

    @ws_authenticated
    async def get(self, *args: str, **kwargs: str) -> None:
        """Decide who may listen, then upgrade."""
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)
        )
        if not allowed:
            raise web.HTTPError(403, "You may not read gpushare's status on this server.")
        if self.is_full:
            raise web.HTTPError(503, "Too many live connections to this server.")
        upgraded: Awaitable[None] | None = super().get(*args, **kwargs)
        if upgraded is not None:
            await upgraded

    def on_message(self, message: str | bytes) -> None:
        """Listeners only listen."""


class LiveHandler(Upgrades):
    """One listener."""

    def initialize(self, feed: LiveFeed) -> None:
        self.feed = feed
        self._changed = asyncio.Event()
        self._pump_task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return self.feed.full

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        self.feed.add(self)
        self._changed.set()
        self._pump_task = asyncio.get_running_loop().create_task(self._pump())

    def on_close(self) -> None:
        self.feed.remove(self)
        if self._pump_task is not None:
            self._pump_task.cancel()

    def wake(self) -> None:
        """Have the newest message sent when the one before it has left."""
        self._changed.set()

    async def _pump(self) -> None:
        with contextlib.suppress(WebSocketClosedError):
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    async with asyncio.timeout(_WRITE_WITHIN):
                        await self.write_message(self.feed.message())
                except TimeoutError:
                    self.close(1008, "Too slow.")
                    return


def live_routes(feed: LiveFeed) -> list[tuple[str, type[LiveHandler], dict[str, Any]]]:
    """Return the WebSocket's route, without the base URL."""
    return [(r"gpushare/api/live", LiveHandler, {"feed": feed})]
