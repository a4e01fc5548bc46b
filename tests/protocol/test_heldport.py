"""An address that we hold is ours, though somebody else listens beside it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.node import needs_root
from tornado.httpserver import HTTPServer

from jupyter_gpushare.protocol import heldport

OTHER = 65534


@contextmanager
def another_user(port: int, only_ipv6: bool) -> Iterator[None]:
    """Listens at all of IPv6, also with IPv4 or without."""
    with socket.socket(socket.AF_INET6) as his:
        os.fchown(his.fileno(), OTHER, -1)
        his.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_ipv6))
        his.bind(("::", port))
        his.listen()
        yield


@pytest.fixture
def held() -> Iterator[str]:
    """A URL at which this process holds the port."""
    (keeper,) = heldport.hold("http://127.0.0.1:0/")
    with keeper:
        yield f"http://127.0.0.1:{keeper.getsockname()[1]}/"


@needs_root
def test_who_listens_beside_it_does_not_listen_there(held: str) -> None:
    port = int(held.rpartition(":")[2][:-1])
    with another_user(port, only_ipv6=True):
        assert heldport.listener(held) is None
        with socket.socket() as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            ours.bind(("127.0.0.1", port))
            ours.listen()
            assert heldport.listener(held) == os.geteuid()


@needs_root
def test_who_listens_at_all_of_both_listens_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with another_user(port, only_ipv6=False):
        assert heldport.listener(f"http://127.0.0.1:{port}/") == OTHER


@needs_root
def test_pages_start_though_another_user_listens_beside_them(held: str) -> None:
    app = pytest.importorskip("jupyter_gpushare.hub.app")
    port = int(held.rpartition(":")[2][:-1])

    async def start() -> None:
        server = HTTPServer(lambda request: None)
        # Less than it waits for one of ours to end.
        await asyncio.wait_for(app.GpuShareHub(url=held)._listen(server, port, "127.0.0.1"), 5)
        assert heldport.listener(held) == os.geteuid()
        server.stop()

    with another_user(port, only_ipv6=True):
        asyncio.run(start())
