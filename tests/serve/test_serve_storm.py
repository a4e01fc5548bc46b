"""Under load, sleeps and kills each request has one answer or one visible error, and none is twice.

The verb with its keeper, the node manager and the server are processes; the server is the double of
one that sleeps by itself, whose answer shows whether its weights are what they were. A neighbour
wants the GPU all the time. Without kills there is no error at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from support.node import RunningNode, until
from support.served import CONFIG, Served, served

from jupyter_gpushare.protocol.messages import Method

#: A burst of requests comes as soon as the server sleeps.
BURSTS, EACH = int(os.environ.get("GPUSHARE_SERVE_BURSTS", "25")), 50
GIB = 2**30
SERVER = ("support.modeldoubles", "vllm", "{port}", "--enable-sleep-mode")


class Neighbour(threading.Thread):
    """Bob wants the GPU, has it for a moment, and wants it again."""

    def __init__(self, node: RunningNode, chance: random.Random) -> None:
        super().__init__()
        self.node, self.chance = node, chance
        self.over, self.times = threading.Event(), 0

    def run(self) -> None:
        has = True
        while has or not self.over.is_set():
            # The node manager may be killed at any time. What he had then is his still.
            with (
                contextlib.suppress(OSError, EOFError, AssertionError),
                self.node.client("bob") as bob,
            ):
                for lease in bob.call(Method.STATUS)["leases"]:
                    if lease["mine"]:
                        bob.call(Method.RELEASE, lease=lease["id"])
                has = False
                while not (has or self.over.wait(self.chance.uniform(0.1, 0.3))):
                    has = True
                    lease = bob.wait(bob.ask(memory=4 * GIB), within=20.0)["lease"]
                    self.times += 1
                    self.over.wait(self.chance.uniform(0.0, 0.05))
                    bob.call(Method.RELEASE, lease=lease)
                    has = False


class Killer(threading.Thread):
    """Kills one or the other, as the seed says, and starts again what does not start by itself."""

    def __init__(self, node: RunningNode, it: Served, chance: random.Random) -> None:
        super().__init__()
        self.node, self.it, self.chance = node, it, chance
        self.over, self.killed = threading.Event(), Counter[str]()

    def run(self) -> None:
        while not self.over.wait(self.chance.uniform(4.0, 10.0)):
            who = self.chance.choice(("keeper", "server", "node"))
            self.killed[who] += 1
            if who == "node":
                self.node.kill9()
                self.node.restart()
            elif who == "keeper":
                with self.it.process as process:  # its server goes on
                    process.kill()
            else:
                with contextlib.suppress(ProcessLookupError, OSError, ValueError, KeyError):
                    os.kill(self.it.get("/v1/who")[1]["pid"], 9)
            self.again()

    def again(self) -> None:
        """The verb ends where its server was killed, and was killed itself or not at all."""
        with contextlib.suppress(Exception):
            self.it.process.wait(1.0)
        if self.it.process.poll() is not None:
            self.it.process.__exit__(None, None, None)
            self.it.process = self.it.start()


@contextlib.contextmanager
def beside(*threads: Neighbour | Killer) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.over.set()
        for thread in threads:
            thread.join()


async def ask(it: Served, bursts: int, patient: bool) -> Counter[str]:
    """How so many bursts of requests ended. Each is sent once."""
    ends, chance = Counter[str](), random.Random(1)
    headers = {"Authorization": f"Bearer {it.token}"}
    prompt = {"model": "m", "prompt": "x", "seed": 7, "temperature": 0}
    base = f"http://127.0.0.1:{it.port}"
    line = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(base, headers=headers, connector=line) as client:

        async def one(number: int, after: float) -> None:
            await asyncio.sleep(after)
            try:
                path = f"/v1/completions?id={number}"
                async with client.post(path, json=prompt) as answer:
                    said = await answer.text()
            except (aiohttp.ClientError, ConnectionError) as error:
                ends[type(error).__name__] += 1
            else:
                assert answer.status != 200 or '"right"' in said, said
                ends[str(answer.status)] += 1

        async def sleeps() -> bool:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                async with client.get("/health") as answer:
                    return (await answer.json())["status"] == "asleep"
            return False

        for burst in range(bursts):
            numbers = range(burst * EACH, (burst + 1) * EACH)
            await asyncio.gather(*(one(number, chance.uniform(0.0, 0.2)) for number in numbers))
            with contextlib.suppress(TimeoutError):  # a killed one does not
                async with asyncio.timeout(60.0 if patient else 5.0):
                    while not await sleeps():
                        await asyncio.sleep(0.05)
    return ends


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [False, True])
def test_requests_beside_sleeps_and_kills(
    tmp_path: Path, kills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, seen = random.Random(20261129), tmp_path / "seen"
    monkeypatch.setenv("SEEN_BY_DOUBLES", str(seen))
    people = ("alice", "bob", "root")
    told = ("--adapter=vllm", "--rungs=sleep", "--idle=0.05s", "--hold-requests=1000")
    with (
        RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, people=people) as node,
        served(node, tmp_path, *told, server=SERVER) as it,
    ):
        neighbour, killer = Neighbour(node, chance), Killer(node, it, chance)
        with beside(neighbour, *([killer] if kills else [])):
            ends = asyncio.run(ask(it, BURSTS, patient=not kills))
        if kills:
            killer.again()
        assert ends.total() == BURSTS * EACH
        counted = Counter(seen.read_text().split())
        assert max(counted.values()) == 1, "none came to the server twice"
        if kills:
            assert killer.killed
            assert ends["200"] > 0
            until(lambda: it.get("/health")[0] == 200, "there is a server")
            assert it.get("/v1/who")[0] == 200
        else:
            assert ends == {"200": BURSTS * EACH}
            sleeps = it.row()["serving"]["sleeps"]
            assert sleeps >= BURSTS - 1
            assert neighbour.times >= sleeps
