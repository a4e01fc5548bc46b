"""A real process that trains a small torch model under a lease and takes turns.

It writes down, on the clock that all processes of the host share, when each of
its steps began and ended: what the tests know of turns they know from there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.cuda import CONTEXT
from support.node import until

GIB = 2**30
WITHIN = 90.0  # seconds; importing torch takes long on a busy machine

_PROGRAM = """
import json, os, signal, sys, time
from types import SimpleNamespace
told = json.loads(sys.argv[1])
import torch
from jupyter_gpushare.client.asking.broker import Broker
from jupyter_gpushare.client.words.settings import Ask

torch.set_num_threads(1)
log = open(told["log"], "a", buffering=1)
broker = Broker({"JUPYTER_GPUSHARE_SOCKET": told["socket"], "JUPYTER_GPUSHARE_TOKEN": told["who"],
                 "JUPYTER_GPUSHARE_ANSWER_TIMEOUT": "5"})
grant = broker.request(Ask(gpus=told["gpus"], memory=told["memory"]))
broker.turns._unreachable = told["unreachable"]
log.write(f"granted {time.monotonic()}\\n")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
steps = 0
devices = [SimpleNamespace(device=f"cuda:{i}", persistent=told["persistent"],
           temporary=told["temporary"], cache=0) for i in range(len(grant.gpus))]

class Device:
    # Memory on a pretend GPU, as a framework has it that keeps what it has freed.

    def __init__(self):
        from cuda.bindings import driver
        self.driver, self.blocks, self.cached = driver, [], 0
        self.limit = grant.gpus[0].memory
        self.must(driver.cuInit(0))
        device = self.must(driver.cuDeviceGet(0))
        self.must(driver.cuCtxSetCurrent(self.must(driver.cuDevicePrimaryCtxRetain(device))))
        self.must(driver.cuMemAlloc(told["persistent"]))

    def must(self, answer):
        error, *values = answer
        assert int(error) == 0, error
        return values[0] if values else None

    def compute(self):
        may = self.limit - told["persistent"] - told["context"]
        if self.cached > may:
            self.drop()
        more = min(told["temporary"] + told["cache"], may) - self.cached
        if more > 0:
            self.blocks.append(self.must(self.driver.cuMemAlloc(more)))
            self.cached += more

    def drop(self):
        while self.blocks:
            self.must(self.driver.cuMemFree(self.blocks.pop()))
        self.cached = 0

    def limited(self, limits):
        self.limit = min(limits.values(), default=self.limit)

memory = Device() if told["context"] is not None else None
if memory is not None:
    broker.turns.limited = memory.limited

dropped = 0
def drop():
    global dropped
    dropped += 1
    if memory is not None:
        memory.drop()
    log.write(f"dropped {time.monotonic()}\\n")
    time.sleep(told["clearing"])
broker.turns.drop = drop

def after(optimizer, arguments, named):
    global steps
    steps += 1
    log.write(f"step {began} {time.monotonic()}\\n")
    broker.turns.report(SimpleNamespace(steps=steps, devices=devices))
    if told["gated"]:
        broker.turns.gate()

sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after)
while True:
    try:
        began = time.monotonic()
        if memory is not None:
            memory.compute()
        model(torch.ones(8, 64)).sum().backward()
        # The pretend GPU computes.
        time.sleep(10**6 if os.path.exists(told["hang"]) else told["seconds"])
        optimizer.step()
        optimizer.zero_grad()
    except KeyboardInterrupt:
        log.write(f"interrupted {time.monotonic()}\\n")
        if told["ends"]:
            break
"""


class Trainer:
    """One training process; sizes in GiB, ``seconds`` a step. A context manager.

    ``clearing``: seconds for which it is about to give its turn back. With ``environ`` (of a
    `CudaWorld`) it really has its memory on the pretend GPU there, and a ``cache`` of so much
    beside what it needs.
    """

    def __init__(
        self,
        directory: Path,
        socket: Path,
        who: str,
        *,
        gpus: int = 1,
        memory: float = 16,
        persistent: float = 2,
        temporary: float = 4,
        seconds: float = 0.02,
        gated: bool = True,
        unreachable: float = 15.0,
        ends: bool = True,
        cache: float = 0,
        clearing: float = 0.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.who = who
        self.log = directory / f"{who}.log"
        self.log.touch()
        self._hang = directory / f"{who}.hang"
        told: dict[str, Any] = {
            "log": str(self.log),
            "socket": str(socket),
            "who": who,
            "gpus": gpus,
            "memory": int(memory * GIB),
            "persistent": int(persistent * GIB),
            "temporary": int(temporary * GIB),
            "seconds": seconds,
            "gated": gated,
            "unreachable": unreachable,
            "ends": ends,
            "cache": int(cache * GIB),
            "clearing": clearing,
            "hang": str(self._hang),
            "context": None if environ is None else CONTEXT,
        }
        environ = {
            name: value
            for name, value in (os.environ if environ is None else environ).items()
            if not name.startswith(("JUPYTER_GPUSHARE", "CUDA_"))
        }
        self.stderr = directory / f"{who}.err"
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env=environ,
            )

    def lines(self, kind: str) -> list[list[float]]:
        """The times of everything of one kind so far."""
        found = []
        for line in self.log.read_text().splitlines():
            word, *times = line.split()
            if word == kind and times:
                found.append([float(one) for one in times])
        return found

    @property
    def steps(self) -> list[list[float]]:
        """When each step began and ended (monotonic seconds)."""
        return self.lines("step")

    def trains(self, more: int = 3) -> None:
        """Wait for that many more steps."""
        before = len(self.steps)
        enough = before + more
        until(lambda: len(self.steps) >= enough or self._died(), f"{self.who} trains", WITHIN)

    def _died(self) -> bool:
        assert self.process.poll() is None, self.stderr.read_text()
        return False

    def hang(self) -> None:
        """From its next step on it never comes to the end of one. It gives signs of life."""
        self._hang.touch()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(30)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def now() -> float:
    """The clock on which trainers write (monotonic seconds)."""
    return time.monotonic()


def overlaps(one: list[list[float]], other: list[list[float]], since: float) -> list[Any]:
    """Pairs of steps that ran at the same time, of those that began after ``since``."""
    return [
        (a, b)
        for a in one
        for b in other
        if a[0] >= since and b[0] >= since and a[0] < b[1] and b[0] < a[1]
    ]


STOP, GO_ON, INTERRUPT = signal.SIGSTOP, signal.SIGCONT, signal.SIGINT
