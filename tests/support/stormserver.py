"""The server of a storm: it has memory on a GPU, and each request looks whether all is there.

``python -m support.stormserver PORT FOLDER [engine]``: with ``engine`` the memory is a child's, as
with servers of several processes. In the FOLDER it writes down who it is, and when which request
came and was over: that outlives it, and tells whether one came twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from tornado import web, websocket
from tornado.iostream import StreamClosedError

from support.cudaprogram import Bindings

#: With it a neighbour's memory does not fit on the GPU of the storm.
MEMORY = 5 * 2**29
LEAVE = "leave"


class Notes:
    """Lines of JSON in a file that several processes may append to; a line is whole or absent."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, **what: Any) -> None:
        os.write(self._file, json.dumps({**what, "at": time.monotonic()}).encode() + b"\n")


class Device:
    """Memory on a GPU, and what must be in it."""

    def __init__(self, engine: bool) -> None:
        self._cuda = Bindings()
        self.engine = self._cuda.child(orphan=False) if engine else 0
        self._call("start")
        self._block = self._call("allocate", MEMORY)
        self._text = "nothing yet"
        self._call("write", self._block, self._text)

    def _call(self, name: str, *arguments: Any) -> Any:
        if not self.engine:
            return getattr(self._cuda, name)(*arguments)
        try:
            return self._cuda.tell(self.engine, name, *arguments)
        except (ValueError, OSError):  # it has ended, and so do we
            os._exit(3)

    def look(self, text: str) -> bool:
        """Whether what was written last is there; then the text is."""
        found = self._call("checksum", self._block, len(self._text))
        is_right = found == zlib.crc32(self._text.encode())
        self._text = text
        self._call("write", self._block, text)
        return is_right


class Handler(web.RequestHandler):
    """What is common: it is written down before anything else, and before the answer ends."""

    def initialize(self, device: Device, notes: Notes, boot: str) -> None:
        self.device, self.notes, self.boot = device, notes, boot

    def prepare(self) -> None:
        self.id = self.get_argument("id")
        self.notes.note(what="begin", id=self.id, boot=self.boot)

    def over(self) -> None:
        self.notes.note(what="end", id=self.id, boot=self.boot)

    def looked(self, **more: Any) -> str:
        return json.dumps(
            {"id": self.id, "boot": self.boot, "right": self.device.look(self.id), **more}
        )


class Plain(Handler):
    def post(self) -> None:
        said = self.looked()
        self.over()
        self.finish(said)

    get = post


class Stream(Handler):
    """Events, and a last one that says so."""

    async def post(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        try:
            for _ in range(int(self.get_argument("events"))):
                self.write(f"data: {self.looked()}\n\n")
                await self.flush()
                await asyncio.sleep(0.01)
        except StreamClosedError:
            return  # the client has gone
        self.over()
        self.finish("data: [DONE]\n\n")

    get = post


@web.stream_request_body
class Upload(Handler):
    """What was sent: its length, and its digest."""

    def prepare(self) -> None:
        super().prepare()
        self.size, self.digest = 0, hashlib.sha256()

    def data_received(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.digest.update(chunk)

    def post(self) -> None:
        said = self.looked(size=self.size, digest=self.digest.hexdigest())
        self.over()
        self.finish(said)


class Talk(websocket.WebSocketHandler):
    """It answers each message, until it is told to leave."""

    looked, over = Handler.looked, Handler.over

    def initialize(self, device: Device, notes: Notes, boot: str) -> None:
        self.device, self.notes, self.boot = device, notes, boot

    def open(self) -> None:
        self.id = self.get_argument("id")
        self.notes.note(what="begin", id=self.id, boot=self.boot)

    async def on_message(self, message: str | bytes) -> None:
        if message == LEAVE:
            self.over()
            self.close(1000)
            return
        with contextlib.suppress(websocket.WebSocketClosedError):  # the client has gone
            await self.write_message(self.looked(said=message))


class Healthy(web.RequestHandler):
    def get(self) -> None:
        self.write({"status": "ok"})


async def serve(port: int, folder: Path, engine: bool) -> None:
    boot = f"{os.getpid()}-{time.monotonic_ns()}"
    device, notes = Device(engine), Notes(folder / "served")
    notes.note(what="boot", boot=boot, pid=os.getpid(), engine=device.engine)
    what = {"device": device, "notes": notes, "boot": boot}
    handlers = {"/plain": Plain, "/stream": Stream, "/upload": Upload, "/talk": Talk}
    app = web.Application(
        [("/health", Healthy), *((path, one, what) for path, one in handlers.items())]
    )
    await asyncio.sleep(0.2)  # a model is loaded
    app.listen(port, "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), "engine" in sys.argv[3:]))
