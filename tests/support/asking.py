"""Sends requests to an in-process Jupyter server, as nobody or with credentials."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import HTTPRequest, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.testing import bind_unused_port

BODIES = {
    ("revoke", "POST"): {"reason": "needed elsewhere"},
    ("drain", "POST"): {"reason": "a fan is replaced"},
    ("pin", "POST"): {"seconds": 60},
}


class Asker:
    """Sends requests to the in-process server as nobody, or with credentials."""

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.root = f"http://127.0.0.1:{port}"
        self.http = SimpleAsyncHTTPClient(force_instance=True)

    async def send(
        self,
        path: str,
        verb: str,
        *,
        upgrade: bool = False,
        form: Mapping[str, str] | None = None,
        **headers: str,
    ) -> HTTPResponse:
        sent = BODIES.get((path.rpartition("/")[2], verb), {"gpus": 1} if verb == "PUT" else {})
        body = json.dumps(sent) if verb in ("POST", "PUT", "PATCH") else None
        if form is not None:
            body = urlencode(form)
            headers["Content_Type"] = "application/x-www-form-urlencoded"
        if upgrade:
            headers |= {
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            }
        request = HTTPRequest(
            self.root + path,
            method=verb,
            body=body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            follow_redirects=False,
            request_timeout=20,
        )
        return await self.http.fetch(request, raise_error=False)

    @property
    def token(self) -> dict[str, str]:
        return {"Authorization": f"token {self.app.identity_provider.token}"}

    async def cookie(self) -> dict[str, str]:
        """Log in as a browser does; returns the cookie header with the XSRF cookie in it."""
        answer = await self.send(
            f"{self.app.base_url}tree?token={self.app.identity_provider.token}", "GET"
        )
        page = await self.send(f"{self.app.base_url}login", "GET", Cookie=_cookies(answer))
        return {"Cookie": "; ".join(filter(None, (_cookies(answer), _cookies(page))))}


@asynccontextmanager
async def asking(app: Any) -> AsyncIterator[Asker]:
    """Serve ``app`` on a port of its own."""
    socket, port = bind_unused_port()
    server = HTTPServer(app.web_app)
    server.add_socket(socket)
    asker = Asker(app, port)
    try:
        yield asker
    finally:
        asker.http.close()
        server.stop()
        await server.close_all_connections()


def _cookies(answer: HTTPResponse) -> str:
    return "; ".join(c.split(";", 1)[0] for c in answer.headers.get_list("Set-Cookie"))
