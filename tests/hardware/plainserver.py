"""A plain model server: it holds weights on the GPU, and each answer reads all of them.

``plainserver.py torch PORT FILE COPIES`` reads the file so many times, as weights that Linux has in
memory already are read. ``plainserver.py bindings PORT FILE COPIES`` fills as much by the driver
alone, which the tests' pretend driver does, too. With 0 for the PORT it only holds them, as long as
its parent lives.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

for folder in Path(__file__).resolve().parents[1:3]:
    sys.path.insert(0, str(folder))

from support.cudaprogram import Bindings  # noqa: E402 - found by the lines above


class Torch:
    """Its blocks are whole numbers, so that all sums are exact."""

    def __init__(self, file: str, copies: int) -> None:
        import torch

        size = os.path.getsize(file) // 4
        here = torch.from_file(file, shared=False, size=size, dtype=torch.int32)
        self._blocks = [here.to("cuda") + number for number in range(copies)]

    def answer(self) -> str:
        """What the first token of a language model costs: one way through all weights."""
        return str([int(block.sum()) for block in self._blocks])


class Driver:
    """Its blocks have known contents."""

    def __init__(self, file: str, copies: int) -> None:
        self._target = Bindings()
        self._target.start()
        self._target.build(os.path.getsize(file) * copies)

    def answer(self) -> str:
        return str(self._target.digest())


def main(kind: str, port: str, file: str, copies: str) -> None:
    kinds: dict[str, Any] = {"torch": Torch, "bindings": Driver}
    weights = kinds[kind](file, int(copies))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say({"status": "ok"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._say({"answer": weights.answer()})

        def _say(self, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

    parent = os.getppid()
    while port == "0" and os.getppid() == parent:
        time.sleep(0.2)
    if port != "0":
        HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
