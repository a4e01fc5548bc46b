"""A load of many clients on one asyncio loop, and the echo server that is the floor.

``python benchmarks/load.py echo SOCKET DATABASE`` serves: each line is written
to SQLite (WAL, synchronous=FULL) in its own thread and sent back. It does the
unavoidable part of a grant: one round trip and one durable write.
``python benchmarks/load.py watch SOCKET TOKEN …`` watches with a connection for each token, says
"ready", and when its standard input ends how many news the one that got fewest has got.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

HELLO = {"protocol": 1, "client": {"name": "benchmark", "version": "1"}}


@dataclass
class Client(asyncio.Protocol):
    """One connection. ``call`` awaits the answer; notifications are counted and dropped."""

    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    serial: int = 0
    rest: bytes = b""
    notices: int = 0
    wire: Any = None

    @classmethod
    async def connect(cls, path: str, *, hello: bool = True, token: str = "") -> Client:
        _transport, client = await asyncio.get_running_loop().create_unix_connection(cls, path)
        if hello:
            await client.call("hello", {**HELLO, "token": token} if token else HELLO)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = transport

    def data_received(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            future = self.waiting.pop(message.get("id"), None)
            if future is None:
                self.noticed(message)
            elif "error" in message:
                future.set_exception(RuntimeError(message["error"]["message"]))
            else:
                future.set_result(message.get("result"))

    def noticed(self, message: dict[str, Any]) -> None:
        self.notices += 1

    def connection_lost(self, error: Exception | None) -> None:
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection was lost"))

    def call(self, method: str, params: dict[str, Any]) -> asyncio.Future[Any]:
        self.serial += 1
        message = {"jsonrpc": "2.0", "id": self.serial, "method": method, "params": params}
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.wire.is_closing():
            future.set_exception(ConnectionError("the connection was lost"))
            return future
        self.waiting[self.serial] = future
        self.wire.write(json.dumps(message).encode() + b"\n")
        return future

    def close(self) -> None:
        self.wire.close()


def ask(number: int) -> dict[str, Any]:
    """Parameters of a request for one GPU."""
    return {"task": {"name": f"task-{number}", "kind": "process"}, "gpus": 1}


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` (0-1) of ``values`` lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def timed(call: Any) -> float:
    """Seconds until ``call`` is answered."""
    started = time.perf_counter()
    await call
    return time.perf_counter() - started


class _Echo(asyncio.Protocol):
    def __init__(self, thread: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
        self.thread, self.database, self.rest = thread, database, b""
        self.wire: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = transport

    def data_received(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            asyncio.get_running_loop().create_task(self.answer(line))

    def write(self, line: bytes) -> None:
        with self.database:
            self.database.execute("INSERT INTO lines VALUES (?)", (line,))

    async def answer(self, line: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(self.thread, self.write, line)
        message = json.loads(line)
        result = {"jsonrpc": "2.0", "id": message["id"], "result": message["params"]}
        self.wire.write(json.dumps(result).encode() + b"\n")


async def echo(path: str, database_path: str) -> None:
    """Serve for ever."""
    database = sqlite3.connect(database_path, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE lines (line BLOB)")
    thread = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: _Echo(thread, database), path, backlog=4096)
    print(f"ready {path}", flush=True)
    await server.serve_forever()


class Watcher(asyncio.Protocol):
    """Watches, and only counts what it is told: reading it is not what is measured."""

    def __init__(self, token: str) -> None:
        self.token, self.lines = token, 0
        self.is_there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire: Any = transport
        self.say("hello", {**HELLO, "token": self.token})

    def say(self, method: str, params: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
        self.wire.write(json.dumps(message).encode() + b"\n")

    def data_received(self, data: bytes) -> None:
        if self.lines == 0 and b"\n" in data:
            self.say("watch", {})
        self.lines += data.count(b"\n")
        if self.lines >= 2 and not self.is_there.done():
            self.is_there.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_there.done():
            self.is_there.set_exception(ConnectionError("a watcher was turned away"))


async def watch(path: str, tokens: list[str]) -> None:
    """Watch until the standard input ends."""
    loop, watchers = asyncio.get_running_loop(), []
    for token in tokens:
        watcher = Watcher(token)
        await loop.create_unix_connection(lambda guest=watcher: guest, path)  # type: ignore[misc]
        await watcher.is_there
        watchers.append(watcher)
    before = [watcher.lines for watcher in watchers]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(min(one.lines - had for one, had in zip(watchers, before, strict=True)))


if __name__ == "__main__":
    if sys.argv[1] == "watch":
        asyncio.run(watch(sys.argv[2], sys.argv[3:]))
    else:
        asyncio.run(echo(sys.argv[2], sys.argv[3]))
