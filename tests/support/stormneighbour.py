"""Somebody who needs the GPU again and again, for an instant: ``python -m support.stormneighbour``.

``FOLDER SEED`` follow. Who it is and where the node manager is, is in the environment. It writes
down when it had the GPU, and whether its memory there was right.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from pathlib import Path

from jupyter_gpushare.keeper.holding import Holding
from jupyter_gpushare.protocol.messages import Method
from support.cudaprogram import Bindings
from support.stormserver import MEMORY, Notes

WANTS = {"task": {"name": "neighbour", "kind": "process"}, "memory": 3 * 2**30, "wait": True}


def use(seconds: float, text: str) -> None:
    """In a process of its own, since a context goes with its process only."""
    cuda = Bindings()
    cuda.start()
    block = cuda.allocate(MEMORY)
    cuda.write(block, text)
    first = cuda.checksum(block, len(text))
    time.sleep(seconds)
    assert cuda.checksum(block, len(text)) == first


def main(folder: Path, seed: int) -> None:
    rng, notes = random.Random(seed), Notes(folder / "neighbour")
    forks = multiprocessing.get_context("forkserver")
    holding = Holding(
        os.environ,
        on_lost=lambda lease, message, released: None if released else notes.note(what="lost"),
        on_notice=lambda message: None,
    )
    for turn in range(10**9):
        holding.ask_for(WANTS, 0.0, lambda news: None, lambda: None, lambda left: None)
        notes.note(what="granted")
        process = forks.Process(target=use, args=(rng.uniform(0.05, 0.3), f"turn {turn}"))
        process.start()
        process.join()
        notes.note(what="released", right=process.exitcode == 0)
        holding.session.let_go(str(holding.lease))
        holding.session.call(Method.RELEASE, again=True, lease=holding.lease)
        holding.forget()
        time.sleep(rng.uniform(0.0, 0.2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
