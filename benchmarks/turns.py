"""``python benchmarks/turns.py``: what taking turns costs, as ratios of one run.

A pretend GPU computes one thing at a time: a lock that a step holds while it sleeps.
One task alone, two at once without turns, and two by turns are measured one after
the other on the same node manager, so the ratios say something elsewhere too. No real
GPU is used; what a hand-over costs there (emptying the allocator's cache) is not
in these figures, but for ``--clear``, the seconds that each one is taken to last.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Rate:
    """Steps a second, of all tasks together; how often each one waited for its turn."""

    name: str
    steps_per_second: float
    of_alone: float
    hand_overs: int


def work(told: dict[str, Any]) -> None:
    """One task: steps until the time is up, then how many there were."""
    from jupyter_gpushare.client.requests.broker import Broker
    from jupyter_gpushare.client.words.settings import Ask

    broker = Broker({"JUPYTER_GPUSHARE_SOCKET": told["socket"]})
    broker.request(Ask(gpus=1, memory=told["memory"]))
    cleared = 0

    def clear() -> None:
        nonlocal cleared
        cleared += 1
        time.sleep(told["clear"])

    broker.turns._program.drop_caches = clear  # type: ignore[method-assign]
    device = SimpleNamespace(device="cuda:0", persistent=GIB, temporary=GIB, cache=0)
    with open(told["gpu"], "w") as gpu:

        def step() -> None:
            fcntl.flock(gpu, fcntl.LOCK_EX)
            time.sleep(told["step"])
            fcntl.flock(gpu, fcntl.LOCK_UN)

        for steps in range(1, 4):  # known, and gated if it may be
            step()
            if told["turns"]:
                broker.turns.report(SimpleNamespace(steps=steps, devices=(device,)))
        print("ready", flush=True)
        sys.stdin.readline()
        before, until = cleared, time.monotonic() + told["seconds"]
        count = 0
        while time.monotonic() < until:
            step()
            count += 1
            if told["turns"]:
                broker.turns.gate()
    print(json.dumps({"steps": count, "hand_overs": cleared - before}), flush=True)
    broker.close()


def measure(name: str, tasks: int, told: dict[str, Any], alone: float | None) -> Rate:
    """Some tasks at once for the same seconds."""
    line = [sys.executable, __file__, "--work", json.dumps(told)]
    running = [
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(tasks)
    ]
    for one in running:
        assert one.stdout is not None
        if one.stdout.readline() != "ready\n":
            raise RuntimeError("a task did not start")
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    results = [json.loads(one.communicate()[0]) for one in running]
    rate = sum(result["steps"] for result in results) / told["seconds"]
    overs = sum(result["hand_overs"] for result in results)
    return Rate(name, rate, 1.0 if alone is None else rate / alone, overs)


def run(arguments: argparse.Namespace) -> list[Rate]:
    """All three, on a node manager of our own."""
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "socket": f"{folder}/node.sock",
            "gpu": f"{folder}/gpu",
            "memory": 4 * GIB,
            "seconds": arguments.seconds,
            "step": arguments.step,
            "clear": arguments.clear,
            "turns": True,
        }
        node = [sys.executable, "-m", "jupyter_gpushare.node", "--simulate", "1x24GiB"]
        node += ["--socket", told["socket"], "--ledger", f"{folder}/ledger.sqlite"]
        node += ["--Policy.share_mode=time", f"--Policy.quantum={arguments.quantum}"]
        server = subprocess.Popen(
            node, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ)
        )
        try:
            assert server.stdout is not None
            if not server.stdout.readline().startswith("ready"):
                raise RuntimeError("the node manager did not start")
            alone = measure("one task alone", 1, told, None)
            base = alone.steps_per_second
            return [
                alone,
                measure("two at once", 2, {**told, "turns": False}, base),
                measure("two by turns", 2, told, base),
            ]
        finally:
            server.terminate()
            server.wait(20)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of each measurement")
    parser.add_argument("--quantum", type=float, default=10.0, help="seconds of a turn")
    parser.add_argument("--step", type=float, default=0.05, help="seconds of a step")
    parser.add_argument("--clear", type=float, default=0.02, help="seconds that clearing takes")
    parser.add_argument("--json", type=Path, help="keep the figures there")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(json.loads(arguments.work))
        return
    rates = run(arguments)
    print(f"{'':16} {'steps/s':>8} {'of alone':>9} {'hand-overs':>11}")
    for rate in rates:
        print(
            f"{rate.name:16} {rate.steps_per_second:8.2f} {rate.of_alone:9.1%} "
            f"{rate.hand_overs:11d}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(rate) for rate in rates], indent=2) + "\n")


if __name__ == "__main__":
    main()
