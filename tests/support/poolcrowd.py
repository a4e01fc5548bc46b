"""The people on one host of a pool, in one process: light clients of its node manager's socket.

Each asks for GPUs, works on them for a while, gives them back, and thinks. Whatever happens to the
node manager meanwhile, they connect again and go on; what they see is in a log. Commands come
on standard input: ``stop`` ends everybody's work, then ``serve NAME …`` has each of these get all
GPUs of their quota once. Each is answered by a line, with the names of those who did not succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import ErrorAnswer, Method, Notification

from .faults.observed import Log, Saw, boot

LOOK = 0.5  # seconds between two looks at a lease
#: Nobody is there any more to give anything back: all should end well within this.
ENDS = 30.0


@dataclass(frozen=True)
class Spec:
    """Who is there, and how they work: mean seconds of thinking, bounds of holding."""

    socket: str
    log: str
    seed: str
    quotas: dict[str, int]
    think: float
    hold: tuple[float, float]


class Line:
    """One person's connection, which is made anew whenever it ended."""

    def __init__(self, path: str, who: str) -> None:
        self._path, self._who = path, who
        self._protocol = ClientConnection()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: Method, **params: Any) -> dict[str, Any]:
        """Ask until there is an answer. Raises :class:`RemoteError`."""
        while True:
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_unix_connection(self._path, limit=2**22)
                    self._protocol = ClientConnection()
                    said = {"protocol": 1, "client": {"name": "crowd", "version": "0"}}
                    await self._ask(Method.HELLO, **said, token=self._who)
                return await self._ask(method, **params)
            except (OSError, asyncio.IncompleteReadError):
                self.close()
                await asyncio.sleep(0.1)  # the node manager is away; nobody says when it comes back

    async def _ask(self, method: Method, **params: Any) -> dict[str, Any]:
        assert self._streams is not None
        reader, writer = self._streams
        call_id, line = self._protocol.call(method, **params)
        writer.write(line)
        while True:
            for message in self._protocol.receive(await reader.readuntil(b"\n")):
                if isinstance(message, Notification) or message.id != call_id:
                    continue
                if isinstance(message, ErrorAnswer):
                    raise message.error
                return dict(message.result)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Crowd:
    """All of them."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.log = Log(Path(spec.log))
        self.stopped = asyncio.Event()
        self._requests = 0

    async def live(self, who: str) -> None:
        """Think and work until all is to stop."""
        rng = random.Random(f"{self.spec.seed} {who}")
        while not await self._stops(rng.expovariate(1 / self.spec.think)):
            gpus = rng.randint(1, self.spec.quotas[who])
            await self.work(who, gpus, rng.uniform(*self.spec.hold))

    async def work(self, who: str, gpus: int, seconds: float) -> None:
        """Get GPUs, hold them, and give them back."""
        line = Line(self.spec.socket, who)
        self._requests += 1
        request, t0 = f"r{self._requests}", boot()
        task = {"name": who, "kind": "process"}
        try:
            result = await line.call(Method.REQUEST, task=task, request_id=request, gpus=gpus)
            lease, uuids = str(result["lease"]), [gpu["uuid"] for gpu in result["gpus"]]
            self.log.note(Saw.GRANTED, t0, who=who, lease=lease, gpus=uuids)
            end = boot() + seconds
            while (left := end - boot()) > 0 and not await self._stops(min(LOOK, left)):
                t0 = boot()
                state = (await line.call(Method.HEARTBEAT, lease=lease))["state"]
                self.log.note(Saw.ALIVE, t0, who=who, lease=lease, state=state)
            self.log.note(Saw.RELEASING, who=who, lease=lease)
            with contextlib.suppress(RemoteError):  # it was taken; then the answer was lost
                await line.call(Method.RELEASE, lease=lease)
        except RemoteError as error:
            self.log.note(Saw.LOST, t0, who=who, request=request, message=str(error))
        finally:
            line.close()

    async def _stops(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        return self.stopped.is_set()

    async def run(self) -> None:
        tasks = {who: asyncio.create_task(self.live(who)) for who in self.spec.quotas}
        loop = asyncio.get_running_loop()
        print("ready", flush=True)
        while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
            if words[0] == "stop":
                self.stopped.set()
            else:
                work = {who: self.work(who, self.spec.quotas[who], 0.0) for who in words[1:]}
                tasks = {who: asyncio.create_task(one) for who, one in work.items()}
            if tasks:
                await asyncio.wait(tasks.values(), timeout=ENDS)
            print(*(who for who, task in tasks.items() if not task.done()), flush=True)
            for task in tasks.values():
                if task.done():
                    task.result()
                task.cancel()


if __name__ == "__main__":
    asyncio.run(Crowd(Spec(**json.loads(sys.argv[1]))).run())
