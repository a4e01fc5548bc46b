"""A stand-in for the pool's process: it answers ``pool.where``, with a test's ranking."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Ranking:
    """What it answers, and what it was asked."""

    def __init__(self, *hosts: Mapping[str, Any] | str) -> None:
        self.hosts: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.rank(*hosts)

    def rank(self, *hosts: Mapping[str, Any] | str) -> None:
        """From now on these, in this order."""
        plain = {"fits_now": True, "possible": True, "reasons": [], "wait": None}
        given = [{"host": one} if isinstance(one, str) else dict(one) for one in hosts]
        self.hosts = [{**plain, **one} for one in given]

    @contextmanager
    def served(self, socket: Path) -> Iterator[None]:
        """Answer at ``socket``."""
        ranking = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    call = json.loads(line)
                    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": call["id"]}
                    if call["method"] == "hello":
                        answer["result"] = {"features": ["pool.where"]}
                        self.wfile.write(json.dumps(answer).encode() + b"\n")
                        continue
                    assert call["method"] == "pool.where"
                    ranking.asked.append(call["params"])
                    answer["result"] = {"hosts": ranking.hosts}
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        server = socketserver.ThreadingUnixStreamServer(str(socket), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            socket.unlink()
