"""The pool's ledger: its durable events in SQLite, the hosts' addresses, and a clock that goes on.

A writer commits before the state changes, so a pool that is killed at any time comes back with all
that it may have told a host. Every method blocks: call them from one thread, never from a loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from .evolve import evolve
from .state import Host, State
from .words.events import (
    EVENTS,
    BudgetStands,
    Event,
    GroupsTold,
    HostAdded,
    HostForgotten,
    OfSubBudget,
)
from .words.hosts import Environment

#: Marks the file as ours ("pool" in ASCII).
_APPLICATION: Final = 0x706F6F6C
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at REAL NOT NULL,
    wall REAL NOT NULL, by TEXT, host TEXT, environment TEXT, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_whom ON events (seq) WHERE by IS NOT NULL;
CREATE TABLE IF NOT EXISTS hosts (name TEXT PRIMARY KEY, address TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
#: Seconds for another pool to end.
_OTHER_ENDS: Final = 5.0
#: What hosts make the pool write at each change, and what ends that.
_OF_HOSTS: Final = tuple(
    name for name, kind in EVENTS.items() if issubclass(kind, OfSubBudget | HostForgotten)
)


class LedgerProblem(Exception):
    """The ledger cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Audited:
    """Something that a named person did; ``wall`` in Unix seconds."""

    wall: float
    by: str
    kind: str
    data: dict[str, Any]


class PoolLedger:
    """One writer's ledger at ``path``. Raises :class:`LedgerProblem`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _locked(self._lock, time.monotonic() + _OTHER_ENDS):
                os.close(self._lock)
                raise LedgerProblem(
                    f"Another pool uses {path}. End that one, or give this one another --folder."
                )
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._open()
        except OSError as error:
            raise LedgerProblem(f"{path} cannot be used: {error.strerror}.") from error
        except sqlite3.Error as error:
            raise LedgerProblem(f"{path} cannot be used: {error}.") from error

    def _open(self) -> None:
        marks = self._db.execute("PRAGMA application_id").fetchone()[0]
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if marks not in (0, _APPLICATION) or version > _VERSION:
            raise LedgerProblem(
                f"{self.path} is no ledger of a pool, or one of a newer release. Use the release "
                "that wrote it, or move the file away."
            )
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.executescript(_SCHEMA)
        self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LedgerProblem(
                f"{self.path} cannot be written ({error}). Nothing was changed; make room on its "
                "disk, or repair it, and try again."
            ) from error

    # -- events ------------------------------------------------------------------------------------

    def append(self, events: Sequence[Event], wall: float) -> None:
        """Write all of them or none. Raises :class:`LedgerProblem`."""
        with self._transaction():
            for event in events:
                data = msgspec.to_builtins(event)
                row = (
                    type(event).__name__,
                    event.at,
                    wall,
                    # A loan whose time was over was ended by nobody.
                    data.get("by") or None,
                    data.get("host"),
                    data.get("environment"),
                    json.dumps(data),
                )
                self._db.execute(
                    "INSERT INTO events (kind, at, wall, by, host, environment, data) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )

    def load(self) -> list[Event]:
        """All events, the oldest first. Raises :class:`LedgerProblem`."""
        return [
            self._event(*row)
            for row in self._db.execute("SELECT seq, kind, data FROM events ORDER BY seq")
        ]

    def _event(self, seq: int, kind: str, data: str) -> Event:
        try:
            return msgspec.convert(json.loads(data), type=EVENTS[kind])
        except (KeyError, ValueError) as error:
            raise LedgerProblem(
                f"{self.path}: record {seq} ({kind!r}) cannot be read: {error}. Use the release "
                "that wrote it, or restore a copy."
            ) from error

    def prune(self) -> int:
        """Put how each sub-budget stands in place of its history; how many records went.

        Of groups that a host named for somebody the newest stay, if something is lent there. So
        however often a host changes its mind, and whatever names it invents, two records stay for
        each environment to which something is lent there. What people did stays.
        """
        marks = ", ".join("?" * len(_OF_HOSTS))
        rows = self._db.execute(
            f"SELECT seq, kind, data FROM events WHERE kind IN ({marks}) ORDER BY seq", _OF_HOSTS
        )
        known: dict[tuple[str, Environment], list[tuple[int, Event]]] = {}
        old: list[int] = []
        for seq, kind, data in rows:
            event: Any = self._event(seq, kind, data)
            if isinstance(event, HostForgotten):
                for key in [key for key in known if key[0] == event.host]:
                    old += (before for before, _event in known.pop(key))
            else:
                known.setdefault((event.host, event.environment), []).append((seq, event))
        stands: list[tuple[str, str, int]] = []
        for (host, environment), several in known.items():
            lending = [seq for seq, event in several if not isinstance(event, GroupsTold)]
            told = [seq for seq, event in several if isinstance(event, GroupsTold)]
            after = _after(host, (event for _seq, event in several))
            old += told[:-1] if environment in after.told and environment in after.out else told
            if (out := after.out.get(environment)) is None:
                old += lending
                continue
            *before, newest = lending
            old += before
            now = BudgetStands(several[-1][1].at, host, environment, **asdict(out))
            data = json.dumps(msgspec.to_builtins(now))
            stands.append((BudgetStands.__name__, data, newest))
        with self._transaction():
            self._db.executemany("UPDATE events SET kind = ?, data = ? WHERE seq = ?", stands)
            self._db.executemany("DELETE FROM events WHERE seq = ?", [(seq,) for seq in old])
        return len(old)

    def audit(self, limit: int) -> list[Audited]:
        """What people did, the newest first."""
        rows = self._db.execute(
            "SELECT wall, by, kind, data FROM events WHERE by IS NOT NULL "
            "ORDER BY seq DESC LIMIT ?",
            (limit,),
        )
        return [Audited(wall, by, kind, json.loads(data)) for wall, by, kind, data in rows]

    # -- hosts' addresses --------------------------------------------------------------------------

    def addresses(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT name, address FROM hosts"))

    def keep_address(self, host: str, address: str | None) -> None:
        """Where a host is; ``None`` forgets it."""
        with self._transaction():
            if address is None:
                self._db.execute("DELETE FROM hosts WHERE name = ?", (host,))
            else:
                self._db.execute("INSERT OR REPLACE INTO hosts VALUES (?, ?)", (host, address))

    # -- time --------------------------------------------------------------------------------------

    def last_at(self) -> float:
        """The newest time of an event, on the pool's clock."""
        found = self._db.execute("SELECT MAX(at) FROM events").fetchone()[0]
        return float(found or 0.0)

    def recall(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def remember(self, facts: Iterable[tuple[str, str]]) -> None:
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts)


def _locked(file: int, until: float) -> bool:
    """Take the lock; an earlier pool may be just ending."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        else:
            return True


def _after(host: str, events: Iterable[Event]) -> Host:
    """A host after these events, and no others."""
    state = evolve(State(), HostAdded(0.0, host, ""))
    for event in events:
        state = evolve(state, event)
    return state.hosts[host]
