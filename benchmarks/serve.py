"""What the proxy of ``jupyter gpushare serve`` adds to a request, beside the server alone.

``python benchmarks/serve.py`` prints one JSON object: medians and 99th percentiles in seconds, of a
small request and of the first event of a stream, with and without the proxy, by turns. The server
is a process of its own, and so is the proxy; it is awake, for that is what each request pays.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.kept import StandInKeeper
from support.modelserver import running

from jupyter_gpushare.serve.adapters.base import Adapter
from jupyter_gpushare.serve.gate import Bounds, Gate
from jupyter_gpushare.serve.proxy import Proxy
from jupyter_gpushare.serve.token import Token
from jupyter_gpushare.serve.upstream import Control, free_port

ROUNDS, WARM = 1000, 50
TOKEN = "a-token"
ASKED = {"request": "/echo", "stream": "/stream?events=1&now=1"}


def front(server: int, port: int, ready: Any) -> None:
    """The proxy, in a process of its own."""

    async def serve() -> None:
        keeper: Any = StandInKeeper()
        proxy = Proxy(keeper, Control(server), Adapter(), Gate(Bounds()), Token(TOKEN))
        await proxy.start("127.0.0.1", port)
        await proxy.starts(lambda: None)
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(serve())


def took(line: http.client.HTTPConnection, path: str) -> float:
    began = time.perf_counter()
    line.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    answer = line.getresponse()
    answer.read(1)
    seconds = time.perf_counter() - began
    answer.read()
    assert answer.status == 200
    return seconds


def measure(rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Seconds without the proxy, with it, and what it adds."""
    server, port, found = free_port(), free_port(), {}
    ready = multiprocessing.Event()
    with running(server):
        proxy = multiprocessing.Process(target=front, args=(server, port, ready), daemon=True)
        proxy.start()
        assert ready.wait(60)
        lines = [http.client.HTTPConnection("127.0.0.1", at) for at in (server, port)]
        for name, path in ASKED.items():
            times = [[took(line, path) for line in lines] for _ in range(WARM + rounds)][WARM:]
            without, with_us = (sorted(of) for of in zip(*times, strict=True))
            found[name] = {
                "without": statistics.median(without),
                "with_us": statistics.median(with_us),
                "adds": statistics.median(mine - alone for alone, mine in times),
                "adds_p99": with_us[int(0.99 * rounds)] - without[int(0.99 * rounds)],
                "ratio": statistics.median(with_us) / statistics.median(without),
            }
        proxy.kill()
    return found


if __name__ == "__main__":
    json.dump(measure(), sys.stdout, indent=1)
    print()
