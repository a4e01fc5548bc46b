"""A sweep on disk: what it tries, and what came of it. Each end is one transaction.

One SQLite file for each sweep, in the user's own data folder; whoever runs the sweep holds a lock,
so that no second process runs it, too. Anybody of the same user may read meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ..client.errors import GpuShareError
from .core import Phase, Pick
from .hostside import Ended, Job
from .store import Stored

_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE sweep (version INTEGER, job BLOB, plan TEXT);
CREATE TABLE models (number INTEGER PRIMARY KEY, candidate BLOB, phase TEXT, attempt INTEGER,
  host TEXT, gpus TEXT, started REAL, ended REAL, result TEXT, error TEXT, output TEXT);
CREATE TABLE reports (number INTEGER, attempt INTEGER, at REAL, said TEXT);
CREATE INDEX reports_of ON reports (number, attempt);
"""


class SweepError(GpuShareError):
    """A sweep cannot begin or go on; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the models of a sweep get their cards. Rounds begin ``every`` seconds."""

    pick: Pick = Pick.RANDOM
    seed: int = 0
    every: float = 1.0
    answer_within: float = 5.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model as it is recorded. ``last`` is the newest report of its last attempt.

    ``gpus`` are the UUIDs of what it was granted, and ``where`` is how people name these.
    """

    number: int
    candidate: Any
    phase: Phase
    attempt: int
    host: str
    gpus: tuple[str, ...]
    where: str
    started: float | None
    ended: float | None
    result: Any
    error: str
    output: str
    last: Mapping[str, Any]

    @property
    def came(self) -> Mapping[str, Any]:
        """Its result by name."""
        return by_name(self.result)

    @property
    def row(self) -> dict[str, Any]:
        """The candidate's values, then the result's: a line of a table.

        What a table says of each model keeps its name. A value of the candidate or of the result
        that is called the same is ``given.NAME`` or ``result.NAME``.
        """
        given = self.candidate if isinstance(self.candidate, Mapping) else {"x": self.candidate}
        seconds = None
        if self.started is not None and self.ended is not None:
            seconds = round(self.ended - self.started, 3)
        own = {
            "phase": self.phase.value,
            "host": self.host,
            "gpus": self.where,
            "attempts": self.attempt,
            "seconds": seconds,
            "error": self.error,
        }
        row: dict[str, Any] = {"model": self.number}
        for kind, values in (("given", given), ("result", self.came or self.last)):
            row |= {f"{kind}.{k}" if k in row or k in own else k: v for k, v in values.items()}
        return row | own


def _named(granted: str) -> tuple[tuple[str, ...], str]:
    """UUIDs and names of the GPUs in a record."""
    known = [one.partition("=") for one in granted.split()]
    return tuple(uuid for uuid, _, _ in known), ", ".join(f"GPU {n}" for _, _, n in known)


def by_name(result: Any) -> Mapping[str, Any]:
    """A result by name; one that has no names is ``result``."""
    if isinstance(result, Mapping):
        return result
    return {} if result is None else {"result": result}


class Records(Stored):
    """The records of one sweep. One thread writes, between `open` and `close`; any may read."""

    kind = verb = "sweep"
    error = SweepError
    runs = (
        "runs already, in another kernel or program. Stop it there, or wait for its end; "
        "`sweep.look` and `--show` say how it stands."
    )
    place = "sweeps"
    parts = ("{}.sqlite",)
    locks = "{}.lock"

    def __init__(self, name: str) -> None:
        """Raises `SweepError`: there is none, it is of a later release, or not one's own."""
        super().__init__(name)
        self.path = self.at("{}.sqlite")
        with self._read() as db:
            version, job, plan = db.execute("SELECT version, job, plan FROM sweep").fetchone()
        if version != _VERSION:
            raise SweepError(f"Sweep {self.name!r} is of another release of jupyter_gpushare.")
        self.job: Job = pickle.loads(job)
        self.plan = msgspec.json.decode(plan, type=Plan)

    @classmethod
    def make(cls, job: Job, plan: Plan, candidates: Iterable[Any]) -> Records:
        """A new sweep. Raises `SweepError`."""
        name, folder = cls.checked(job.name), cls.folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, made = folder / f"{name}.sqlite", folder / f".{name}.{os.getpid()}"
        made.unlink(missing_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as db:
                os.chmod(made, 0o600)
                db.execute("PRAGMA journal_mode=WAL")
                db.executescript(_TABLES)
                db.execute("BEGIN")
                words = msgspec.json.encode(plan).decode()
                db.execute(
                    "INSERT INTO sweep VALUES (?, ?, ?)", (_VERSION, pickle.dumps(job), words)
                )
                db.executemany(
                    "INSERT INTO models VALUES"
                    " (?, ?, 'queued', 0, '', '', NULL, NULL, NULL, '', '')",
                    ((number, pickle.dumps(given)) for number, given in enumerate(candidates)),
                )
                db.execute("COMMIT")
            # Its whole content is there at once, and no other sweep's is ever replaced.
            os.link(made, path)
        except FileExistsError as error:
            raise cls.is_taken(name) from error
        finally:
            made.unlink(missing_ok=True)
        return cls(name)

    def open(self) -> None:
        """From now on this process runs it. Raises `SweepError` where another one does."""
        self._lock = self.lock()
        self._db = _opened(self.path)

    def retry(self) -> None:
        """Models that have failed are to run again."""
        failed = "UPDATE models SET phase='queued', result=NULL, error='' WHERE phase='failed'"
        self._db.execute(failed)

    def _remove(self) -> None:
        # SQLite would take what is left of it for a part of a later sweep of this name.
        for end in ("-wal", "-shm", ""):
            Path(f"{self.path}{end}").unlink(missing_ok=True)
        self.at(self.locks).unlink()  # while it is ours: the next one is another sweep's

    def close(self) -> None:
        """Somebody else may run it."""
        self._db.close()
        os.close(self._lock)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written meanwhile is on the disk afterwards, or none of it."""
        # Not deferred: one that begins by reading fails at its first write if another wrote in
        # between.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _read(self) -> contextlib.closing[sqlite3.Connection]:
        return contextlib.closing(_opened(self.path))

    def underway(self) -> set[int]:
        """Models whose last attempt has begun and not ended: they run, if the sweep runs."""
        with self._read() as db:
            rows = db.execute(
                "SELECT number FROM models WHERE phase='queued' AND started IS NOT NULL"
                " AND (ended IS NULL OR ended < started)"
            )
            return {number for (number,) in rows}

    def standing(self) -> list[tuple[int, Phase, int, str, Mapping[str, Any]]]:
        """Number, phase, last attempt, host (empty if it had none) and result of each model."""
        columns = "number, phase, attempt, host, result"
        with self._read() as db:
            rows = db.execute(f"SELECT {columns} FROM models ORDER BY number")
            return [
                (number, Phase(phase), *known, by_name(json.loads(result) if result else None))
                for number, phase, *known, result in rows
            ]

    def candidate(self, number: int) -> bytes:
        """The model's candidate, pickled."""
        (given,) = self._db.execute(
            "SELECT candidate FROM models WHERE number=?", (number,)
        ).fetchone()
        return bytes(given)

    def started(self, number: int, attempt: int, host: str) -> None:
        """An attempt begins."""
        self._db.execute(
            "UPDATE models SET attempt=?, host=?, gpus='', started=?, error='' WHERE number=?",
            (attempt, host, time.time(), number),
        )

    def granted(self, number: int, gpus: Iterable[str], numbers: Iterable[str]) -> None:
        """The node manager granted these, with their numbers for people."""
        known = " ".join(map("=".join, zip(gpus, numbers, strict=True)))
        self._db.execute("UPDATE models SET gpus=? WHERE number=?", (known, number))

    def reported(self, number: int, attempt: int, values: Mapping[str, Any]) -> None:
        """A model said how it does."""
        row = (number, attempt, time.time(), json.dumps(values))
        self._db.execute("INSERT INTO reports VALUES (?, ?, ?, ?)", row)

    def ended(self, told: Ended, phase: Phase | None) -> None:
        """An attempt ended; ``phase`` is final, or ``None``. What is final is never changed."""
        result = None if told.result is None else json.dumps(told.result)
        self._db.execute(
            "UPDATE models SET phase=?, ended=?, result=?, error=?, output=?"
            " WHERE number=? AND phase NOT IN ('done', 'failed')",
            (
                *((phase or Phase.QUEUED).value, time.time(), result),
                *(told.error, told.output, told.number),
            ),
        )

    def models(self) -> Iterator[Model]:
        """All of them, as they are recorded now."""
        columns = "number, candidate, phase, attempt, host, gpus, started, ended, result, error"
        with self._read() as db:
            last = dict(
                db.execute(
                    "SELECT number, said FROM reports WHERE rowid IN"
                    " (SELECT max(rowid) FROM reports GROUP BY number)"
                )
            )
            found = db.execute(f"SELECT {columns}, output FROM models ORDER BY number").fetchall()
        for row in found:
            number, given, phase, attempt, host, gpus, started, ended, result, error, output = row
            yield Model(
                number,
                pickle.loads(given),
                Phase(phase),
                attempt,
                host,
                *_named(gpus),
                started,
                ended,
                None if result is None else json.loads(result),
                error,
                output,
                json.loads(last.get(number, "{}")),
            )

    def reports(self) -> list[tuple[int, dict[str, Any]]]:
        """What each model reported in its last attempt, in order."""
        with self._read() as db:
            found = db.execute(
                "SELECT number, said FROM reports JOIN models USING (number, attempt)"
                " ORDER BY number, reports.rowid"
            ).fetchall()
        return [(number, json.loads(said)) for number, said in found]


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
