"""GPU-seconds held, busy and charged by environment, and memory reserved meanwhile.

Budgets, bills and the plots of the last weeks ask what an environment used between two moments. To
fold the records for each such question would take longer with each month, and records are
forgotten after the history's end. So this is a read-model, in tables beside the records: a record
and its effect on usage are in one transaction, which the ledger opens, so neither can be there
without the other.

A running lease has one row in ``usage_open``; each time its GPUs or its activity change, the time
since the last change becomes a *span*. Spans are exact. Two days later, or sooner where one
environment makes very many, they are rolled up into hours, and beyond the history into days, so
that a year of them stays small and quick to add up. Rolling up moves sums and loses none.

Where tasks take turns on a GPU, a task that has no turn *rests*: it holds its GPUs, and their time
is not charged to it. Turns begin and end many times a minute and are not recorded. So rest and
reserved memory follow the node manager's state, and :func:`use` brings them in.

How long something lasted is counted by boot time, which no clock setting can change; *when* it was
is wall time. A clock that is set back can thus move a span, but never lengthen it.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..policy.words.events import EVENTS, ChangesUse, LeaseEnded, LeaseGranted, LeaseParked
from ..protocol.documents import UsedOnDay

#: Spans stay exact for this long (seconds).
EXACT = 2 * 86400.0
#: The most exact spans of one environment: a program that turns busy and idle without a pause would
#: otherwise fill the disk with them.
MOST_SPANS = 20_000
HOUR = 3600.0
DAY = 86400.0

SCHEMA = (
    """
    CREATE TABLE usage_open (
        lease TEXT PRIMARY KEY,
        environment TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        busy INTEGER NOT NULL,
        since_wall REAL NOT NULL,
        since_at REAL NOT NULL,
        rests INTEGER NOT NULL DEFAULT 0,
        memory REAL NOT NULL DEFAULT 0
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE usage_spans (
        end_wall REAL NOT NULL,
        seq INTEGER NOT NULL,
        lease TEXT NOT NULL,
        environment TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        busy INTEGER NOT NULL,
        start_wall REAL NOT NULL,
        last INTEGER NOT NULL,
        rests INTEGER NOT NULL DEFAULT 0,
        memory REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (end_wall, seq)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE usage_buckets (
        start_wall REAL NOT NULL,
        length REAL NOT NULL,
        environment TEXT NOT NULL,
        held REAL NOT NULL,
        busy REAL NOT NULL,
        leases INTEGER NOT NULL,
        rested REAL NOT NULL DEFAULT 0,
        resident REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (start_wall, length, environment)
    ) WITHOUT ROWID
    """,
)

#: The kinds of record that change usage; the ledger passes on no others.
KINDS = frozenset(name for name, kind in EVENTS.items() if issubclass(kind, ChangesUse))

_ADD_TO_BUCKET = """
    INSERT INTO usage_buckets
        (start_wall, length, environment, held, busy, leases, rested, resident)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (start_wall, length, environment) DO UPDATE SET
        held = held + excluded.held,
        busy = busy + excluded.busy,
        leases = leases + excluded.leases,
        rested = rested + excluded.rested,
        resident = resident + excluded.resident
"""

#: A span that ends where the window begins is not in it, unless it took no time: by such a one its
#: lease is counted.
_SUM = """
    SELECT environment, SUM(held), SUM(busy), COUNT(DISTINCT lease), SUM(leases),
           SUM(rested), SUM(resident) / 1073741824.0
      FROM (
        SELECT environment, lease, 0 AS leases,
               gpus * (MIN(end_wall, :until) - MAX(start_wall, :since)) AS held,
               busy * gpus * (MIN(end_wall, :until) - MAX(start_wall, :since)) AS busy,
               rests * gpus * (MIN(end_wall, :until) - MAX(start_wall, :since)) AS rested,
               memory * (MIN(end_wall, :until) - MAX(start_wall, :since)) AS resident
          FROM usage_spans
         WHERE end_wall >= :since AND start_wall < :until
           AND (end_wall > :since OR start_wall = :since)
        UNION ALL
        SELECT environment, lease, 0,
               gpus * MAX(0, :until - MAX(since_wall, :since)),
               busy * gpus * MAX(0, :until - MAX(since_wall, :since)),
               rests * gpus * MAX(0, :until - MAX(since_wall, :since)),
               memory * MAX(0, :until - MAX(since_wall, :since))
          FROM usage_open WHERE since_wall < :until
        UNION ALL
        SELECT environment, NULL, leases,
               held * (MIN(start_wall + length, :until) - MAX(start_wall, :since)) / length,
               busy * (MIN(start_wall + length, :until) - MAX(start_wall, :since)) / length,
               rested * (MIN(start_wall + length, :until) - MAX(start_wall, :since)) / length,
               resident * (MIN(start_wall + length, :until) - MAX(start_wall, :since)) / length
          FROM usage_buckets
         WHERE start_wall > :since - length AND start_wall < :until
    )
    WHERE :environment IS NULL OR environment = :environment
    GROUP BY environment ORDER BY environment
"""


#: Whatever held GPUs in the window, cut at the midnights: one row a part and day. The days
#: are counted from ``:since``; a part's own times say how much of the day it takes.
_DAYS = """
    WITH RECURSIVE
    held (environment, lease, leases, gpus, busy, rests, memory, since, until, runs) AS (
        SELECT environment, lease, 0, gpus, busy * gpus, rests * gpus, memory,
               MAX(start_wall, :since), MIN(end_wall, :until), 0
          FROM usage_spans
         WHERE end_wall >= :since AND start_wall < :until
           AND (end_wall > :since OR start_wall = :since)
        UNION ALL
        SELECT environment, lease, 0, gpus, busy * gpus, rests * gpus, memory,
               MAX(since_wall, :since), :until, 1
          FROM usage_open WHERE since_wall < :until
        UNION ALL
        SELECT environment, NULL, leases, held / length, busy / length,
               rested / length, resident / length,
               MAX(start_wall, :since), MIN(start_wall + length, :until), 0
          FROM usage_buckets
         WHERE start_wall > :since - length AND start_wall < :until
    ),
    parts (environment, lease, leases, gpus, busy, rests, memory, since, until, runs, day) AS (
        SELECT environment, lease, leases, gpus, busy, rests, memory, since, until, runs,
               MIN(CAST((since - :since) / :length AS INTEGER), :days - 1)
          FROM held
        UNION ALL
        SELECT environment, lease, leases, gpus, busy, rests, memory, since, until, runs, day + 1
          FROM parts
         WHERE day + 1 < :days AND (runs OR :since + (day + 1) * :length < until)
    ),
    seconds (day, own, lease, leases, gpus, busy, rests, memory, seconds) AS (
        SELECT day, environment = :environment, lease, leases, gpus, busy, rests, memory,
               MAX(0, MIN(until, :since + (day + 1) * :length)
                      - MAX(since, :since + day * :length))
          FROM parts
    )
    SELECT day, SUM(own * gpus * seconds), SUM(own * busy * seconds),
           COUNT(DISTINCT CASE WHEN own THEN lease END), SUM(own * leases),
           SUM(gpus * seconds), SUM(busy * seconds),
           SUM(own * rests * seconds), SUM(own * memory * seconds) / 1073741824.0
      FROM seconds GROUP BY day
"""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The use of one environment in a window; ``leases`` is how many leases held a GPU in it.

    ``gpu_seconds_rested`` are those held in which its tasks had no turn; ``resident_gib_seconds``
    are GiB of reserved memory times seconds.
    """

    environment: str
    gpu_seconds_held: float
    gpu_seconds_busy: float
    leases: int
    gpu_seconds_rested: float = 0.0
    resident_gib_seconds: float = 0.0

    @property
    def gpu_seconds_charged(self) -> float:
        """What counts towards a budget: turns, and time held where nobody takes turns."""
        return max(0.0, self.gpu_seconds_held - self.gpu_seconds_rested)


@dataclass(frozen=True, slots=True)
class Use:
    """What a lease has now, beside what its records say: whether it rests, reserved bytes."""

    rests: bool = False
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class _Open:
    """A running lease since its last change; ``gpus`` is 0 while it is parked or takes none."""

    environment: str
    gpus: int
    busy: bool
    since_wall: float
    since_at: float
    use: Use


def _open(connection: sqlite3.Connection, lease: str) -> _Open | None:
    row = connection.execute(
        "SELECT environment, gpus, busy, since_wall, since_at, rests, memory FROM usage_open"
        " WHERE lease = ?",
        (lease,),
    ).fetchone()
    if row is None:
        return None
    return _Open(row[0], row[1], bool(row[2]), row[3], row[4], Use(bool(row[5]), row[6]))


def use(connection: sqlite3.Connection, lease: str, now: Use, at: float, wall: float) -> None:
    """A lease begins or ceases to rest, or has other memory, from boot time ``at`` on."""
    before = _open(connection, lease)
    if before is None or before.use == now:
        return
    at = max(at, before.since_at)  # a record was later: what lasts no time is no span
    _close(connection, lease, before, before.since_wall + (at - before.since_at), None)
    _put(connection, lease, replace(before, since_wall=wall, since_at=at, use=now))


def _close(
    connection: sqlite3.Connection,
    lease: str,
    before: _Open,
    end: float,
    seq: int | None,
    *,
    last: bool = False,
) -> None:
    """Keep the time since the last change as a span; ``seq`` tells spans of the same end apart.

    It is the number of the record that ends the span. Spans that no record ends count down from -1
    for each end, and so never meet such a number.
    """
    # The last one is kept even if it took no time: by it the lease is counted.
    if last or ((before.gpus or before.use.memory) and end > before.since_wall):
        connection.execute(
            "INSERT INTO usage_spans (end_wall, seq, lease, environment, gpus, busy,"
            " start_wall, last, rests, memory) VALUES (?1, COALESCE(?2, (SELECT"
            " MIN(0, COALESCE(MIN(seq), 0)) - 1 FROM usage_spans WHERE end_wall = ?1)),"
            " ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            (
                *(end, seq, lease, before.environment, before.gpus, before.busy),
                *(before.since_wall, last, before.use.rests, before.use.memory),
            ),
        )


def _put(connection: sqlite3.Connection, lease: str, now: _Open) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO usage_open (lease, environment, gpus, busy, since_wall, since_at,"
        " rests, memory) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(lease, now.environment, now.gpus, now.busy, now.since_wall, now.since_at),
            *(now.use.rests, now.use.memory),
        ),
    )


def apply(
    connection: sqlite3.Connection,
    seq: int,
    kind: str,
    at: float,
    wall: float,
    environment: str | None,
    lease: str | None,
    data: Mapping[str, object],
) -> None:
    """Bring one record (number ``seq``) into the usage tables."""
    if lease is None:
        return
    before = _open(connection, lease)
    if kind == LeaseGranted.__name__:
        owner = environment
        if owner is None and before is not None:
            owner = before.environment
        if owner is None:
            return
        gpus = data.get("gpus")
        after: _Open | None = _Open(
            owner,
            len(gpus) if isinstance(gpus, (list, tuple)) else 0,
            data.get("activity", "busy") == "busy",
            wall,
            at,
            Use(memory=0.0 if before is None else before.use.memory),
        )
    elif before is None:
        return  # it never held a GPU
    elif kind == LeaseEnded.__name__:
        after = None
    elif kind == LeaseParked.__name__:
        after = replace(before, gpus=0, since_wall=wall, since_at=at)
    else:
        busy = data.get("activity") == "busy"
        if busy == before.busy:
            return
        after = replace(before, busy=busy, since_wall=wall, since_at=at)

    if before is not None:
        end = _end(connection, before, at, wall, rebooted=data.get("reason") == "rebooted")
        _close(connection, lease, before, end, seq, last=after is None)
    if after is None:
        connection.execute("DELETE FROM usage_open WHERE lease = ?", (lease,))
    else:
        _put(connection, lease, after)


def _end(
    connection: sqlite3.Connection, open_: _Open, at: float, wall: float, *, rebooted: bool
) -> float:
    """Wall time at which a span ends."""
    if not rebooted and at >= open_.since_at:
        return open_.since_wall + (at - open_.since_at)
    # Another boot: the time at which the host went down is unknown. Count up to the last record
    # before it came up again, without the hours when it was off.
    booted = wall - at
    heard = connection.execute(
        "SELECT wall FROM records WHERE wall <= ? ORDER BY seq DESC LIMIT 1", (booted,)
    ).fetchone()
    seen = connection.execute(
        "SELECT value FROM meta WHERE key = 'seen_wall' AND CAST(value AS REAL) <= ?", (booted,)
    ).fetchone()
    signs = [float(row[0]) for row in (heard, seen) if row is not None]
    return max([open_.since_wall, *signs])


def summarise(
    connection: sqlite3.Connection, since: float, until: float, environment: str | None
) -> list[UsageRow]:
    """Usage between two wall times (unix seconds), one row an environment, sorted by name."""
    rows = connection.execute(_SUM, {"since": since, "until": until, "environment": environment})
    return [
        UsageRow(
            name,
            float(held),
            float(busy),
            int(spans) + int(buckets),
            float(rested),
            float(resident),
        )
        for name, held, busy, spans, buckets, rested, resident in rows
    ]


#: A part of the window in which GPUs were charged: from, to, and how many on average.
_CHARGED = """
    SELECT MAX(start_wall, :since), MIN(end_wall, :until), gpus * (1 - rests) FROM usage_spans
     WHERE environment = :environment AND end_wall > :since AND start_wall < :until
    UNION ALL
    SELECT MAX(since_wall, :since), :until, gpus * (1 - rests) FROM usage_open
     WHERE environment = :environment AND since_wall < :until
    UNION ALL
    SELECT MAX(start_wall, :since), MIN(start_wall + length, :until), (held - rested) / length
      FROM usage_buckets
     WHERE environment = :environment AND start_wall > :since - length AND start_wall < :until
"""


def leaves(
    connection: sqlite3.Connection, since: float, until: float, environment: str, seconds: float
) -> float | None:
    """Seconds until this many charged GPU-seconds have left a window that moves on.

    ``since`` and ``until`` (unix seconds) are the window now. ``None`` if the window has fewer.
    """
    rows = connection.execute(
        _CHARGED, {"since": since, "until": until, "environment": environment}
    ).fetchall()
    edges = [(start, gpus) for start, _end, gpus in rows]
    edges += [(end, -gpus) for _start, end, gpus in rows]
    at, rate, left = since, 0.0, seconds
    for edge, change in sorted(edges):
        if rate > 0 and rate * (edge - at) >= left:
            return at + left / rate - since
        left -= rate * (edge - at)
        at, rate = edge, rate + change
    return None


def days_until(now: float, count: int, utc_offset: float) -> list[tuple[float, float]]:
    """The last ``count`` local days as (start, end) in unix seconds, oldest first.

    The clocks there are ``utc_offset`` seconds before UTC's; today ends ``now``.
    """
    # The sum may be rounded up to a midnight that is not quite there yet.
    today = min(now, math.floor((now + utc_offset) / DAY) * DAY - utc_offset)
    return [(today - DAY * back, today - DAY * (back - 1)) for back in range(count - 1, 0, -1)] + [
        (today, now)
    ]


def daily(
    connection: sqlite3.Connection,
    now: float,
    count: int,
    utc_offset: float,
    environment: str,
    gpus: int,
) -> list[UsedOnDay]:
    """Usage on each of :func:`days_until`. One look at the tables, however many days."""
    days = days_until(now, count, utc_offset)
    found = connection.execute(
        _DAYS,
        {
            "since": days[0][0],
            "until": now,
            "days": count,
            "length": DAY,
            "environment": environment,
        },
    )
    rows = {row[0]: row[1:] for row in found}
    told: list[UsedOnDay] = []
    for day, (start, end) in enumerate(days):
        held, busy, spans, buckets, node_held, node_busy, rested, resident = rows.get(
            day, (0.0,) * 8
        )
        told.append(
            {
                "start": start,
                "end": end,
                "held": held,
                "busy": busy,
                "leases": int(spans + buckets),
                # Turns, and time held where nobody takes turns.
                "charged": max(0.0, held - rested),
                "resident_gib_seconds": resident,
                "node_held": node_held,
                "node_busy": node_busy,
                "capacity": gpus * (end - start),
            }
        )
    return told


def roll_up(connection: sqlite3.Connection, wall: float, history: float, limit: int) -> bool:
    """Merge old spans into hours and old hours into days; at most ``limit`` rows of each.

    Returns whether there is more to do.
    """
    spans = connection.execute(
        "SELECT end_wall, seq, environment, gpus, busy, start_wall, last, rests, memory"
        " FROM usage_spans"
        " WHERE end_wall < ? ORDER BY end_wall, seq LIMIT ?",
        (wall - EXACT, limit),
    ).fetchall()
    _into_hours(connection, spans)
    oldest_hour = math.floor((wall - history) / DAY) * DAY
    hours = connection.execute(
        "SELECT start_wall, environment, held, busy, leases, rested, resident FROM usage_buckets"
        " WHERE length = ? AND start_wall < ? ORDER BY start_wall LIMIT ?",
        (HOUR, oldest_hour, limit),
    ).fetchall()
    for start, environment, *sums in hours:
        day = math.floor(start / DAY) * DAY
        connection.execute(_ADD_TO_BUCKET, (day, DAY, environment, *sums))
        connection.execute(
            "DELETE FROM usage_buckets WHERE start_wall = ? AND length = ? AND environment = ?",
            (start, HOUR, environment),
        )
    return len(spans) == limit or len(hours) == limit


def _into_hours(connection: sqlite3.Connection, spans: Sequence[tuple[Any, ...]]) -> None:
    for end, seq, environment, gpus, busy, start, last, *use_then in spans:
        _spread(connection, environment, gpus, bool(busy), start, end, bool(last), Use(*use_then))
        connection.execute("DELETE FROM usage_spans WHERE end_wall = ? AND seq = ?", (end, seq))


def beyond(connection: sqlite3.Connection) -> list[str]:
    """Environments with more than :data:`MOST_SPANS` spans."""
    found = connection.execute(
        "SELECT environment FROM usage_spans GROUP BY environment HAVING COUNT(*) > ?",
        (MOST_SPANS,),
    )
    return [row[0] for row in found]


def fold(connection: sqlite3.Connection, environment: str, limit: int) -> bool:
    """Merge the oldest of an environment's spans into hours, those beyond :data:`MOST_SPANS`.

    At most ``limit`` of them. Returns whether there are more.
    """
    (count,) = connection.execute(
        "SELECT COUNT(*) FROM usage_spans WHERE environment = ?", (environment,)
    ).fetchone()
    most = min(limit, max(0, count - MOST_SPANS))
    spans = connection.execute(
        "SELECT end_wall, seq, environment, gpus, busy, start_wall, last, rests, memory"
        " FROM usage_spans"
        " WHERE environment = ? ORDER BY end_wall, seq LIMIT ?",
        (environment, most),
    ).fetchall()
    _into_hours(connection, spans)
    return bool(count - most > MOST_SPANS)


def _spread(
    connection: sqlite3.Connection,
    environment: str,
    gpus: int,
    busy: bool,
    start: float,
    end: float,
    last: bool,
    then: Use,
) -> None:
    """Add one span to the hours it touches. The lease is counted in the hour in which it ended."""
    final = math.floor(end / HOUR)
    for number in range(math.floor(start / HOUR), final + 1):
        hour = number * HOUR
        lasted = max(0.0, min(end, hour + HOUR) - max(start, hour))
        held, resident = gpus * lasted, then.memory * lasted
        counted = int(last and number == final)
        if held or counted or resident:
            rested = held if then.rests else 0.0
            sums = (held, held if busy else 0.0, counted, rested, resident)
            connection.execute(_ADD_TO_BUCKET, (hour, HOUR, environment, *sums))
