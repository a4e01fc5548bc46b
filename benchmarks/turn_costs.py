"""What turns cost: a lone training loop, each hand-over, and 200 sessions on 8 GPUs.

Sections of ``benchmarks/run.py`` (``--only turns``). ``python benchmarks/turn_costs.py lone SOCKET
STEPS`` is the training loop, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from load import Client, percentile, timed

GIB = 2**30
STEP = 0.05  # seconds
LONG_EACH = 1  # sessions on each GPU that train without an end
CELL, PAUSE = 2.0, 60.0  # seconds that a short cell computes, and on average until the next one
HEARTBEAT = 5.0
SETTLES = 15.0  # seconds: before it, no long session had a quantum


def lone(path: str, steps: int) -> dict[str, float]:
    """The share of a loop's time that is spent in our hook, where nobody else wants the GPU."""
    import torch
    from step_meter import Still

    from jupyter_gpushare.client.adapters.parkers.steps import StepMeter
    from jupyter_gpushare.client.requests.broker import Broker
    from jupyter_gpushare.client.words.settings import Ask

    torch.set_num_threads(1)
    broker = Broker({"JUPYTER_GPUSHARE_SOCKET": path})
    broker.request(Ask(gpus=1, memory=4 * GIB))
    meter = StepMeter(torch, Still())
    meter.on_step, meter.gate = broker.turns.report, broker.turns.gate
    hook, spent = meter._after_step, []

    def timed_hook(*arguments: Any) -> None:
        began = time.perf_counter()
        hook(*arguments)
        spent.append(time.perf_counter() - began)

    meter._after_step = timed_hook  # type: ignore[method-assign]
    meter.install()
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.AdamW(net.parameters())
    inputs = torch.randn(32, 64)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        net(inputs).sum().backward()
        optimizer.step()
        time.sleep(max(0.0, began + step * STEP - time.perf_counter()))
    lasted = time.perf_counter() - began
    broker.close()
    return {"share": sum(spent) / lasted, "median": percentile(spent, 0.5) / STEP}


def measure_lone(path: str, steps: int) -> dict[str, float]:
    """`lone` in a process of its own, of which nothing else of ours knows."""
    kept = {name: value for name, value in os.environ.items() if "GPUSHARE" not in name}
    command = [sys.executable, __file__, "lone", path, str(steps)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=kept)
    return dict(json.loads(done.stdout))


_LOOP = """
import sys, time
from jupyter_gpushare import steps
from jupyter_gpushare.client import request
request(memory="8GiB")
until = time.monotonic() + float(sys.argv[1])
for _ in steps(iter(lambda: time.monotonic() >= until, True)):
    began = time.monotonic()
    time.sleep(0.02)
    print(began, time.monotonic())
"""


async def hand_overs(path: str, tokens: list[str], seconds: float) -> tuple[list[float], float]:
    """Seconds from the end of one loop's step to the begin of the other's; and a round trip's.

    The median round trip of a call that changes nothing, at the same time.
    """
    loops = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _LOOP, str(seconds)),
            stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "JUPYTER_GPUSHARE_SOCKET": path,
                "JUPYTER_GPUSHARE_TOKEN": token,
                "JUPYTER_GPUSHARE_FALLBACK": "error",
            },
        )
        for token in tokens
    ]
    ends = asyncio.gather(*(loop.communicate() for loop in loops))
    client, trips = await Client.connect(path, token=tokens[0]), []
    while not ends.done():
        trips.append(await timed(client.call("status", {})))
        await asyncio.sleep(0.1)
    client.close()
    steps = sorted(
        (*map(float, line.split()), number)
        for number, (printed, _) in enumerate(await ends)
        for line in printed.decode().splitlines()
    )
    together = max(next(begin for begin, _, who in steps if who == number) for number in (0, 1))
    gaps = [
        later[0] - earlier[1]
        for earlier, later in pairwise(steps)
        if earlier[2] != later[2] and earlier[0] > together + 1.0
    ]
    overlapping = [gap for gap in gaps if gap < 0]
    if overlapping:
        raise RuntimeError(f"{len(overlapping)} steps of two loops overlapped")
    return gaps, percentile(trips, 0.5)


@dataclass
class Session(Client):
    """One notebook's kernel, as its client speaks: it asks before it computes."""

    lease: str = ""
    may_compute: asyncio.Event = field(default_factory=asyncio.Event)
    turns: int = 0

    def noticed(self, message: dict[str, Any]) -> None:
        super().noticed(message)
        if message["method"] == "turn":
            self.may_compute.set()
        elif message["method"] == "recall":
            self.may_compute.clear()

    async def begins(self, number: int, memory: int) -> None:
        task = {"name": f"notebook-{number}", "kind": "kernel", "kernel_id": str(number)}
        asked = {"task": task, "gpus": 1, "memory": memory}
        self.lease = (await self.call("request", asked))["lease"]
        self.may_compute.set()
        told = {"lease": self.lease, "figures": [], "steps": 0, "can_take_turns": True}
        await self.call("memory", told)

    async def computes(self, seconds: float) -> None:
        """Steps until so much is computed; at the end of each it may be asked for its turn."""
        had = 0.0
        while had < seconds:
            if not self.may_compute.is_set():
                await self.call("turn.ask", {"lease": self.lease})
                await self.may_compute.wait()
                self.turns += 1
            await asyncio.sleep(STEP)
            had += STEP

    async def sends_cells(self, chance: random.Random) -> None:
        """A short cell now and then, for ever."""
        while True:
            await self.call("activity", {"lease": self.lease, "state": "idle"})
            self.may_compute.clear()
            await asyncio.sleep(chance.expovariate(1 / PAUSE))
            await self.call("activity", {"lease": self.lease, "state": "busy"})
            await self.computes(CELL)

    async def lives(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            await self.call("heartbeat", {"lease": self.lease})


async def a_class(path: str, tokens: list[str], gpus: int, seconds: float, cpu: Any) -> Any:
    """Share of a core that ``cpu()`` (seconds so far) grows by, and turns a second."""
    chance = random.Random(2026)
    sessions = [await Session.connect(path, token=token) for token in tokens]
    running: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    for number, session in enumerate(sessions):
        await session.begins(number, 2 * GIB)
        running.append(loop.create_task(session.lives()))
        is_long = number < gpus * LONG_EACH
        does = session.computes(1e9) if is_long else session.sends_cells(chance)
        running.append(loop.create_task(does))
    await asyncio.sleep(SETTLES)
    before, used, began = sum(one.turns for one in sessions), cpu(), time.perf_counter()
    await asyncio.sleep(seconds)
    used, lasted = cpu() - used, time.perf_counter() - began
    turns = sum(one.turns for one in sessions) - before
    ended = [task for task in running if task.done()]
    if ended:
        raise RuntimeError(f"{len(ended)} sessions ended: {ended[0].exception()!r}")
    for task in running:
        task.cancel()
    for session in sessions:
        session.close()
    return used / lasted, turns / lasted


if __name__ == "__main__":
    _, part, socket, count = sys.argv
    assert part == "lone"
    print(json.dumps(lone(socket, int(count))))
