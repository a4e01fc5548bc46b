"""The port on which Prometheus asks for metrics, served by the node manager's own loop."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from .fairness import Purse
from .loopback import whose

#: The most connections at once. One more closes the oldest one of the network that has most, or of
#: the user of this host.
MOST: Final = 64
#: Connections accepted in one round of the loop, which has other work; each sends one request.
_IN_TURN: Final = 4
#: Seconds after which a connection without a request is closed.
_PATIENCE: Final = 5.0
#: Answers that are made anew a second, and at once; further questions get the last answer again.
PER_SECOND: Final = 5.0
AT_ONCE: Final = 2


class _FewAtOnce(HTTPServer):
    """Keeps at most :data:`MOST` connections, so that many silent ones do not keep others out.

    Tornado accepts up to 128 at once, however much else waits. This accepts a few at a time.
    """

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._open: dict[Any, str] = {}
        self._doors: list[socket.socket] = []

    def open(self, address: str, port: int) -> None:
        """Listen until :meth:`stop`. Raises :class:`OSError`."""
        self._doors = bind_sockets(port, address)
        for door in self._doors:
            self._watch(door)

    def _watch(self, door: socket.socket) -> None:
        # It may have been closed in the second that it was left alone.
        if door in self._doors:
            asyncio.get_running_loop().add_reader(door, self._accept, door)

    def stop(self) -> None:
        for door in self._doors:
            asyncio.get_running_loop().remove_reader(door)
            door.close()
        self._doors.clear()
        super().stop()

    def _accept(self, door: socket.socket) -> None:
        for _ in range(_IN_TURN):
            try:
                connection, address = door.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left: later there may be one
                loop = asyncio.get_running_loop()
                loop.remove_reader(door)
                loop.call_later(1.0, self._watch, door)
                return
            self.handle_stream(IOStream(connection), address)

    def handle_stream(self, stream: Any, address: Any) -> None:
        self._open = {one: where for one, where in self._open.items() if not one.closed()}
        while len(self._open) >= MOST:
            most = Counter(self._open.values()).most_common(1)[0][0]
            oldest = next(one for one, where in self._open.items() if where == most)
            del self._open[oldest]
            oldest.close()
        self._open[stream] = whose(stream.socket, address[:2]).network
        super().handle_stream(stream, address)


class _Metrics(web.RequestHandler):
    def initialize(self, text: Callable[[], bytes]) -> None:
        self._text = text

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(self._text())


def serve(registry: CollectorRegistry, address: str, port: int) -> HTTPServer:
    """Answer ``http://address:port/metrics`` until ``stop()``. Raises :class:`OSError`."""
    clock = asyncio.get_running_loop().time
    purse, last = Purse(PER_SECOND, AT_ONCE, clock()), b""

    def text() -> bytes:
        nonlocal last
        # To make an answer takes the loop's time, and anybody who reaches the port may ask.
        if purse.pays(1.0, clock()):
            last = generate_latest(registry)
        return last

    pages = [(r"/(?:metrics)?", _Metrics, {"text": text})]
    server = _FewAtOnce(
        web.Application(pages, log_function=lambda handler: None),
        idle_connection_timeout=_PATIENCE,
        max_header_size=16 * 1024,
        max_body_size=0,
        no_keep_alive=True,
    )
    server.open(address, port)
    return server
