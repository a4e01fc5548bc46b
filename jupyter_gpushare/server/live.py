"""``gpushare/api/live``: the status, pushed to a browser over a WebSocket.

A listener is authorized before the connection is upgraded.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web

from jupyter_gpushare.link.nodelink import LinkState, NodeLink
from jupyter_gpushare.pages.live import Audience, Listener
from jupyter_gpushare.pages.viewer import Viewer

from .handlers import AUTH_RESOURCE, Route


class Feed:
    """The newest message about the node manager; made once for all listeners."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self._state: LinkState | None = None
        self._text = ""

    def message(self) -> str:
        if (state := self.link.state) is not self._state:
            self._text = json.dumps(describe(state))
            self._state = state
        return self._text


def describe(state: LinkState) -> dict[str, Any]:
    """Return the message that tells ``state``."""
    if state.status is not None:
        return {"type": "status", "status": state.status}
    return {"type": "unavailable", "reason": "unavailable", "message": state.message}


class Upgrades(WebSocketMixin, Listener, JupyterHandler):
    """Decides who may listen before the connection is upgraded."""

    auth_resource = AUTH_RESOURCE

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.current_user.username, "")

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
        await super().get(*args, **kwargs)


class LiveHandler(Upgrades):
    """One who gets the status."""

    def initialize(self, feed: Feed, audience: Audience) -> None:
        self._feed = feed
        self.listens_in(audience)

    def news(self) -> str:
        return self._feed.message()

    def sources(self) -> list[Coroutine[Any, Any, None]]:
        return [self.hear(self._feed.link, self._changed.set)]


def live_route(link: NodeLink, audience: Audience) -> Route:
    """Return the WebSocket's route, without the base URL."""
    return r"gpushare/api/live", LiveHandler, {"feed": Feed(link), "audience": audience}
