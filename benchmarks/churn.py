"""Leases, connections and processes come and go at speed; does anything grow? ``make churn``.

A real node manager with simulated GPUs, and workers that connect, ask, look, give back and hang up,
over and over; each lives for some turns and ends, half of them while they hold a lease. The
node manager's wall clock runs fast (an hour of ours is weeks of its), so that its history and
its exact usage of the last two days are pruned and rolled up many times, as in a long life.
Boot time, by which it decides, runs as ever.

Compared are the second fifth of the run and the last, by their medians: memory, file
descriptors, bytes of the ledger with its log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import platform
import random
import statistics
import struct
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.faults.shim import Shim, build_shim  # noqa: E402
from support.node import NodeClient, RemoteError, RunningNode  # noqa: E402

from jupyter_gpushare.protocol.messages import Method  # noqa: E402

WORKERS = 6
TURNS = 40  # of one worker's life
GIB = 2**30
CONFIG = """
c.NodeManagerApp.measure_interval = 1.0
c.NodeManagerApp.history_days = 0.5
c.Policy.heartbeat_timeout = 5.0
c.Policy.max_tasks_per_gpu = 8
c.Connections.calls_per_second = 10000.0
# All are one user here, and what bounds one person is not looked at.
c.Connections.recorded_per_second = 1e9
"""
#: It tidies its ledger every few seconds, as its clock runs fast.
ENTRY = """
import sys
from jupyter_gpushare.node import app, manager
manager.Manager.__init__.__kwdefaults__["tidy_interval"] = 2.0
app.main()
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the node manager has after ``at`` seconds; sizes in bytes."""

    at: float
    leases: int
    memory: int
    descriptors: int
    ledger: int


class Node(RunningNode):
    """It starts by ``ENTRY``."""

    def command(self) -> list[str]:
        line = super().command()
        return [line[0], "-c", ENTRY, *line[3:]]


def work(socket: Path, seed: int, count: mmap.mmap, slot: int) -> None:
    """One worker's life."""
    rng = random.Random(seed)
    done = struct.unpack_from("=q", count, 8 * slot)[0]
    for turn in range(TURNS):
        with contextlib.suppress(OSError, RemoteError), NodeClient(socket) as client:
            lease = client.request(memory=rng.choice((1, 2)) * GIB, wait=False)["lease"]
            done += 1
            struct.pack_into("=q", count, 8 * slot, done)
            for state in ("idle", "busy"):
                client.call(Method.ACTIVITY, lease=lease, state=state)
            client.call(rng.choice((Method.STATUS, Method.WATCH)))
            if turn == TURNS - 1 and rng.random() < 0.5:
                os._exit(0)  # with its lease
            if rng.random() < 0.8:
                client.call(Method.RELEASE, lease=lease)


def look(node: RunningNode, at: float, count: mmap.mmap) -> Sample:
    """What it has now."""
    proc = Path(f"/proc/{node.pid}")
    pages = int((proc / "statm").read_text().split()[1])
    ledger = sum(
        path.stat().st_size for path in node.ledger.parent.glob("ledger.sqlite*") if path.exists()
    )
    leases = sum(struct.unpack(f"={WORKERS}q", count[: 8 * WORKERS]))
    return Sample(at, leases, pages * mmap.PAGESIZE, len(list((proc / "fd").iterdir())), ledger)


def churn(directory: Path, minutes: float, seed: int) -> list[Sample]:
    """Run it; a sample a second."""
    rng = random.Random(seed)
    disk = directory / "state"
    disk.mkdir()
    shim = Shim(build_shim(directory / "lib"), directory / "shim", disk)
    # However long it runs, its clock runs through three weeks.
    haste = 21 * 86400.0 / (minutes * 60)
    count = mmap.mmap(-1, 8 * WORKERS)
    workers: dict[int, int] = {}
    samples: list[Sample] = []
    with Node(
        directory,
        simulate="4x24GiB",
        config=CONFIG,
        environ=shim.environ(os.environ),
        ledger=disk / "ledger.sqlite",
    ) as node:
        began = time.monotonic()
        while (now := time.monotonic() - began) < minutes * 60:
            shim.set_wall(now * haste)
            while len(workers) < WORKERS:
                slot = next(n for n in range(WORKERS) if n not in workers.values())
                own = rng.randrange(2**31)
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        work(node.socket, own, count, slot)
                        status = 0
                    finally:
                        os._exit(status)
                workers[pid] = slot
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == node.pid:
                raise RuntimeError(f"the node manager ended:\n{node.story()[-3000:]}")
            if pid:
                del workers[pid]
                if status:
                    raise RuntimeError(f"a worker ended with status {status}")
                continue
            if now >= len(samples):
                samples.append(look(node, now, count))
            time.sleep(0.01)  # between two looks at workers that have no event for it
        for _ in workers:
            os.wait()
    return samples


def judge(samples: list[Sample]) -> dict[str, Any]:
    """The medians of the second fifth and of the last, and whether they are as good as equal."""
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    # Calls that fail are part of it; a node manager that grants nothing any more is flat, too.
    if late[-1].leases <= samples[-fifth - 1].leases:
        raise RuntimeError("no lease was granted in the last fifth of the time")
    figures: dict[str, Any] = {}
    for name, slack in (("memory", 6 * 2**20), ("descriptors", 6), ("ledger", 2 * 2**20)):
        before = statistics.median(getattr(sample, name) for sample in early)
        after = statistics.median(getattr(sample, name) for sample in late)
        figures[name] = {"before": before, "after": after, "flat": after - before <= slack}
    return figures


def main() -> int:
    """Exit status 1 when something grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-churn-") as scratch:
        samples = churn(Path(scratch), options.minutes, options.seed)
    figures = judge(samples)
    leases = samples[-1].leases
    document = {
        "minutes": options.minutes,
        "python": platform.python_version(),
        "leases": leases,
        "leases_a_second": round(leases / samples[-1].at, 1),
        "figures": figures,
        "samples": [asdict(sample) for sample in samples[:: max(1, len(samples) // 60)]],
    }
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: document[key] for key in document if key != "samples"}, indent=2))
    return 0 if all(figure["flat"] for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
