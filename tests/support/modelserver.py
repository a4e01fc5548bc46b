"""A server such as people put models behind, made of tornado: a process of its own.

``python -m support.modelserver PLACE [FILE]``, at a port or at a Unix socket. It answers in one
piece, in a stream, slowly, or never; takes uploads and WebSockets; and writes the id of each
request that came into the FILE.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from tornado import web, websocket
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_unix_socket

FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else None
going = asyncio.Event()


class Seen(web.RequestHandler):
    """What is common: the id is written down before anything else."""

    def prepare(self) -> None:
        if FILE is not None and (number := self.get_argument("id", "")):
            with FILE.open("a") as file:
                file.write(f"{number}\n")


class Echo(Seen):
    """What was asked, as it came."""

    def get(self) -> None:
        self.set_header("X-Answer", "yes")
        self.add_header("Set-Cookie", "a=1")
        self.add_header("Set-Cookie", "b=2")
        self.write(
            {
                "method": self.request.method,
                "uri": self.request.uri,
                "headers": dict(self.request.headers.get_all()),
                "body": self.request.body.decode(),
                "pid": os.getpid(),
            }
        )

    head = post = put = delete = patch = options = get


class Stream(Seen):
    """Events, each when `Go` says so; or as many as are asked for at once."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        await self.flush()
        for number in range(int(self.get_argument("events"))):
            if not self.get_argument("now", ""):
                await going.wait()
                going.clear()
            self.write(f"data: {number}\n\n")
            with contextlib.suppress(StreamClosedError):
                await self.flush()


class Go(web.RequestHandler):
    def post(self) -> None:
        going.set()


@web.stream_request_body
class Upload(Seen):
    """What was sent: its length, and its digest. It is not held."""

    def prepare(self) -> None:
        super().prepare()
        self.size, self.digest = 0, hashlib.sha256()

    def data_received(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.digest.update(chunk)

    def post(self) -> None:
        self.write({"size": self.size, "digest": self.digest.hexdigest()})


class Hang(Seen):
    """It never answers; it says who came and who hung up."""

    came: ClassVar[list[str]] = []
    left: ClassVar[list[str]] = []

    async def get(self) -> None:
        self.came.append(self.get_argument("id", ""))
        await asyncio.Event().wait()

    def on_connection_close(self) -> None:
        self.left.append(self.get_argument("id", ""))


class Left(web.RequestHandler):
    def get(self) -> None:
        self.write({"came": Hang.came, "left": Hang.left})


class Drop(Seen):
    """It hangs up without an answer, or in the middle of one."""

    async def get(self) -> None:
        if half := self.get_argument("half", ""):
            if half == "of 1000":
                self.set_header("Content-Length", "1000")
            self.write("the beginning")
            await self.flush()
        stream = self.detach()
        stream.close()

    post = put = get


class Talk(websocket.WebSocketHandler):
    """It says everything again."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return "echo" if "echo" in subprotocols else None

    async def on_message(self, message: str | bytes) -> None:
        if message == "leave":
            self.close(4001, "as you wish")
        else:
            await self.write_message(message, binary=isinstance(message, bytes))


class Healthy(web.RequestHandler):
    def get(self) -> None:
        self.write({"status": "ok"})


async def serve(place: str) -> None:
    app = web.Application(
        [
            ("/health", Healthy),
            ("/echo.*", Echo),
            ("/stream", Stream),
            ("/go", Go),
            ("/upload", Upload),
            ("/hang", Hang),
            ("/left", Left),
            ("/drop", Drop),
            ("/talk", Talk),
        ]
    )
    if place.isdigit():
        app.listen(int(place), "127.0.0.1", max_body_size=2**30)
    else:
        HTTPServer(app).add_socket(bind_unix_socket(place))
    await asyncio.Event().wait()


@contextlib.contextmanager
def running(port: int, file: Path | None = None) -> Iterator[subprocess.Popen[Any]]:
    """The server at a port, listening."""
    from jupyter_gpushare.serve.upstream import Control, wait_until_ready

    words = [sys.executable, "-m", "support.modelserver", str(port), *([str(file)] if file else [])]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(words, env=environ) as process:
        try:

            def ended() -> bool:
                return process.poll() is not None

            wait_until_ready(Control(port), "/health", 60.0, ended)
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
