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

from jupyter_core.paths import jupyter_data_dir

from ..client.errors import GpuShareError
from ..jobs.hostside import Job
from ..jobs.place import checked, is_locked, lock, must_be_own
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


def folder() -> Path:
    """Where this user's jobs are."""
    return Path(jupyter_data_dir()) / "gpushare" / "elastic"


def names() -> list[str]:
    """This user's jobs, the newest first."""
    found = sorted(folder().glob("*/plan"), key=lambda path: -path.stat().st_mtime)
    return [path.parent.name for path in found]


class Records:
    """The records of one job."""

    def __init__(self, name: str) -> None:
        """Raises `ElasticError` where there is no such job, or it is not one's own."""
        self.name = checked(name, ElasticError)
        self.path = folder() / name
        try:
            for part in (self.path / "plan", self.checkpoints):
                must_be_own(part, ElasticError)
        except FileNotFoundError:
            known = ", ".join(names()[:5]) or "none"
            raise ElasticError(
                f"There is no job {name!r} in {folder()} (there: {known})."
            ) from None

    @classmethod
    def make(cls, plan: Plan) -> Records:
        """A new job. Raises `ElasticError`."""
        name = checked(plan.job.name, ElasticError)
        path, made = folder() / name, folder() / f".{name}.{os.getpid()}"
        made.mkdir(mode=0o700, parents=True)
        (made / "checkpoints").mkdir(0o700)
        (made / "plan").touch(0o600)
        (made / "plan").write_bytes(pickle.dumps(plan))
        try:
            os.rename(made, path)
        except OSError as error:
            shutil.rmtree(made)
            raise ElasticError(
                f"There is a job {name!r} already. Go on with it (in a notebook "
                f"`elastic.load({name!r})`, in a terminal `jupyter gpushare elastic --resume "
                f"{name}`), or take another name."
            ) from error
        return cls(name)

    def plan(self) -> Plan:
        """What is trained."""
        plan: Plan = pickle.loads((self.path / "plan").read_bytes())
        return plan

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def output(self) -> Path:
        """What the workers print."""
        return self.path / "output"

    def lock(self) -> int:
        """A descriptor that keeps others from leading it. Raises `ElasticError`: one does."""
        held = lock(self.path / "lock")
        if held is None:
            raise ElasticError(
                f"Job {self.name!r} has a leader already, of another kernel or program. Stop it "
                "there, or wait for its end."
            )
        return held

    def is_run(self) -> bool:
        """Whether some process leads it now."""
        return is_locked(self.path / "lock")

    def delete(self) -> None:
        """Remove it, with its checkpoints. Raises `ElasticError` where it runs."""
        held = self.lock()
        try:
            # Nobody finds half of it, whenever this ends.
            gone = self.path.with_name(f".{self.name}.{os.getpid()}")
            os.rename(self.path, gone)
            shutil.rmtree(gone)
        finally:
            os.close(held)

    def add(self, event: str, **words: Any) -> None:
        """Write down what happened."""
        line = json.dumps({"at": time.time(), "event": event, **words}).encode() + b"\n"
        held = os.open(self.path / "events", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(held, line)
        finally:
            os.close(held)

    def follow(self) -> Follower:
        """Reads what happened, from the beginning."""
        return Follower(self)

    def status(self) -> core.Status:
        """How it stands."""
        return core.folded(self.name, self.follow().news())


class Follower:
    """Reads events as they come. ``status`` is what they come to."""

    def __init__(self, records: Records) -> None:
        self._path = records.path / "events"
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
