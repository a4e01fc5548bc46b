"""As much of JupyterHub's REST API as the node manager asks, with its answers as they are.

The shapes were read off a JupyterHub 6.1.1; the server is real HTTP on a free port.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

OWN = "the-node-managers-own-token"


@dataclass
class TinyHub:
    """Users, groups and tokens; a test changes them while the server runs."""

    #: Whose a token is: a user, or ``service:NAME``.
    tokens: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, list[str]] = field(default_factory=dict)
    #: Groups of each user.
    users: dict[str, list[str]] = field(default_factory=dict)
    #: Running servers of each user; "" is the one without a name.
    servers: dict[str, list[str]] = field(default_factory=dict)
    admins: set[str] = field(default_factory=set)
    properties: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: What every question is answered with instead; 0: as it should be.
    broken: int = 0
    #: Answers wait for this; those to some tokens, if any are named.
    held: asyncio.Event | None = None
    holds: set[str] = field(default_factory=set)
    #: So many wait for it.
    waiting: int = 0
    #: Seconds that an answer takes.
    slow: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""
    #: Groups in one answer at most.
    page: int = 200

    @asynccontextmanager
    async def served(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[TinyHub]:
        """Answer on a free port; with ``tls`` as a Hub with ``internal_ssl``."""
        (sock,) = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(
            Application([(r"/hub/api/(.+)", _Handler, {"hub": self})]), ssl_options=tls
        )
        server.add_sockets([sock])
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{sock.getsockname()[1]}/hub/api"
        try:
            yield self
        finally:
            server.stop()
            await server.close_all_connections()

    def answer(self, path: str, token: str, offset: int = 0) -> tuple[int, Any]:
        """Status and body, as the Hub gives them."""
        refused = 403, {"status": 403, "message": None}
        if path == "user":
            owner = self.tokens.get(token)
            if owner is None:
                return refused
            kind, _, service = owner.partition(":")
            if kind == "service" and service:
                scopes = self.scopes.get(token, [])
                return 200, {
                    "kind": "service",
                    "name": service,
                    "admin": False,
                    "scopes": scopes,
                }
            scopes = self.scopes.get(token, [f"read:users:name!user={owner}"])
            return 200, {"kind": "user", "name": owner, "scopes": scopes, "session_id": None}
        if token != OWN:
            return refused
        if path == "groups":
            names = {*self.properties, *(group for of in self.users.values() for group in of)}
            return 200, [
                {"kind": "group", "name": name, "properties": self.properties.get(name, {})}
                for name in sorted(names)[offset : offset + self.page]
            ]
        name = path.removeprefix("users/")
        if name not in self.users:
            return 404, {"status": 404, "message": "Not Found"}
        admin = name in self.admins
        return 200, {
            "kind": "user",
            "name": name,
            "groups": self.users[name],
            "admin": admin,
            "servers": {server: {"name": server} for server in self.servers.get(name, ())},
        }


class _Handler(RequestHandler):
    def initialize(self, hub: TinyHub) -> None:
        self.hub = hub

    async def get(self, path: str) -> None:
        hub = self.hub
        hub.asked[path] += 1
        token = self.request.headers.get("Authorization", "").removeprefix("token ")
        if hub.held is not None and (not hub.holds or token in hub.holds):
            hub.waiting += 1
            await hub.held.wait()
        if hub.slow:
            await asyncio.sleep(hub.slow)
        offset = int(self.get_query_argument("offset", "0"))
        status, body = (hub.broken, {}) if hub.broken else hub.answer(path, token, offset)
        self.set_status(status)
        self.finish(json.dumps(body))


@contextmanager
def served(hub: TinyHub) -> Iterator[None]:
    """Answer from a thread, for tests that are not asynchronous."""
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with hub.served():
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="tinyhub")
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(60)
