"""The live WebSocket tells each change to those who may watch, and tells nobody else anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import websocket
from support.jupyter import TOKEN, Home, Server
from support.node import GIB, NodeClient, RunningNode

from jupyter_gpushare.protocol.framing import MAX_LINE
from jupyter_gpushare.protocol.messages import Method, Notice

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
        with pytest.raises(websocket.WebSocketConnectionClosedException):
            listen_until_closed(socket)
    finally:
        socket.close()
        raw.close()


def test_a_large_status_reaches_an_administrators_browser(home: Home) -> None:
    """16 GPUs and 200 tasks of one person with the longest paths: many times a client's line."""
    letter = "\U0001d11e"  # four bytes
    tokens = home.path / "tokens.json"
    people = [
        {"token": f"{name}-token", "environment": name, "admin": name == "root"}
        for name in ("alice", "bob", "root")
    ]
    tokens.write_text(json.dumps({"tokens": people}))
    tokens.chmod(0o600)
    paths = [f"{number:04}/{letter * 3995}" for number in range(200)]
    begins = [path[:5] for path in paths]
    with RunningNode(
        home.path,
        simulate="16x80GiB",
        config="c.Policy.heartbeat_timeout = 600.0\n",
        arguments=[f"--token-file={tokens}"],
    ) as node:
        server = home.serve(
            f"--GpuShareExtension.socket={node.socket}",
            environ=home.environ(JUPYTER_GPUSHARE_TOKEN="root-token"),
            simulate=None,
        )
        assert server.wait_connected()["admin"]
        live = server.websocket(LIVE)
        live.settimeout(120)  # each status is megabytes, and other tests run beside
        try:
            with (
                node.client("root-token") as watcher,
                node.client("bob-token") as bob,
                node.client("alice-token") as alice,
            ):
                watcher.call(Method.WATCH)
                bob.request()  # so that nobody else can have all the GPUs
                asked = [
                    alice.send(
                        Method.REQUEST,
                        task={"name": "t", "kind": "process", "path": path},
                        gpus=1 if number < 140 else 16,
                        memory=GIB if number < 140 else 80 * GIB,
                    )
                    for number, path in enumerate(paths)
                ]
                for call in asked[:140]:
                    alice.wait(call)

                def seen(status: Any) -> list[str]:
                    # What is stored and sent of a path is bounded; the beginnings differ.
                    found = (row["path"] for row in status["leases"] if row["path"])
                    return sorted(path[:5] for path in found)

                told = watcher.wait_notice(
                    Notice.CHANGED, where=lambda params: seen(params["status"]) == begins
                )["status"]
                assert len(json.dumps(told, ensure_ascii=False).encode()) > 6 * MAX_LINE
                assert len(told["gpus"]) == 16
                assert len(told["queue"]) == 60
                assert seen(watcher.call(Method.STATUS)) == begins
                status = next_status(live)
                while seen(status) != begins:
                    status = next_status(live)
                assert len(status["queue"]) == 60
                assert seen(server.gpushare("status")) == begins
                # Nobody was cut off in between, and news still come through.
                alice.call(Method.RELEASE, lease=status["leases"][1]["id"])
                while seen(status) != begins[1:]:
                    status = next_status(live)
                assert seen(watcher.call(Method.STATUS)) == begins[1:]
            assert "does not read" not in node.story()
            assert "failed" not in server.tail()
        finally:
            live.close()


def listen_until_closed(socket: Any) -> None:
    while True:
        opcode, _ = socket.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            raise websocket.WebSocketConnectionClosedException("closed by the server")


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
