"""``elastic.run(train, min_gpus=1, max_gpus=8)``: begin a job, follow it, stop it.

The job itself is led by a process of its own. Where that dies, another one takes its place.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ..jobs import hostside
from ..jobs.show import Running
from ..jobs.sweeps import pickled
from ..protocol.sizes import Memory
from . import checkpoints, show
from .core import Phase, Status
from .records import ElasticError, Follower, Plan, Records

#: How many leaders a job has, one after the other, until it fails.
MOST_LEADERS: Final = 4
#: Seconds in which the lock of a leader that died must be free.
_FREE_WITHIN: Final = 10.0


class Job(Running):
    """A job that runs, or has run. Its methods may be called from any thread."""

    def __init__(self, records: Records) -> None:
        """Raises `ElasticError` where another process leads it."""
        super().__init__()
        self._records = records
        self.name = records.name
        self._stopping = False
        self._lock = threading.Lock()
        self._follower = Follower(records)
        self._leader = self._started(records.lock())
        threading.Thread(target=self._follow, name="gpushare-elastic", daemon=True).start()

    def stop(self) -> None:
        """Let it save after the step under way, and end; and wait for that.

        `elastic.load` goes on with it.
        """
        self._stopping = True
        with contextlib.suppress(OSError):
            assert self._leader.stdin is not None
            self._leader.stdin.write(b"stop\n")
            self._leader.stdin.flush()
        self._over.wait()

    def status(self) -> Status:
        """How it stands now."""
        with self._lock:
            return self._follower.read()

    def page(self) -> str:
        """All that is shown of it, as HTML."""
        return show.page(self.status(), self.seconds)

    def result(self) -> Any:
        """What ``train`` returned on rank 0, where it is numbers, texts, or dicts or lists of them;
        ``None`` if there is nothing, or not yet."""
        found = [event for event in Follower(self._records).news() if event["event"] == "result"]
        return found[-1]["value"] if found else None

    def checkpoint(self) -> Path | None:
        """The newest saved state: ``torch.load(path, weights_only=False)["kept"]["model"]``."""
        return next(iter(checkpoints.found(self._records.checkpoints)), None)

    @property
    def seconds(self) -> float:
        """Seconds from its begin until now, or until its end."""
        with self._lock:
            return self._follower.seconds(time.time())

    @property
    def output(self) -> Path:
        """The file with what all workers print."""
        return self._records.output

    # -- inside -------------------------------------------------------------------------

    def _started(self, lock: int) -> subprocess.Popen[bytes]:
        """A leader, which has the lock from now on."""
        try:
            with open(self._records.output, "ab") as output:
                return subprocess.Popen(
                    [sys.executable, "-m", "jupyter_gpushare.elastic.leader", self.name],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(lock,),
                    env={k: v for k, v in os.environ.items() if k not in hostside.NOT_INHERITED},
                    start_new_session=True,  # Ctrl-C in a terminal is not for it
                )
        finally:
            os.close(lock)

    def _follow(self) -> None:
        try:
            for number in range(1, MOST_LEADERS + 1):
                code = self._leader.wait()
                assert self._leader.stdin is not None
                self._leader.stdin.close()
                if self.status().is_over:
                    break
                how = f"The leader's process ended with the code {code}."
                # It was on its way out: another leader would start all of it again.
                if self._stopping:
                    self._records.add("ended", phase=Phase.STOPPED.value, reason=how)
                elif number == MOST_LEADERS:
                    reason = f"{how} It was the {number}th one. See {self._records.output}."
                    self._records.add("ended", phase=Phase.FAILED.value, reason=reason)
                else:
                    self._records.add("said", text=f"{how} Another one takes its place.")
                    self._leader = self._started(self._records.lock(_FREE_WITHIN))
        finally:
            self._over.set()


def run(
    train: Callable[[], Any],
    *,
    min_gpus: int = 1,
    max_gpus: int = 8,
    data: Any = None,
    name: str | None = None,
    memory: Memory | str | None = None,
) -> Job:
    """Train one model on as many idle GPUs of this host as there are just now.

    ``train()`` runs once on each GPU, in a process of its own, each under a lease of the class
    ``batch`` with ``memory`` (default: what the quota gives); it names its state with
    ``elastic.keep`` and takes its samples from ``elastic.batches``, by default those of ``data``.
    When a GPU becomes idle, the job grows up to ``max_gpus``; when a notebook wants one back, it
    goes on with one less. With fewer than ``min_gpus`` it waits. ``name`` is the job's key: there
    is one leader for each.

    Returns at once. Raises :class:`ElasticError`, :class:`ValueError`.
    """
    hostside.must_be_callable(train)
    needed = [
        name
        for name, one in inspect.signature(train).parameters.items()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        raise ValueError(
            f"train is called without arguments, and it needs {', '.join(needed)}: give them "
            "defaults, or say elastic.run(lambda: train(…))."
        )
    if data is not None and not hasattr(data, "__len__"):
        raise ValueError(
            f"data is {type(data).__name__!r}, and has no length: give a dataset with __len__ and "
            "__getitem__, so that each GPU gets its part of it."
        )
    return begun(pickled((train, data), ElasticError), (), min_gpus, max_gpus, name, memory)


def begun(
    train: bytes,
    command: Sequence[str],
    min_gpus: int,
    max_gpus: int,
    name: str | None,
    memory: Memory | str | None,
) -> Job:
    """A new job, of a pickled function and its data, or of a command. Raises as `run`."""
    for what, count in (("min_gpus", min_gpus), ("max_gpus", max_gpus)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{what}={count!r}: it must be a whole number, 1 at least.")
    if min_gpus > max_gpus:
        raise ValueError(
            f"min_gpus={min_gpus} is more than max_gpus={max_gpus}: the job would never begin. "
            "Raise the latter, or lower the former."
        )
    work = hostside.Job.here("elastic", name, train, memory)
    return Job(Records.make(Plan(work, min_gpus, max_gpus, tuple(command)))).shown()


def load(name: str) -> Job:
    """Go on with a job that was stopped, failed, or whose kernel or machine died: from its newest
    checkpoint. Raises :class:`ElasticError`."""
    return Job(Records(name)).shown()


def delete(name: str) -> None:
    """Remove a job with its checkpoints and its output. Raises :class:`ElasticError` where it runs,
    or where there is none of this name."""
    Records(name).delete()
