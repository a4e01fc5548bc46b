"""Placement by a real pool's process over many hosts that are pretended at their end of the wire.

``python benchmarks/pool.py`` prints JSON: how long ``pool.where`` takes while all hosts report, and
what the pool costs. The hosts speak real TLS and the real protocol; they have no GPUs, no policy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.pool import join
from support.runningpool import RunningPool

from jupyter_gpushare.pool import ledger
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.pool.words import events as ev
from jupyter_gpushare.protocol.poolcalls import PoolMethod

BOOT = "00000000-0000-0000-0000-000000000000"


class Pretended:
    """One host: it reports at random, and accepts what it is lent."""

    def __init__(self, name: str, gpus: int, leases: int, context: ssl.SSLContext) -> None:
        self.name, self.gpus, self.context = name, gpus, context
        self.held = {f"{name}-{n}": 1 for n in range(leases)}
        self.lent: dict[str, int] = {}
        self.reports = 0

    def report(self) -> dict[str, Any]:
        free = [random.randrange(80 * 2**30) for _ in range(self.gpus)]
        rows = [
            {"environment": who, "held": held, "parked": 0, "parked_bytes": 0, "waiting": 0,
             "gpu_hours": 1.0, "lent": self.lent.get(who, 0)}
            for who, held in self.held.items()
        ]  # fmt: skip
        gpus = [
            {"uuid": f"{self.name}-GPU-{n}", "index": n, "kind": "A100", "memory": 80 * 2**30,
             "free_memory": free[n], "free_share": random.randrange(101), "out": None,
             "exclusive_free": False}
            for n in range(self.gpus)
        ]  # fmt: skip
        return {
            "name": self.name, "boot_id": BOOT, "at": time.monotonic(), "version": "0",
            "seconds": 60.0, "draining": None, "empty": False, "gpus": gpus, "environments": rows,
            "wants": [], "queue": random.randrange(9), "expected_wait": None, "talking": [],
        }  # fmt: skip

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        if method == "pool.follow":
            return self.report()
        if method == "pool.lend":
            told = {one["environment"]: one["gpus"] for one in params["budgets"]}
            self.lent |= told
            rows = [(who, max(gpus, self.held.get(who, 0))) for who, gpus in told.items()]
            return {"environments": [
                {"environment": who, "gpus": gpus, "held": self.held.get(who, 0)}
                for who, gpus in rows
            ]}  # fmt: skip
        return {"node": {"name": self.name}}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        telling = asyncio.create_task(self.tell(writer))
        try:
            while line := await reader.readline():
                call = json.loads(line)
                result = self.answer(call["method"], call.get("params", {}))
                writer.write(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})
                             .encode() + b"\n")  # fmt: skip
        except ConnectionError:
            pass  # the pool has ended
        finally:
            telling.cancel()
            writer.close()

    async def tell(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(random.uniform(0.5, 1.5))
            self.reports += 1
            note = {"jsonrpc": "2.0", "method": "report", "params": self.report()}
            writer.write(json.dumps(note).encode() + b"\n")
            await writer.drain()


async def measure(folder: Path, hosts: int, gpus: int, leases: int, asked: int) -> dict[str, Any]:
    authority = Authority.create(folder / "lab" / "pool", "gpushare", time.time())
    book = ledger.opened(folder / "lab" / "pool" / "ledger.sqlite")
    several, addresses = [], dict[str, str]()
    for n in range(hosts):
        name = f"h{n:03}"
        (folder / name).mkdir()
        context = join(authority, folder / name / "pool", name).context()
        one = Pretended(name, gpus, leases // hosts, context)
        server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=context, limit=2**24)
        port = server.sockets[0].getsockname()[1]
        addresses[name] = f"127.0.0.1:{port}"
        ledger.append(book, [ev.HostsChanged(0.0, name, True, "bench")], time.time())
        several.append((one, server))
    book.remember("addresses", addresses)
    book.close()
    pool = RunningPool(folder / "lab", {"default": {"gpus": 2}})
    pool.arguments = ["--Pool.answer_timeout=10"]
    began = time.monotonic()
    await asyncio.to_thread(pool.start)
    try:
        while not all(one.reports > 2 for one, _ in several):
            await asyncio.sleep(0.1)
        ready = time.monotonic() - began
        process = psutil.Process(pool.pid)
        cpu, before = process.cpu_times(), time.monotonic()
        heard = sum(one.reports for one, _ in several)
        took = []
        for n in range(asked):
            begun = time.perf_counter()
            answer = await asyncio.to_thread(
                pool.ask, PoolMethod.WHERE, environment=f"p{n}", gpus=1, memory=8 * 2**30
            )
            took.append(time.perf_counter() - begun)
            assert len(answer["hosts"]) == hosts
            await asyncio.sleep(0.01)
        after, spent = process.cpu_times(), time.monotonic() - before
        took.sort()
        used = after.user + after.system - cpu.user - cpu.system
        return {
            "hosts": hosts, "gpus": hosts * gpus, "leases": leases, "asked": asked,
            "p50_ms": round(took[len(took) // 2] * 1e3, 1),
            "p99_ms": round(took[int(len(took) * 0.99)] * 1e3, 1),
            "reports_per_s": round((sum(one.reports for one, _ in several) - heard) / spent),
            "pool_cpu_percent": round(100 * used / spent, 1),
            "pool_mib": round(process.memory_info().rss / 2**20),
            "ready_s": round(ready, 1),
        }  # fmt: skip
    finally:
        await asyncio.to_thread(pool.close)
        for _, server in several:
            server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("hosts", 100), ("gpus", 8), ("leases", 5000), ("asked", 500)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    with tempfile.TemporaryDirectory(prefix="pool-bench-") as place:
        told = asyncio.run(measure(Path(place), **vars(parser.parse_args())))
    print(json.dumps(told, indent=2))
