"""The port on which Prometheus asks for metrics, served by the node manager's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from tornado import web
from tornado.httpserver import HTTPServer

from .fairness import Purse

#: Connections at once; of more, the oldest goes.
MOST: Final = 64
#: Seconds in which a request must have come.
_PATIENCE: Final = 5.0
#: Answers that are made a second, and at once; a further question gets the last one again.
PER_SECOND: Final = 5.0
AT_ONCE: Final = 50


class _FewAtOnce(HTTPServer):
    """Keeps :data:`MOST` connections: many silent ones keep nobody out."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._open: dict[Any, None] = {}

    def handle_stream(self, stream: Any, address: Any) -> None:
        self._open = {one: None for one in self._open if not one.closed()}
        while len(self._open) >= MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()
        self._open[stream] = None
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
        if purse.pays(1.0, clock()):
            last = generate_latest(registry)
        return last

    pages = [(r"/(?:metrics)?", _Metrics, {"text": text})]
    server = _FewAtOnce(
        web.Application(pages, log_function=lambda handler: None),
        idle_connection_timeout=_PATIENCE,
        max_header_size=16 * 1024,
        max_body_size=0,
    )
    server.listen(port, address)
    return server
