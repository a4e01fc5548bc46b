"""Starts workers, lets them go at once, and takes down what they say.

With PEERS_DEBUG in the environment their own messages are shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from observed import Hold

WORKERS = Path(__file__).resolve().parent / "workers"
#: Seconds within which a crew must be done.
PATIENCE = 180.0


@dataclass
class Worker:
    """One process; ``told`` is what it has said so far."""

    number: int
    process: subprocess.Popen[str]
    told: list[dict[str, Any]] = field(default_factory=list)
    reader: threading.Thread | None = None

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def said(self, event: str) -> bool:
        """Whether it has said so."""
        return any(line["event"] == event for line in self.told)


@contextlib.contextmanager
def crew(
    python: str,
    script: str,
    arguments: Sequence[object],
    environments: Sequence[Mapping[str, str]],
    heard: Callable[[Worker, dict[str, Any]], None] = lambda worker, line: None,
) -> Iterator[list[Worker]]:
    """One worker for each of ``environments``, all ready to go; ended with the block."""
    workers = []
    try:
        for number, environ in enumerate(environments):
            process = subprocess.Popen(
                [python, str(WORKERS / script), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if os.environ.get("PEERS_DEBUG") else subprocess.DEVNULL,
                text=True,
                env=dict(environ),
            )
            workers.append(Worker(number, process))
        for worker in workers:
            assert worker.process.stdout is not None
            line = worker.process.stdout.readline()
            if line != "ready\n":
                raise RuntimeError(f"{script} did not start: {line!r}")
            worker.reader = threading.Thread(target=_read, args=(worker, heard), daemon=True)
            worker.reader.start()
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            if worker.reader is not None:
                worker.reader.join()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def _read(worker: Worker, heard: Callable[[Worker, dict[str, Any]], None]) -> None:
    assert worker.process.stdout is not None
    for text in worker.process.stdout:
        line = json.loads(text)
        worker.told.append(line)
        heard(worker, line)


def finish(workers: Sequence[Worker]) -> list[Hold]:
    """Wait until all have ended by themselves; what they held."""
    deadline = time.monotonic() + PATIENCE
    for worker in workers:
        status = worker.process.wait(max(0.1, deadline - time.monotonic()))
        assert worker.reader is not None
        worker.reader.join()
        if status != 0:
            raise RuntimeError(f"worker {worker.number} ended with status {status}")
    return holds(workers)


def holds(workers: Sequence[Worker]) -> list[Hold]:
    """What was held and given back."""
    return [
        Hold(worker.number, line["gpu"], line["asked"], line["got"], line["gone"])
        for worker in workers
        for line in worker.told
        if line["event"] == "gone"
    ]


def until(look: Callable[[], object], what: str, within: float = 60.0) -> float:
    """Seconds until ``look`` says yes."""
    began = time.monotonic()
    while not look():
        if time.monotonic() - began > within:
            raise RuntimeError(f"not within {within} s: {what}")
        time.sleep(0.005)
    return time.monotonic() - began


def say(text: str) -> None:
    """Progress, for who waits."""
    print(text, file=sys.stderr, flush=True)
