"""The ledger: the durable record of quotas, leases and every event. SQLite, one writer.

A node manager may be killed at any instruction, and the next one must know every lease that
somebody was told of. So the ledger does not store the state, it stores the events that made the
state: they are appended before anybody hears of them, and a start folds them again. A snapshot
stands for the oldest of them, in the same form, so that a start need not read the whole history and
old history can be forgotten. A record is never changed, only forgotten.

Two accidents are told apart. When the process is killed, all that :meth:`Ledger.append` returned
for stays, because the operating system has it (write-ahead log). When the power fails, only what
the disk has stays (``synchronous=FULL``), and to wait for a disk is slow. But no lease outlives the
boot, so what happens to leases need not wait for it, and a grant is quick. Everything else, such as
quotas, waits.

What must always hold: an append writes all of its records or none, and after a failure the next one
may succeed, so a full disk stops new leases only. One node manager has a ledger, by a lock beside
it. A file of a newer release is left as it is. A damaged file is never repaired and never deleted:
it is set aside, a new one begins, and whoever holds a lease presents a voucher for it.

Of the policy the ledger knows the kinds of events only: a record has a kind, two times, the
environment and lease that it concerns, and JSON with a version that says which releases can read
it. Sums of usage are kept as records come in, so that they outlive the records.

Every method blocks: call them from one executor thread, never from an event loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import quote

from .._version import __version__
from ..daemon.privatefile import settle
from ..policy.words.events import EVENTS, ActivityChanged
from ..policy.words.versions import FIRST, RELEASES
from ..protocol.documents import UsedOnDay
from . import runs, usage
from .earlier import today, with_earlier
from .usage import UsageRow, Use

__all__ = [
    "JSON",
    "Health",
    "Ledger",
    "LedgerError",
    "LedgerFailed",
    "LedgerFull",
    "LedgerInUse",
    "LedgerReadOnly",
    "Record",
    "StoppedLedger",
    "UsageRow",
    "Use",
    "Uses",
]

JSON = None | bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"]

#: Marks a SQLite file as ours ("gpus" in ASCII).
APPLICATION_ID = 0x67707573
#: The key of a record's version in its data.
VERSION_KEY = "v"
#: Rows that one :meth:`Ledger.prune` removes or rolls up at most. Grants are written by the same
#: thread and wait for each step.
PRUNE_ROWS = 5000
#: Rows that one :meth:`Ledger.trim` removes at most.
TRIM_ROWS = 1000
#: Bytes of a record's row, beside its JSON, and of the index that finds it; about.
ROW_BYTES = 150
#: The owner of records without environment and lease, such as the audit's findings on GPUs.
UNOWNED = ""
#: The kinds that history leaves out.
_UNLISTED: Final = tuple(name for name, kind in EVENTS.items() if kind.ABOUT.unlisted)
#: Records of a named person's actions. They are never trimmed: nobody may make an administrator's
#: deed vanish by making many records. JSON escapes quotes in texts, so no name looks like this key.
_BY = """instr(data, '"by":"') <> 0"""
#: If a lease turns busy and idle again and again, only the first and the last record in this many
#: seconds are kept; usage counts them all.
ACTIVITY_DETAIL = 60.0
#: Bytes that a copy leaves free on the disk: the ledger must go on.
COPY_LEAVES = 64 * 2**20
#: Pages (of 4 KiB) that one :meth:`Ledger.shrink` gives back at most.
SHRINK_PAGES = 256
#: Files up to this size (bytes) are checked as a whole when opened, larger ones only their state.
WHOLE_CHECK = 256 * 2**20

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_COLUMNS = "kind, at, wall, environment, lease, data"
#: The version of records that a release must know to read all that :meth:`Ledger.load` gives, and
#: the first release that does. It rises only when such a record is written, so that one can go back
#: to an older release as long as nothing of the newer one was used.
_FLOOR, _FLOOR_RELEASE = "floor", "floor_release"
#: Set in a restored ledger until the holders of leases had time to present them.
_RESTORED = "restored"
#: Ends of names of SQLite's files beside a ledger: an old one would be believed to be a new file's.
_LOGS = ("-wal", "-shm", "-journal")
_SET_META = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"

_Row = tuple[str, float, float, str | None, str | None, str]


class LedgerError(Exception):
    """The ledger could not do what was asked; ``str()`` is a sentence for a person."""


class LedgerInUse(LedgerError):
    """Another node manager has this ledger open."""


class LedgerFull(LedgerError):
    """No space is left; what was recorded before is untouched."""


class LedgerReadOnly(LedgerError):
    """The file or its disk cannot be written; what was recorded before is untouched."""


class LedgerFailed(LedgerError):
    """Anything else: an I/O error, a file made by a newer version, a file that is not a ledger."""


class _Corrupt(Exception):
    """The file's content makes no sense; :meth:`Ledger.open` sets it aside."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened. ``at``: boot-time seconds; ``wall``: unix seconds."""

    kind: str
    at: float
    wall: float
    environment: str | None
    lease: str | None
    data: Mapping[str, JSON]


class Uses(NamedTuple):
    """What leases have from boot time ``at`` on, ``wall`` in unix seconds (:func:`.usage.use`)."""

    at: float
    wall: float
    leases: Sequence[tuple[str, Use]]


@dataclass(frozen=True, slots=True)
class _Toggle:
    """The run of activity records that ends a lease's records: its start, the last one's number."""

    since: float
    last: int
    is_first: bool

    def follows(self, before: _Toggle) -> bool:
        """Whether ``before``'s last record need not be kept."""
        return self.since == before.since and not before.is_first


def _toggled(before: _Toggle | None, record: Record, seq: int) -> _Toggle | None:
    if record.kind != ActivityChanged.__name__:
        return None
    if before is not None and 0.0 <= record.at - before.since < ACTIVITY_DETAIL:
        return _Toggle(before.since, seq, is_first=False)
    return _Toggle(record.at, seq, is_first=True)


# -- schema ----------------------------------------------------------------------------------

Migration = Callable[[sqlite3.Connection], None]


def _create(connection: sqlite3.Connection) -> None:
    """Records, the snapshot that stands for the oldest of them, usage, and what runs needed.

    Usage is added up as records come in, so that it outlives their pruning.
    """
    columns = (
        "kind TEXT NOT NULL, at REAL NOT NULL, wall REAL NOT NULL,"
        " environment TEXT, lease TEXT, data TEXT NOT NULL"
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in (
        "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, wall REAL NOT NULL)",
        f"CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, {columns})",
        "CREATE INDEX records_by_environment ON records (environment, seq)",
        f"CREATE TABLE snapshot (position INTEGER PRIMARY KEY, {columns})",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        *usage.SCHEMA,
        *runs.SCHEMA,
    ):
        connection.execute(statement)


#: The version of the first release's schema.
FIRST_SCHEMA = 5
#: The steps to that version, and from each one to the next. Append only: a released step never
#: changes.
MIGRATIONS: tuple[Migration, ...] = (_create,)


#: The tables of a file of the newest version.
TABLES = frozenset(
    {"records", "snapshot", "meta", "usage_open", "usage_spans", "usage_buckets", "runs"}
)


def _check_floor(connection: sqlite3.Connection) -> None:
    """Refuse a ledger whose records a later release wrote, before anything is changed in it.

    To skip what we cannot read would give another state, and the next snapshot would make it last.
    """
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return
    floor = _meta_int(connection, _FLOOR)
    if floor > max(RELEASES):
        row = connection.execute(
            "SELECT value FROM meta WHERE key = ?", (_FLOOR_RELEASE,)
        ).fetchone()
        raise LedgerFailed(
            f"only jupyter_gpushare {row[0] if row else '(a newer one)'} or later can read it, and"
            f" this is {__version__} (its records have version {floor}, known are those up to"
            f" {max(RELEASES)}). Upgrade jupyter_gpushare or use another ledger path. The file was"
            " not changed."
        )


def _raise_floor(connection: sqlite3.Connection, version: int) -> None:
    if version > FIRST and version > _meta_int(connection, _FLOOR):
        connection.execute(_SET_META, (_FLOOR, str(version)))
        connection.execute(_SET_META, (_FLOOR_RELEASE, RELEASES[version]))


def _version(record: Record) -> int:
    version = record.data.get(VERSION_KEY, 1)
    return version if isinstance(version, int) else 1


def _version_of(connection: sqlite3.Connection) -> int:
    """0 for an empty file. Raises :class:`LedgerFailed` for another program's or a newer one."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if "schema_version" not in tables and (tables or application_id):
        raise LedgerFailed(
            "the file is an SQLite database of something else. Give the ledger a path of its own."
        )
    version = 0
    if "schema_version" in tables:
        version = connection.execute("SELECT MAX(version) FROM schema_version").fetchone()[0]
        if not isinstance(version, int) or version < 1:
            raise _Corrupt(f"its version is {version!r}")
    if version and not FIRST_SCHEMA <= version <= _newest():
        raise LedgerFailed(
            f"it was written by another jupyter_gpushare (ledger version {version}, this one knows"
            f" {_newest()}). Upgrade jupyter_gpushare or use another ledger path."
        )
    return version


def _newest() -> int:
    return FIRST_SCHEMA + len(MIGRATIONS) - 1


def _migrate(connection: sqlite3.Connection, wall: float) -> None:
    """Bring the open file to the newest version, each step in its own transaction."""
    have = _version_of(connection) or FIRST_SCHEMA - 1
    for number, step in enumerate(MIGRATIONS[have + 1 - FIRST_SCHEMA :], have + 1):
        with transaction(connection):
            step(connection)
            connection.execute("INSERT INTO schema_version VALUES (?, ?)", (number, wall))


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # At once for writing: whether another program has the file shows before anything is written.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors (a full disk, for one).
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a check of a whole ledger: sizes in bytes, the oldest record's unix time.

    ``problems`` are sentences of ours or of SQLite; if there are none the ledger is whole.
    """

    bytes: int
    free: int
    records: int
    since: float | None
    problems: tuple[str, ...]


# -- the ledger ------------------------------------------------------------------------------


class Reads(ABC):
    """The reading half of a ledger, through an open connection of its writer or of a reader."""

    @abstractmethod
    def _reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """An open connection. Raises :class:`LedgerError` for what goes wrong with it."""

    def history(self, environment: str | None, limit: int) -> list[Record]:
        """The newest ``limit`` records, newest first, of one environment or (``None``) of all.

        Raises :class:`LedgerFailed` where one of them is damaged.
        """
        condition = f"WHERE kind NOT IN ({', '.join('?' * len(_UNLISTED))})"
        condition += "" if environment is None else " AND environment = ?"
        whose = () if environment is None else (environment,)
        newest = f"{condition} ORDER BY seq DESC LIMIT ?"
        return list(self._records(newest, (*_UNLISTED, *whose, max(0, limit))))

    def records(self, kinds: Sequence[str]) -> Iterator[Record]:
        """All records of these kinds, the oldest first. Raises as :meth:`history` does."""
        names = with_earlier(kinds)
        marks = ", ".join("?" * len(names))
        return self._records(f"WHERE kind IN ({marks}) ORDER BY seq", names)

    def _records(self, which: str, values: Sequence[str | int]) -> Iterator[Record]:
        with self._reading() as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM records {which}", values)
            try:
                yield from map(_decode, rows)
            except ValueError as error:
                raise LedgerFailed(f"A record of the history is damaged: {error}") from error

    def usage(
        self, since_wall: float, until_wall: float, environment: str | None
    ) -> list[UsageRow]:
        """What was used between two unix times, one row an environment (or only ``environment``).

        The last two days are exact, or less for an environment that makes very many changes. Before
        that, use is known by the hour, and beyond the history by the day: an hour or a day that is
        only partly inside the window counts in proportion. Running leases count until
        ``until_wall``.
        """
        with self._reading() as connection:
            return usage.summarise(connection, since_wall, until_wall, environment)

    def usage_leaves(
        self, since_wall: float, until_wall: float, environment: str, seconds: float
    ) -> float | None:
        """Seconds until this many charged GPU-seconds have left the window, if none are added.

        ``None`` if the window has fewer. As exact as :meth:`usage`.
        """
        with self._reading() as connection:
            return usage.leaves(connection, since_wall, until_wall, environment, seconds)

    def usage_daily(
        self, now: float, days: int, utc_offset: float, environment: str, gpus: int
    ) -> list[UsedOnDay]:
        """The last ``days`` local days of ``environment`` and of all together, oldest first.

        The node has ``gpus``. The clocks there are ``utc_offset`` seconds before UTC's; today ends
        ``now`` (unix seconds). As exact as :meth:`usage`.
        """
        with self._reading() as connection:
            return usage.daily(connection, now, days, utc_offset, environment, gpus)

    def runs(self) -> list[runs.Run]:
        """What runs of code needed, oldest first."""
        with self._reading() as connection:
            return runs.load(connection)

    def recollect(self, key: str) -> JSON:
        """The value that :meth:`remember` kept under ``key``; ``None`` if there is none to read."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        try:
            value: JSON = None if row is None else json.loads(row[0])
        except ValueError:
            return None
        return value

    def shares(self) -> tuple[dict[str | None, int], list[str]]:
        """About how many bytes of records each environment has, and which have too many spans.

        ``None`` has the records of leases without an environment; :data:`UNOWNED` those of neither.
        """
        owned = "environment IS NOT NULL OR lease IS NOT NULL"
        with self._reading() as connection:
            sizes = connection.execute(
                f"SELECT CASE WHEN {owned} THEN environment ELSE '{UNOWNED}' END AS owner,"
                f" SUM({ROW_BYTES} + LENGTH(CAST(data AS BLOB))) FROM records"
                f" WHERE {owned} OR NOT {_BY} GROUP BY owner"
            )
            return {row[0]: int(row[1]) for row in sizes}, usage.beyond(connection)

    def check(self) -> Health:
        """Look at every page and every record that a start reads. Takes seconds for a gigabyte."""
        with self._reading() as connection:
            try:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check(20)")]
                problems = [] if found == ["ok"] else found
                if _version_of(connection) == _newest():
                    _check_content(connection)
                size, free = _sizes(connection)
                records, since = connection.execute(
                    "SELECT COUNT(*), MIN(wall) FROM records"
                ).fetchone()
                return Health(size, free, records, since, tuple(problems))
            except (_Corrupt, LedgerFailed, ValueError, TypeError) as error:
                problems = [*problems, str(error)]
            except sqlite3.DatabaseError as error:
                if _primary_code(error) not in _DAMAGE:
                    raise
                problems = [str(error)]
            return Health(0, 0, 0, None, tuple(problems))

    def copy(self, draft: Path) -> int:
        """Copy the ledger as of one instant and return a descriptor of the copy.

        The copy is one complete file. Others read and write the ledger meanwhile. It is made as
        ``draft`` and loses that name at once, so a broken-off copy leaves no file.
        """
        with self._reading() as connection:
            size, _ = _sizes(connection)
            disk = os.statvfs(draft.parent)
            if disk.f_bavail * disk.f_frsize < size + COPY_LEAVES:
                raise LedgerFull(
                    f"A copy of the ledger takes {size / 2**20:.0f} MiB beside it, and the"
                    f" disk has no room for that and a little more. Free some in {draft.parent}."
                )
            draft.unlink(missing_ok=True)  # of one that was broken off
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            # SQLite writes into this file, which is there already, so the descriptor reads the
            # copy.
            descriptor = os.open(draft, flags, 0o600)
            try:
                with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as copy:
                    connection.backup(copy)
                    # The copy is in the ledger's mode, with a log beside it; whoever gets one file
                    # has no log.
                    copy.execute("PRAGMA journal_mode = DELETE")
            except BaseException:
                os.close(descriptor)
                raise
            finally:
                draft.unlink()
            return descriptor


class LedgerReader(Reads):
    """A second connection to an open ledger, for reading beside its writer, on another thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._connection: sqlite3.Connection | None = None
        self._place: Path | None = None

    def close(self) -> None:
        """Close the connection; a later reading opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        place = self._ledger.place
        try:
            # On a disk gone read-only the ledger is read from a copy, which has another place.
            if self._connection is None or place != self._place:
                self.close()
                self._connection = sqlite3.connect(
                    place, isolation_level=None, check_same_thread=False, timeout=2.0
                )
                self._connection.execute("PRAGMA query_only = ON")
                self._place = place
            yield self._connection
        except sqlite3.Error as error:
            raise self._ledger.translate(error) from error


class Ledger(Reads):
    """An open ledger; one class, as all of it hangs on one file that may move or break meanwhile.

    Make one with :meth:`open`; use it from one thread at a time.
    """

    def __init__(
        self,
        path: Path,
        history: float,
        lock: int | None,
    ) -> None:
        """Not for callers: see :meth:`open`."""
        self.path = path
        #: A sentence for people when a corrupt file was set aside at open, else ``None``.
        self.notice: str | None = None
        self._history = history
        self._lock = lock

        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._copy: Path | None = None
        self._toggles: dict[str, _Toggle] = {}
        #: Opened when the disk could not be written: such a connection reads for ever.
        self._only_reads = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        history: float,
        wall: float,
        sets_aside: bool = True,
    ) -> Self:
        """Open or create the ledger at ``path``, keeping ``history`` seconds of records.

        A corrupt file is an error where ``sets_aside`` is not wanted.

        ``wall`` (unix seconds) stamps migrations and the name of a corrupt
        file set aside. On a read-only disk an existing ledger opens for
        reading, and each append raises :class:`LedgerReadOnly`.

        Raises :class:`LedgerInUse`, :class:`LedgerFull`,
        :class:`LedgerReadOnly` or :class:`LedgerFailed`.
        """
        path = Path(path).absolute()
        with _told_of(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        ledger = cls(path, history, _lock(path))
        try:
            try:
                ledger._start(wall)
            except _Corrupt as corrupt:
                if not sets_aside:
                    raise
                # Renamed before SQLite closes it: closing would fold the log into the file.
                aside = _set_aside(path, wall)
                ledger._drop_connection()
                ledger._start(wall)
                ledger.notice = (
                    f"The ledger {path} could not be read ({corrupt}). It was set aside as"
                    f" {aside} and a new, empty one was started: quotas set by command and history"
                    " are not known any more, and leases until those who hold them present them."
                )
        except _Corrupt as corrupt:
            ledger.close()
            raise LedgerFailed(f"The ledger {path} cannot be used: {corrupt}") from corrupt
        except BaseException:
            ledger.close()
            raise
        return ledger

    def append(
        self, records: Sequence[Record], used: Uses | None = None, *, flush: bool = True
    ) -> None:
        """Write the records, all or none.

        ``used`` are leases that began or ceased to rest, or have other memory, after them. Without
        ``flush`` the operating system may still have them in memory: a loss of power can undo them,
        and all that was written since the last flush, in one piece. Nothing else can.

        Raises :class:`LedgerFull`, :class:`LedgerReadOnly` or
        :class:`LedgerFailed`, with nothing written, and ``ValueError`` for a
        record that cannot be stored (NaN, not JSON).
        """
        rows = [_encode(record) for record in records]
        toggles: dict[str, _Toggle | None] = {}
        with self._writing(flush) as connection:
            for record, row in zip(records, rows, strict=True):
                seq = connection.execute(
                    f"INSERT INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row
                ).lastrowid
                assert seq is not None
                if record.lease is not None:
                    # Kept apart from ``self._toggles`` until all is written: the transaction may
                    # still fail.
                    before = toggles.get(record.lease, self._toggles.get(record.lease))
                    toggles[record.lease] = toggle = _toggled(before, record, seq)
                    if toggle is not None and before is not None and toggle.follows(before):
                        # Nothing happened to the lease between the two, and a lease that turned
                        # idle twice is as idle: replayed they give the same state.
                        connection.execute("DELETE FROM records WHERE seq = ?", (before.last,))
                if record.kind in usage.KINDS:
                    usage.apply(
                        connection,
                        seq,
                        record.kind,
                        record.at,
                        record.wall,
                        record.environment,
                        record.lease,
                        record.data,
                    )
            if used is not None:
                for name, now in used.leases:
                    usage.use(connection, name, now, used.at, used.wall)
            _raise_floor(connection, max(map(_version, records), default=1))
        for lease, latest in toggles.items():
            if latest is None:
                self._toggles.pop(lease, None)
            else:
                self._toggles[lease] = latest

    def load(self) -> tuple[list[Record], list[Record]]:
        """The records of the snapshot and all later ones, oldest first."""
        with self._reading() as connection:
            snapshot = connection.execute(f"SELECT {_COLUMNS} FROM snapshot ORDER BY position")
            before = [_decode(row) for row in snapshot]
            covered = _meta_int(connection, "snapshot_seq")
            tail = connection.execute(
                f"SELECT {_COLUMNS} FROM records WHERE seq > ? ORDER BY seq", (covered,)
            )
            return before, [_decode(row) for row in tail]

    def write_snapshot(self, records: Sequence[Record]) -> None:
        """Replace the snapshot: ``records`` recreate the state as of the last record.

        Raises as :meth:`append` does.
        """
        rows = [_encode(record) for record in records]
        with self._writing() as connection:
            covered = self._last_seq(connection)
            connection.execute("DELETE FROM snapshot")
            connection.executemany(
                f"INSERT INTO snapshot ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows
            )
            connection.execute(_SET_META, ("snapshot_seq", str(covered)))
            # What older releases cannot read may be history now.
            connection.execute("DELETE FROM meta WHERE key = ?", (_FLOOR,))
            _raise_floor(connection, max(map(_version, records), default=1))

    def prune(self, wall: float, *, deeds: bool = True) -> bool:
        """Forget records older than the history, as far as the snapshot covers them.

        Without ``deeds`` the records of named people's actions stay.

        Works in small steps: ``True`` means that there is more, call again
        soon. Raises as :meth:`append` does.
        """
        some = "" if deeds else f"AND NOT {_BY} "
        with self._writing() as connection:
            # Usage that was open when the host went down ends here, if no record came later.
            connection.execute(_SET_META, ("seen_wall", repr(float(wall))))
            # The oldest few by number first, and of them those that are too old: times have no
            # index, so each step reads only so many.
            removed = connection.execute(
                "DELETE FROM records WHERE seq IN (SELECT seq FROM"
                f" (SELECT seq, wall FROM records WHERE seq <= ? {some}ORDER BY seq LIMIT ?)"
                " WHERE wall < ?)",
                (_meta_int(connection, "snapshot_seq"), PRUNE_ROWS, wall - self._history),
            ).rowcount
            more = usage.roll_up(connection, wall, self._history, PRUNE_ROWS)
        return more or removed == PRUNE_ROWS

    def trim(self, environment: str | None, size: int) -> int:
        """Forget the oldest records of an environment, of about ``size`` bytes, in small steps.

        ``None`` stands for the records about leases that name no environment, and :data:`UNOWNED`
        for those that name neither. Records that the snapshot does not cover stay, and so do
        people's actions, such as quotas set and leases revoked. Returns the bytes of the removed
        records, which is 0 when there are no more. Raises as :meth:`append` does.
        """
        whose = "environment IS ? AND (environment IS NOT NULL OR lease IS NOT NULL)"
        if environment == UNOWNED:
            whose = "(environment IS ? OR environment IS NULL AND lease IS NULL)"
        with self._writing() as connection:
            rows = connection.execute(
                f"SELECT seq, LENGTH(CAST(data AS BLOB)) FROM records WHERE {whose}"
                f" AND seq <= ? AND NOT {_BY} ORDER BY seq LIMIT ?",
                (environment, _meta_int(connection, "snapshot_seq"), TRIM_ROWS),
            )
            gone, removed = 0, []
            for seq, length in rows.fetchall():
                if gone >= size:
                    break
                gone += ROW_BYTES + length
                removed.append((seq,))
            connection.executemany("DELETE FROM records WHERE seq = ?", removed)
        return gone

    def fold(self, environment: str) -> bool:
        """Add the oldest exact usage of an environment to the hours: what is beyond its number.

        Works in small steps; ``True`` means that there is more. Raises as :meth:`append` does.
        """
        with self._writing() as connection:
            return usage.fold(connection, environment, TRIM_ROWS)

    def shrink(self, spare: float = 0.125) -> bool:
        """Give free pages back to the disk, but for this share of the file, in small steps.

        ``True`` means that there are more: call again soon. Raises as :meth:`append` does.
        """
        if self._copy is not None:  # the copy goes away by itself
            return False
        with self._reading() as connection:
            self._check_place()
            size, free = _sizes(connection)
            if free <= spare * size:
                return False
            connection.execute(f"PRAGMA incremental_vacuum({SHRINK_PAGES})").fetchall()
            _, left = _sizes(connection)
            if left == free or left <= spare * size:
                # The file itself is cut when the log is brought into it.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                return False
        return True

    def remember(self, key: str, value: JSON) -> None:
        """Keep one small thing under ``key``, over restarts. Raises as :meth:`append` does."""
        with self._writing() as connection:
            connection.execute(_SET_META, (key, json.dumps(value, allow_nan=False)))

    def record_runs(self, measured: Sequence[runs.Run]) -> None:
        """Keep what these runs needed, and forget the oldest. Raises as :meth:`append` does."""
        with self._writing() as connection:
            runs.put(connection, measured)

    @property
    def is_restored(self) -> bool:
        """Whether a backup was put here since :meth:`was_made_good`; it lacks newer leases."""
        return self.recollect(_RESTORED) is True

    def was_made_good(self) -> None:
        """Note that leases lost by a restore can be presented again.

        Raises as :meth:`append` does.
        """
        self.remember(_RESTORED, False)

    def size(self) -> tuple[int, int]:
        """Bytes that the file has, or will have when the log is in it, and of these the used."""
        with self._reading() as connection:
            size, free = _sizes(connection)
        return size, size - free

    @property
    def place(self) -> Path:
        """The file that is open: on a disk gone read-only, a copy of it."""
        return self.path if self._copy is None else self._copy / "ledger"

    def close(self) -> None:
        """Close the file and let another node manager have it. May be called again."""
        self._only_reads = False  # a later write opens nothing
        self._drop_connection()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- inside ------------------------------------------------------------------------------

    def _start(self, wall: float) -> None:
        """Connect, check, migrate. Raises :class:`_Corrupt` for a file to set aside."""
        self._only_reads = True
        with _told_of(self.path):
            if not _unwritable(self.path):
                # SQLite would use the umask; other users must not read the notebooks' names.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            else:
                # A disk gone read-only: SQLite cannot even lock the file there, so read a copy.
                self._copy = Path(tempfile.mkdtemp(prefix="jupyter-gpushare-ledger-"))
                shutil.copyfile(self.path, self.place)
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(_beside(self.path, "-wal"), _beside(self.place, "-wal"))
        with self._opening():
            connection = self._connect(self.place)
            _check(connection, self.place)

            _check_floor(connection)
            _migrate(connection, wall)
            _check_content(connection)
        if self._copy is None:
            self._inode = self.path.stat().st_ino
            self._only_reads = False

    def _connect(self, path: Path) -> sqlite3.Connection:
        # It is opened on one thread and used on another, never on two at once. Grants wait with it
        # for another program's lock, so only for two seconds.
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=2.0
        )
        self._connection = connection
        # This can be chosen only before the first table is made, or with a VACUUM of the whole
        # file.
        if path.stat().st_size == 0:  # a new file; an old one would be written to
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Not held for good: there is one writer by its own lock, and others may read and copy.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Without a limit the log keeps the size that it had once, under one long reading.
        connection.execute(f"PRAGMA journal_size_limit = {16 * 2**20}")
        return connection

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except LedgerFailed as error:
            raise LedgerFailed(f"The ledger {self.path} cannot be used: {error}") from error
        except sqlite3.Error as error:
            # SQLITE_ERROR here is "no such table" or column: a schema that is not what it says.
            if _primary_code(error) in (*_DAMAGE, sqlite3.SQLITE_ERROR):
                raise _Corrupt(str(error)) from error
            raise self.translate(error) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise _Corrupt(f"a record is not readable: {error}") from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        if connection is None:
            raise LedgerFailed(f"The ledger {self.path} is closed.")
        try:
            yield connection
        except sqlite3.Error as error:
            raise self.translate(error) from error

    @contextlib.contextmanager
    def _writing(self, flush: bool = True) -> Iterator[sqlite3.Connection]:
        if self._only_reads:
            self._open_to_write()
        try:
            with self._reading() as connection:
                self._check_place()
                # It holds for the connection and cannot change within a transaction, so each write
                # sets its own.
                connection.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
                with transaction(connection):
                    yield connection
        except LedgerReadOnly:
            self._only_reads = True
            raise

    def _open_to_write(self) -> None:
        """Open the file anew if the disk can be written again."""
        if _unwritable(self.path):
            raise LedgerReadOnly(
                f"The ledger {self.path} is on a read-only disk: nothing can be recorded, so"
                " nothing new is given. Running leases are kept. Make the disk writable again."
            )
        cause = _probe(self.path)
        if cause is not None:
            raise _from_os_error(cause, self.path)
        self._drop_connection()
        if self._lock is None:
            self._lock = _lock(self.path)
        try:
            self._start(0.0)
        except _Corrupt as corrupt:
            raise LedgerFailed(f"The ledger {self.path} cannot be used: {corrupt}") from corrupt

    def _check_place(self) -> None:
        """A ledger moved or deleted under us would take records that no restart finds."""
        inode = 0
        with _told_of(self.path), contextlib.suppress(FileNotFoundError):
            inode = os.stat(self.path).st_ino
        if inode != self._inode:
            raise LedgerFailed(
                f"The ledger {self.path} was moved or deleted while in use, so nothing can be"
                " recorded. Put it back, or start anew for a new one."
            )

    def _last_seq(self, connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name='records'").fetchone()
        return 0 if row is None else int(row[0])

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        copy, self._copy = self._copy, None
        if copy is not None:
            shutil.rmtree(copy, ignore_errors=True)

    def translate(self, error: sqlite3.Error) -> LedgerError:
        """SQLite's error in our words. An I/O error is looked into: SQLite hides its errno."""
        code = _primary_code(error)
        if code == sqlite3.SQLITE_FULL:
            return _full(self.path)
        if code == sqlite3.SQLITE_READONLY:
            return _read_only(self.path)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return LedgerInUse(
                f"The ledger {self.path} is held by another program. Close that program (perhaps"
                " an sqlite3 shell or a backup) and try again."
            )
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            cause = _probe(self.path)
            if cause is not None:
                return _from_os_error(cause, self.path)
        return LedgerFailed(
            f"The ledger {self.path} failed: {error}. Nothing new can be recorded, so"
            " nothing new is given; running leases are kept. Check the disk and the system log."
        )


# -- records ---------------------------------------------------------------------------------


_PLAIN: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_ESCAPING: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _encode(record: Record) -> _Row:
    if not (math.isfinite(record.at) and math.isfinite(record.wall)):
        raise ValueError(f"a record's times must be finite: {record!r}")
    for text in (record.kind, record.environment, record.lease):
        if text is not None:
            text.encode()  # a lone surrogate cannot be stored: UnicodeEncodeError is a ValueError
    try:
        # Not escaped: that would make twelve bytes of one character.
        data = _PLAIN.encode(record.data)
        data.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be escaped
        data = _ESCAPING.encode(record.data)
    except TypeError as error:
        raise ValueError(f"a record's data must be JSON: {error}") from error
    return (record.kind, record.at, record.wall, record.environment, record.lease, data)


def _decode(row: _Row) -> Record:
    written, at, wall, environment, lease, text = row
    kind, data = today(written, json.loads(text))
    return Record(kind, at, wall, environment, lease, data)


def _sizes(connection: sqlite3.Connection) -> tuple[int, int]:
    """Bytes of the file, what is in its log included, and of these the free ones."""
    names = ("page_size", "page_count", "freelist_count")
    page, pages, free = (int(connection.execute(f"PRAGMA {n}").fetchone()[0]) for n in names)
    return page * pages, page * free


def _meta_int(connection: sqlite3.Connection, key: str) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return 0 if row is None else int(row[0])


# -- the file --------------------------------------------------------------------------------


def _lock(path: Path) -> int | None:
    """Take the lock beside the ledger; its descriptor holds it. ``None`` on a read-only disk.

    The kernel drops the lock when the process dies, in whatever way. It is a file of its own
    because the ledger may be set aside or replaced by a backup while somebody has the lock.
    """
    lock = _beside(path, ".lock")
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    with _told_of(path):
        try:
            descriptor = os.open(lock, flags | os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            try:
                descriptor = os.open(lock, flags | os.O_RDONLY)
            except FileNotFoundError:
                return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise LedgerInUse(
                f"The ledger {path} is in use by another node manager. Stop that one first, or"
                " give this one another ledger path."
            ) from error
        raise _from_os_error(error, path) from error
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Have the ledger at ``path`` for oneself; raises as :meth:`Ledger.open` does."""
    lock = _lock(path)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Let SQLite look for damage before anything is believed or written."""
    if path.stat().st_size <= WHOLE_CHECK:
        parts = [""]
    else:
        # A start must not take minutes. Damage in the history shows when the history is read.
        state = "('snapshot', 'meta', 'usage_open')"
        names = connection.execute(f"SELECT name FROM sqlite_master WHERE name IN {state}")
        parts = [f"({row[0]})" for row in names]
    for part in parts:
        problem = connection.execute(f"PRAGMA quick_check{part}").fetchone()[0]
        if problem != "ok":
            raise _Corrupt(str(problem).splitlines()[0])


def _check_content(connection: sqlite3.Connection) -> None:
    """Check that :meth:`Ledger.load` can read all its records, in the tables that we expect."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    missing = sorted(TABLES - tables)
    if missing:
        raise _Corrupt(f"no table {missing[0]}")
    covered = _meta_int(connection, "snapshot_seq")
    for query, after in (
        (f"SELECT {_COLUMNS} FROM snapshot WHERE position > ?", -1),
        (f"SELECT {_COLUMNS} FROM records WHERE seq > ?", covered),
    ):
        for row in connection.execute(query, (after,)):
            record = _decode(row)
            if not isinstance(record.data, dict) or not isinstance(record.kind, str):
                raise _Corrupt("a row is not a record")


def _set_aside(path: Path, wall: float, why: str = "corrupt") -> Path:
    """Rename a ledger, with its log, to a name that says why and when. Never overwrites."""
    stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H%M%SZ")
    aside, number = path.with_name(f"{path.name}.{why}-{stamp}"), 1
    while any(_beside(aside, suffix).exists() for suffix in ("", *_LOGS)):
        number += 1
        aside = path.with_name(f"{path.name}.{why}-{stamp}-{number}")
    with _told_of(path):
        # The log first: should we die in between, a corrupt file without it is
        # set aside at the next start; a new file with an old log would be believed.
        for suffix in (*_LOGS, ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(_beside(path, suffix), _beside(aside, suffix))
        settle(path.parent)
    return aside


class _File(Reads):
    """A file that is opened anew, in the way ``how``, for each reading."""

    def __init__(self, path: Path, how: str) -> None:
        self.path = path
        self._how = how

    def _reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return _opened(self.path, self._how)


class StoppedLedger(_File):
    """A ledger that no node manager has open. None can open it until this is closed.

    Reading it changes nothing. Root must act as the ledger's owner: SQLite makes files beside the
    ledger, and the owner's node manager must be able to use them.
    """

    def __init__(self, path: Path) -> None:
        """Raises :class:`LedgerInUse`, and :class:`LedgerFailed` where there is none."""
        # Not writable: closing it would fold the log into the file, which may be damaged.
        super().__init__(path, "mode=ro")
        self._lock = None if not path.parent.is_dir() else _lock(path)

    def close(self) -> None:
        """Let a node manager have it. May be called again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def others_files(self) -> list[str]:
        """Files of it that its owner's node manager cannot use, each with what to do."""
        folder, found = self.path.parent.stat(), []
        for suffix in ("", "-wal", "-shm", ".lock"):
            file = _beside(self.path, suffix)
            with contextlib.suppress(FileNotFoundError):
                if folder.st_uid and file.stat().st_uid != folder.st_uid:
                    found.append(
                        f"{file} belongs to user {file.stat().st_uid}, and its folder to user"
                        f" {folder.st_uid}: chown --reference={self.path.parent} {file}"
                    )
        return found

    def vacuum(self) -> None:
        """Make the file as small as it can be. Needs as much room again meanwhile."""
        with _opened(self.path, "mode=rw") as connection:
            _version_of(connection)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")

    def replace(self, source: int, wall: float) -> Path | None:
        """Put the backup behind the descriptor ``source`` in its place, and rename the old ledger.

        Returns the new name of the old ledger, if there was one. Raises :class:`LedgerFailed` and
        changes nothing if the backup is not whole.
        """
        draft = _beside(self.path, ".restore")
        try:
            _remove(draft)  # of one that was broken off
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(draft, flags, 0o600), "wb") as file:
                with open(os.dup(source), "rb") as whole:
                    shutil.copyfileobj(whole, file, 2**20)
                file.flush()
                os.fsync(file.fileno())
            _check_whole(draft)
            with _opened(draft, "mode=rw") as connection:
                connection.execute(_SET_META, (_RESTORED, "true"))
            # Again: the mark must be in the file itself, and not in a log beside it.
            _check_whole(draft)
            there = any(_beside(self.path, suffix).exists() for suffix in ("", *_LOGS))
            old = _set_aside(self.path, wall, "before") if there else None
            os.rename(draft, self.path)
            settle(self.path.parent)
        except OSError as error:
            raise _from_os_error(error, self.path) from error
        finally:
            _remove(draft)
        return old


def check_backup(path: Path) -> Health:
    """Look at every page of a backup; makes no file beside it. Raises :class:`LedgerFailed`."""
    log = _beside(path, "-wal")
    if log.exists() and log.stat().st_size:
        raise LedgerFailed(
            f"{path} is no backup: its last records are in {log}. A backup is made by"
            " `jupyter gpushare ledger backup`."
        )
    return _File(path, "mode=ro&immutable=1").check()


def _check_whole(path: Path) -> None:
    problems = check_backup(path).problems
    if problems:
        raise LedgerFailed(f"The backup is not whole: {problems[0]}")


def _remove(path: Path) -> None:
    """A file of SQLite's with what belongs to it."""
    for suffix in (*_LOGS, ""):
        _beside(path, suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path, how: str) -> Iterator[sqlite3.Connection]:
    """A file that is there, opened for a while."""
    if not path.is_file():
        raise LedgerFailed(f"There is no ledger {path}.")
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, isolation_level=None)
        ) as connection:
            yield connection
    except sqlite3.Error as error:
        cause = None if os.access(path, os.R_OK, effective_ids=True) else "it is not readable"
        raise LedgerFailed(f"{path} cannot be used: {cause or error}.") from error


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _unwritable(path: Path) -> bool:
    """Whether ``path`` exists and is on a disk mounted read-only."""
    with _told_of(path), contextlib.suppress(FileNotFoundError):
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return False


def _probe(path: Path) -> OSError | None:
    """Try to write a little beside the ledger; what the system says when it does not work.

    As far into a file as the ledger's log is, so that a file-size limit shows too.
    """
    reached = 0
    try:
        with contextlib.suppress(FileNotFoundError):
            reached = _beside(path, "-wal").stat().st_size
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            os.pwrite(file.fileno(), b"\0" * 65536, reached)
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def _primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _full(path: Path) -> LedgerFull:
    return LedgerFull(
        f"The disk that holds the ledger {path} is full: nothing new can be recorded, so"
        f" nothing new is given. Running leases are kept. Free some space in {path.parent}."
    )


def _read_only(path: Path) -> LedgerReadOnly:
    return LedgerReadOnly(
        f"The ledger {path} cannot be written: nothing new can be recorded, so nothing new is"
        " given. Running leases are kept. Check that the disk is not read-only and that the"
        f" directory {path.parent} belongs to the node manager's user."
    )


@contextlib.contextmanager
def _told_of(path: Path) -> Iterator[None]:
    """What the system says of a ledger, in our words."""
    try:
        yield
    except OSError as error:
        raise _from_os_error(error, path) from error


def _from_os_error(error: OSError, path: Path) -> LedgerError:
    if error.errno in _FULL_ERRNOS:
        return _full(path)
    if error.errno in _READ_ONLY_ERRNOS:
        return _read_only(path)
    return LedgerFailed(
        f"The ledger {path} cannot be used: {error.strerror or error}. Check the path and the disk."
    )
