"""What runs of code needed: a small table in the ledger, beside its records.

A run is one lease of code that has a name of its own (a hash that its client made of path and
content). Only the newest runs are kept: of each code, of each environment and in all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

#: The newest runs that are kept of one code, of one environment, and in all.
OF_CODE: Final = 20
OF_ENVIRONMENT: Final = 500
IN_ALL: Final = 20_000

SCHEMA: Final = (
    """
    CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        lease TEXT NOT NULL UNIQUE,
        environment TEXT NOT NULL,
        code TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        memory INTEGER NOT NULL,
        persistent INTEGER,
        temporary INTEGER,
        shapes TEXT,
        kind TEXT,
        seconds REAL,
        utilisation INTEGER
    )
    """,
    "CREATE INDEX runs_by_environment ON runs (environment, code, seq)",
)

_COLUMNS: Final = (
    "lease, environment, code, gpus, memory, persistent, temporary, shapes, kind, seconds, "
    "utilisation"
)


@dataclass(frozen=True, slots=True)
class Run:
    """The most bytes that a lease of ``gpus`` GPUs was measured to use on one of them.

    ``persistent`` and ``temporary`` are the most that its task told of these parts there, once they
    could be relied on, or ``None`` if it did not. ``shapes`` names the model and the batch that its
    dry run told of, and ``kind`` the kind of GPU. A step took ``seconds`` of computing and
    ``utilisation`` hundredths of the GPU.
    """

    lease: str
    environment: str
    code: str
    gpus: int
    memory: int
    persistent: int | None = None
    temporary: int | None = None
    shapes: str | None = None
    kind: str | None = None
    seconds: float | None = None
    utilisation: int | None = None


def load(connection: sqlite3.Connection) -> list[Run]:
    """All runs, oldest first."""
    return [Run(*row) for row in connection.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY seq")]


def put(connection: sqlite3.Connection, runs: Iterable[Run]) -> None:
    """Keep these, the newest; what is beyond the bounds is forgotten, the oldest first."""
    for run in runs:
        connection.execute("DELETE FROM runs WHERE lease = ?", (run.lease,))
        row = astuple(run)
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO runs ({_COLUMNS}) VALUES ({marks})", row)
        _keep(connection, OF_CODE, "environment = ? AND code = ?", (run.environment, run.code))
        _keep(connection, OF_ENVIRONMENT, "environment = ?", (run.environment,))
    _keep(connection, IN_ALL, "1", ())


def _keep(connection: sqlite3.Connection, most: int, where: str, whose: Sequence[str]) -> None:
    connection.execute(
        f"DELETE FROM runs WHERE seq IN (SELECT seq FROM runs WHERE {where}"
        " ORDER BY seq DESC LIMIT -1 OFFSET ?)",
        (*whose, most),
    )
