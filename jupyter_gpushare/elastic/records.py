"""A job on disk: what it is, what happened, and who leads it.

A folder for each job, in the user's own data folder. ``events`` has a JSON object a line, which the
leader and the workers add: a line is written at once, so that lines never mix. Whoever leads the
job holds a lock.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..client.errors import GpuShareError
from ..jobs.hostside import Job
from ..jobs.store import Stored
from . import core


class ElasticError(GpuShareError):
    """A job cannot begin or go on; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained: ``job.train`` is a pickled function and its data, or a ``command``."""

    job: Job
    min_gpus: int
    max_gpus: int
    command: tuple[str, ...] = ()


class Records(Stored):
    """The records of one job."""

    kind, verb = "job", "elastic"
    error = ElasticError
    runs = "has a leader already, of another kernel or program. Stop it there, or wait for its end."
    place = "elastic"
    parts = ("{}/plan", "{}/checkpoints")
    locks = "{}/lock"

    @classmethod
    def make(cls, plan: Plan) -> Records:
        """A new job. Raises `ElasticError`."""
        name, folder = cls.checked(plan.job.name), cls.folder()
        made = folder / f".{name}.{os.getpid()}"
        # Made under another name, so that nobody finds half of it.
        made.mkdir(mode=0o700, parents=True)
        (made / "checkpoints").mkdir(0o700)
        (made / "plan").touch(0o600)
        (made / "plan").write_bytes(pickle.dumps(plan))
        try:
            os.rename(made, folder / name)
        except OSError as error:
            shutil.rmtree(made)
            raise cls.is_taken(name) from error
        return cls(name)

    def plan(self) -> Plan:
        """What is trained."""
        plan: Plan = pickle.loads(self.at("{}/plan").read_bytes())
        return plan

    @property
    def checkpoints(self) -> Path:
        return self.at("{}/checkpoints")

    @property
    def output(self) -> Path:
        """What the workers print."""
        return self.at("{}/output")

    def _remove(self) -> None:
        # Nobody finds half of it, whenever this ends.
        gone = self.at(f".{{}}.{os.getpid()}")
        os.rename(self.at("{}"), gone)
        shutil.rmtree(gone)

    def add(self, event: str, **words: Any) -> None:
        """Write down what happened."""
        line = json.dumps({"at": time.time(), "event": event, **words}).encode() + b"\n"
        held = os.open(self.at("{}/events"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(held, line)
        finally:
            os.close(held)


class Follower:
    """Reads events from the beginning, and as they come. ``status`` is what they come to."""

    def __init__(self, records: Records) -> None:
        self._path = records.at("{}/events")
        self._at, self._rest = 0, b""
        self._begun: float | None = None
        self._newest = 0.0
        self.status = core.Status(records.name)

    def seconds(self, now: float) -> float:
        """Seconds from the job's begin until now, or until the last thing that happened where it
        is over."""
        if self._begun is None:
            return 0.0
        return (self._newest if self.status.is_over else now) - self._begun

    def read(self) -> core.Status:
        """How the job stands by now."""
        for _ in self.news():
            pass
        return self.status

    def news(self) -> Iterator[dict[str, Any]]:
        """What has come since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return
        self._at += len(text)
        *lines, self._rest = (self._rest + text).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # its writer was killed
            if self._begun is None:
                self._begun = float(event["at"])
            self._newest = float(event["at"])
            self.status = core.told(self.status, event, self._begun)
            yield event
