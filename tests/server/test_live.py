"""The live WebSocket tells each change to those who may watch, and tells nobody else anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import websocket
from support.jupyter import TOKEN, Home, Server
from support.node import NodeClient

LIVE = "gpushare/api/live"


def next_status(socket: Any) -> dict[str, Any]:
    message = json.loads(socket.recv())
    assert message["type"] == "status", message
    status: dict[str, Any] = message["status"]
    return status


def test_each_change_is_told(home: Home) -> None:
    server = home.serve()
    server.wait_connected()
    socket = server.websocket(LIVE)
    raw = socket.sock  # websocket-client forgets to close it when the server ends first
    try:
        first = next_status(socket)
        assert len(first["gpus"]) == 2
        assert first["leases"] == []
        with NodeClient(home.socket) as client:
            granted = client.request(gpus=1)
            status = next_status(socket)
            while not status["leases"]:
                status = next_status(socket)
            assert status["leases"][0]["id"] == granted["lease"]
            assert granted["secret"] not in json.dumps(status)
        # What listeners say is no matter, unless it is long.
        socket.send("hello")
        socket.ping()
        socket.send("x" * 5000)
        while socket.recv_data()[0] != websocket.ABNF.OPCODE_CLOSE:
            pass
    finally:
        socket.close()
        raw.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """A server without a node manager, for two listeners."""
    options = ("--GpuShareExtension.embed=never", "--GpuShareExtension.live_limit=2")
    with Home.make() as home:
        yield home.serve(*options, simulate=None)


def test_another_site_cannot_listen_with_a_browsers_cookie(alone: Server) -> None:
    with alone.anonymous() as browser:
        browser.get(f"api/contents?token={TOKEN}")
        assert browser.get("api/kernels").status_code == 200  # the cookie logs in
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    own = alone.url.rstrip("/")
    connect(alone, {"Cookie": cookie, "Origin": own})
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        connect(alone, {"Cookie": cookie, "Origin": "http://elsewhere.example"})
    assert refused.value.status_code == 403


def test_without_a_node_manager_it_says_so_and_listeners_are_counted(alone: Server) -> None:
    sockets: list[Any] = []

    def crowd() -> None:
        while len(sockets) < 9:
            sockets.append(alone.websocket(LIVE))

    try:
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            crowd()
        assert refused.value.status_code == 503
        assert 1 <= len(sockets) <= 2, "the one before may not have gone yet"
        for socket in sockets:
            message = json.loads(socket.recv())
            assert message["type"] == "unavailable"
            assert message["message"].endswith(".")
    finally:
        for socket in sockets:
            socket.close()


def connect(server: Server, headers: dict[str, str]) -> None:
    """Try to listen with ``headers`` only."""
    given = dict(headers)
    origin = given.pop("Origin", None)
    url = server.url.replace("http", "ws", 1) + LIVE
    socket = websocket.create_connection(
        url, header=given, timeout=60, origin=origin, suppress_origin=origin is None
    )
    socket.close()
