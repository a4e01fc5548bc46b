"""What the ledger has taken is there after a crash, and a disk in trouble is told truly.

On real disks, with one writer.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from support.disk import fill, remount, tiny_disk
from support.examples import examples
from support.ledgers import BOOT, Opens, active, ended, granted, open_ledger, record

from jupyter_gpushare.ledger import ledger as ledger_module
from jupyter_gpushare.ledger.ledger import (
    Ledger,
    LedgerError,
    LedgerFailed,
    LedgerFull,
    LedgerInUse,
    LedgerReader,
    LedgerReadOnly,
    Reads,
    Record,
    UsageRow,
)
from jupyter_gpushare.ledger.reads import LedgerReads
from jupyter_gpushare.ledger.usage import DAY

# -- records ---------------------------------------------------------------------------------


def test_records_survive_a_restart_in_order(path: Path, opens: Opens) -> None:
    records = [record("Noted", float(n), None, None, n=n, text="héllo \ud800") for n in range(5)]
    ledger = opens(path)
    ledger.append(records[:2])
    ledger.append([])
    ledger.append(records[2:])
    ledger.close()

    again = opens(path)
    assert again.load() == ([], records)
    assert again.notice is None


def test_a_snapshot_stands_for_what_came_before_it(ledger: Ledger) -> None:
    ledger.append([record("Old", 1.0)])
    ledger.append([record("Old", 2.0)])
    state = [record("State", 2.0, None, None, gpus=[1, 2])]
    ledger.write_snapshot(state)
    late = record("Late", 3.0)
    ledger.append([late])
    assert ledger.load() == (state, [late])
    ledger.write_snapshot([])
    assert ledger.load() == ([], [])
    assert [row.kind for row in ledger.history(None, 10)] == ["Late", "Old", "Old"]


def test_a_batch_with_a_bad_record_writes_nothing(ledger: Ledger) -> None:
    good = record("Good", 1.0)
    for bad in (
        record("Bad", float("nan")),
        record("Bad", 1.0, number=float("inf")),
        record("Bad", 1.0, thing=object()),  # type: ignore[arg-type]
        record("Bad\ud800", 1.0),
    ):
        with pytest.raises(ValueError, match=r"."):
            ledger.append([good, bad])
    assert ledger.load() == ([], [])
    ledger.append([good])
    assert ledger.load() == ([], [good])


def test_history_is_newest_first_and_by_environment_for_the_files_owner_only(
    ledger: Ledger, path: Path
) -> None:
    ledger.append([record("A", 1.0, "alice"), record("B", 2.0, "bob"), record("C", 3.0, "alice")])
    assert [row.kind for row in ledger.history(None, 2)] == ["C", "B"]
    assert [row.kind for row in ledger.history("alice", 10)] == ["C", "A"]
    for whose, most in (("nobody", 10), (None, 0), (None, -1)):
        assert ledger.history(whose, most) == []
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# -- one writer ------------------------------------------------------------------------------


def test_an_outside_program_that_holds_the_file_is_named(path: Path, opens: Opens) -> None:
    opens(path)
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    ledger = opens(path)
    with pytest.raises(LedgerInUse, match="another program"):
        ledger.append([record("Noted", 1.0)])
    shell.execute("ROLLBACK")
    shell.close()
    ledger.append([record("Noted", 1.0)])


def test_others_read_and_copy_it_while_it_is_written(
    ledger: Ledger, path: Path, tmp_path: Path
) -> None:
    reader = LedgerReader(ledger)
    for number in range(5):
        ledger.append([record("Noted", float(number))])
        assert len(reader.history(None, 100)) == number + 1
    with sqlite3.connect(path) as shell, sqlite3.connect(tmp_path / "copy") as copy:
        shell.backup(copy)
        assert copy.execute("SELECT COUNT(*) FROM records").fetchone() == (5,)
    shell.close()
    copy.close()
    ledger.append([record("Noted", 6.0)])
    with pytest.raises(LedgerError), reader._reading() as connection:
        connection.execute("DELETE FROM records")
    reader.close()


CHILD = textwrap.dedent(
    """
    import sys
    from jupyter_gpushare.ledger.ledger import Ledger, Record

    ledger = Ledger.open(sys.argv[1], history=0.0, wall=1.7e9)
    snapshot, tail = ledger.load()
    n = max((record.data["n"] for record in snapshot + tail), default=-1) + 1
    while True:
        batch = []
        for lease in ("L1", "L2"):
            kind = "LeaseEnded" if n % 4 > 1 else "LeaseGranted"
            data = {"n": n, "gpus": [{"gpu": "GPU-1", "memory": 1}]}
            batch.append(Record(kind, float(n), 1.7e9 + n, "alice", lease, data))
            n += 1
        ledger.append(batch)
        print(n - 1, flush=True)
        if n % 50 == 0:
            ledger.write_snapshot([batch[-1]])
            ledger.prune(1.7e9 + n)
            print("S", n - 1, flush=True)
    """
)


def killed(path: Path, lines: int) -> str:
    """What a writer says that is killed after so many lines, and goes on meanwhile."""
    line = [sys.executable, "-c", CHILD, str(path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as child:
        for _line in range(lines):
            child.stdout.readline()
        with pytest.raises(LedgerInUse, match="another node manager"):
            open_ledger(path)
        child.kill()
        return child.stdout.read()


def test_everything_acknowledged_survives_kill_nine(path: Path) -> None:
    """Killed at random moments; what append returned from is there, batches are whole."""
    dice = random.Random(20261120)
    acknowledged = -1
    for _round in range(8):
        rest = killed(path, dice.randrange(1, 120))
        # A last line may be torn by the kill; a whole one was acknowledged.
        whole = [line for line in rest.split("\n")[:-1] if not line.startswith("S")]
        if whole:
            acknowledged = max(acknowledged, int(whole[-1]))

        ledger = open_ledger(path, history=0.0)
        assert ledger.notice is None
        snapshot, tail = ledger.load()
        numbers = [row.data["n"] for row in snapshot + tail]
        assert len(snapshot) <= 1
        assert numbers, "nothing was stored"
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[-1] % 2 == 1, "half a batch"
        assert numbers[-1] >= acknowledged
        acknowledged = numbers[-1]
        (row,) = ledger.usage(0.0, 1.7e9 + acknowledged, None)
        assert row.gpu_seconds_held == pytest.approx(held_by_child(acknowledged + 1))
        ledger.close()


def held_by_child(count: int) -> float:
    """GPU-seconds after ``count`` records of CHILD, whose record n happens in second n."""
    total, open_since = 0.0, {}
    for n in range(count):
        if n % 4 > 1:
            total += n - open_since.pop(n % 2)
        else:
            open_since[n % 2] = n
    return total + sum(count - 1 - since for since in open_since.values())


# -- damage ----------------------------------------------------------------------------------


def filled(path: Path) -> list[Record]:
    ledger = open_ledger(path)
    records = [record("Noted", float(n), "alice", None, text="x" * 300) for n in range(200)]
    ledger.append(records)
    ledger.close()
    return records


def scribble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 200] = os.urandom(200)
    path.write_bytes(content)


def run_sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(20000)),
    "text": lambda path: path.write_text("this was never a ledger\n" * 100),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2 // 4096 * 4096),
    "scribbled": scribble,
    "not JSON": lambda path: run_sql(path, "UPDATE records SET data = '{' WHERE seq = 150"),
    "not a record": lambda path: run_sql(path, "UPDATE records SET data = '[]' WHERE seq = 9"),
    "deep": lambda path: run_sql(path, f"UPDATE records SET data = '{'[' * 200000}'"),
    "no table": lambda path: run_sql(path, "DROP TABLE records"),
    "no usage": lambda path: run_sql(path, "DROP TABLE usage_spans"),
    "no version": lambda path: run_sql(path, "DELETE FROM schema_version"),
    "bad snapshot": lambda path: run_sql(path, "INSERT INTO meta VALUES ('snapshot_seq', 'x')"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupt_ledger_is_set_aside_and_said_so(path: Path, opens: Opens, damage: str) -> None:
    filled(path)
    DAMAGE[damage](path)
    damaged = path.read_bytes()

    ledger = opens(path)
    aside = path.with_name("ledger.sqlite.corrupt-20231114T000000Z")
    assert aside.read_bytes() == damaged
    assert str(aside) in ledger.notice
    assert ledger.load() == ([], [])
    ledger.append([record("Noted", 1.0)])

    # A second accident in the same second does not overwrite the first; the log goes with its file.
    opens.close()
    path.write_bytes(b"junk" * 2000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(b"old" + suffix.encode())
    opens(path)
    assert aside.read_bytes() == damaged
    second = aside.with_name(aside.name + "-2")
    assert second.read_bytes() == b"junk" * 2000
    assert second.with_name(second.name + "-wal").read_bytes() == b"old-wal"
    assert second.with_name(second.name + "-shm").exists()
    reopened = opens(path)
    assert reopened.notice is None


def test_a_damaged_log_does_not_stop_the_start(path: Path, opens: Opens) -> None:
    """SQLite believes a log up to the first frame whose checksum is wrong."""
    killed(path, 2)
    log = path.with_name(path.name + "-wal")
    with log.open("ab") as file:
        file.write(os.urandom(5000))
    ledger = opens(path)
    assert ledger.notice is None
    assert len(ledger.load()[1]) >= 4


def test_what_is_not_ours_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    run_sql(path, "CREATE TABLE recipes (cake TEXT)")
    before = path.read_bytes()
    with pytest.raises(LedgerFailed, match="something else"):
        open_ledger(path)
    assert path.read_bytes()[100:] == before[100:]
    assert [p.name for p in path.parent.glob("*corrupt*")] == []
    path.unlink()
    path.mkdir()
    with pytest.raises(LedgerFailed, match="directory"):
        open_ledger(path)
    # A planted link in the lock's place.
    other = path.with_name("another")
    path.with_name("another.lock").symlink_to(path.with_name("victim"))
    path.with_name("victim").write_text("precious")
    with pytest.raises(LedgerFailed):
        open_ledger(other)
    assert path.with_name("victim").read_text() == "precious"


def test_a_ledger_deleted_in_use_takes_nothing_more(ledger: Ledger, path: Path) -> None:
    ledger.append([record("Noted", 1.0)])
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(LedgerFailed, match="moved or deleted"):
        ledger.append([record("Lost", 2.0)])
    path.with_name("elsewhere").rename(path)
    ledger.append([record("Noted", 3.0)])
    assert [row.at for row in ledger.load()[1]] == [1.0, 3.0]


# -- disks -----------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_then_recovers(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "ledger"
        filler = fill(disk)
        with pytest.raises(LedgerFull):
            open_ledger(path)
        filler.unlink()
        ledger = open_ledger(path)
        assert ledger.notice is None
        stored = [granted(1.0, "L1")]
        ledger.append(stored)
        filler = fill(disk)
        refused = 0
        for n in range(50):  # the log may have a little room left in its last page
            more = record("Noted", 2.0 + n, text="x" * 9000)
            try:
                ledger.append([more])
                stored.append(more)
            except LedgerFull as error:
                refused += 1
                message = str(error)
        assert refused >= 49
        assert "full" in message
        assert str(path) in message
        assert ledger.load() == ([], stored)
        with pytest.raises(LedgerFull):
            ledger.write_snapshot([record("State", 1.0, text="x" * 9000)])

        # A node manager that restarts on the full disk still has everything.
        ledger.close()
        ledger = open_ledger(path)
        assert ledger.notice is None
        assert ledger.load() == ([], stored)
        with pytest.raises(LedgerFull):
            ledger.append([record("Noted", 99.0, text="x" * 9000)])

        filler.unlink()
        stored.append(record("Noted", 100.0, text="x" * 9000))
        ledger.append(stored[-1:])
        assert ledger.load() == ([], stored)
        ledger.close()
        again = open_ledger(path)
        assert again.load() == ([], stored)
        assert again.usage(BOOT, BOOT + 11.0, None) == [UsageRow("alice", 10.0, 10.0, 1)]
        again.close()


@pytest.mark.parametrize("crashed", [False, True])
def test_a_read_only_disk_keeps_what_is_known_and_refuses_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with tiny_disk(tmp_path / "disk", 8 << 20) as disk:
        path = disk / "ledger"
        if crashed:  # its log still beside it
            killed(path, 1)
            assert (disk / "ledger-wal").stat().st_size > 0
        else:
            filled(path)
        remount(disk, "ro")
        for another in (disk / "another", disk / "deeper" / "another"):
            with pytest.raises(LedgerReadOnly):
                open_ledger(another)
        ledger = open_ledger(path)
        snapshot, tail = ledger.load()
        assert tail or snapshot
        assert list(scratch.iterdir()), "it is read in a copy"
        with pytest.raises(LedgerReadOnly, match="read-only"):
            ledger.append([record("Noted", 1e6)])
        with pytest.raises(LedgerReadOnly):
            ledger.prune(BOOT)
        assert ledger.load() == (snapshot, tail)
        with pytest.raises(LedgerInUse):
            open_ledger(path)
        ledger.close()
        assert not list(scratch.iterdir())

        ledger = open_ledger(path)
        remount(disk, "rw")
        more = record("Noted", 1e6)
        ledger.append([more])
        assert ledger.load() == (snapshot, [*tail, more])
        ledger.close()
        again = open_ledger(path)
        assert again.load() == (snapshot, [*tail, more])
        again.close()


def test_a_disk_that_was_read_only_for_the_instant_of_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite then opens the file for reading, and such a connection never writes."""
    path = tmp_path / "ledger"
    filled(path)
    connect = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(
            sqlite3, "connect", lambda file, **how: connect(f"file:{file}?mode=ro", uri=True, **how)
        )
        ledger = open_ledger(path)
        for _ in range(2):
            with pytest.raises(LedgerReadOnly):
                ledger.append([record("Noted", 1e6)])
        before = ledger.load()
    more = record("Noted", 1e6)
    ledger.append([more])
    assert ledger.load() == (before[0], [*before[1], more])
    ledger.close()
    with pytest.raises(LedgerFailed, match="closed"):
        ledger.append([more])


# -- migrations ------------------------------------------------------------------------------


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = filled(path)

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE records")
        raise LedgerFailed("no")

    monkeypatch.setattr(ledger_module, "MIGRATIONS", (*ledger_module.MIGRATIONS, broken))
    with pytest.raises(LedgerFailed):
        open_ledger(path)
    monkeypatch.undo()
    ledger = opens(path)
    assert ledger.load() == ([], records)


# -- usage -----------------------------------------------------------------------------------


def test_setting_the_clock_does_not_invent_gpu_hours(ledger: Ledger) -> None:
    ledger.append([granted(0.0, "L1")])
    a_year_later = Record("LeaseEnded", 60.0, BOOT + 365 * DAY, "alice", "L1", {})
    ledger.append([a_year_later])
    assert ledger.usage(0.0, BOOT + 400 * DAY, None) == [UsageRow("alice", 60.0, 60.0, 1)]


def test_the_time_a_machine_was_off_is_nobodys(ledger: Ledger) -> None:
    ledger.append([granted(100.0, "L1"), granted(100.0, "L2")])
    ledger.append([record("Noted", 700.0)])  # the last thing heard
    weekend = BOOT + 3 * DAY  # the next boot
    ledger.append([Record("Started", 20.0, weekend + 20, None, None, {})])
    ledger.append(
        [
            Record("LeaseEnded", 21.0, weekend + 21, "alice", "L1", {"reason": "rebooted"}),
            Record("LeaseEnded", 500.0, weekend + 500, "alice", "L2", {"reason": "rebooted"}),
        ]
    )
    assert ledger.usage(0.0, weekend + 600, None) == [UsageRow("alice", 1200.0, 1200.0, 2)]


def test_prune_never_forgets_what_the_snapshot_does_not_cover(path: Path, opens: Opens) -> None:
    ledger = opens(path, history=0.0)
    ledger.append([granted(1.0, "L1")])
    assert ledger.prune(BOOT + DAY) is False
    assert len(ledger.load()[1]) == 1
    ledger.write_snapshot([granted(1.0, "L1")])
    ledger.append([record("Noted", 2.0)])
    ledger.prune(BOOT + DAY)
    assert [row.kind for row in ledger.load()[1]] == ["Noted"]
    assert len(ledger.history(None, 10)) == 1
    # Numbers never start again, or a snapshot would hide new records.
    ledger.write_snapshot([])
    ledger.prune(BOOT + DAY)
    assert ledger.history(None, 10) == []
    ledger.append([record("Noted", 3.0)])
    assert [row.at for row in ledger.load()[1]] == [3.0]
    assert len(ledger.load()[1]) == 1


def test_prune_forgets_in_steps_what_is_old(
    path: Path, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "PRUNE_ROWS", 10)
    ledger = opens(path, history=10 * DAY)
    ledger.append([record("Noted", n * DAY) for n in range(45)])
    ledger.write_snapshot([])
    steps = [ledger.prune(BOOT + 45 * DAY) for _ in range(4)]
    assert steps == [True, True, True, False]
    assert [row.at for row in ledger.history(None, 100)] == [n * DAY for n in range(44, 34, -1)]


OWNERS = {"L1": "alice", "L2": "alice", "L3": "bob"}
STEP = st.tuples(
    st.sampled_from(["grant", "busy", "idle", "park", "end", "prune", "reopen", "snapshot"]),
    st.sampled_from(list(OWNERS)),
    st.integers(1, 4),
    st.sampled_from([0.0, 1.0, 60.0, 3599.5, 7200.0, DAY, 9 * DAY]),
)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=25))
@example(
    [
        *[("grant", "L1", 2, 60.0), ("grant", "L3", 1, 1.0), ("idle", "L1", 1, 60.0)],
        *[("busy", "L1", 1, 7200.0), ("park", "L1", 1, 60.0), ("grant", "L1", 1, 1.0)],
        *[("end", "L1", 1, 60.0), ("park", "L2", 1, 1.0)],
    ]
)
def test_usage_equals_the_model(steps: list[tuple[str, str, int, float]]) -> None:
    """What usage means, said as plainly as possible: slices of constant state."""
    held: dict[str, tuple[int, bool]] = {}  # lease -> GPUs, busy
    slices: list[tuple[float, float, str, int, bool]] = []
    ends: Counter[str] = Counter()  # an ended lease does not come again: the next is another one
    now, history = 0.0, 5 * DAY

    def said(since: float, until: float) -> dict[str, Any]:
        totals: dict[str, list[float]] = {}
        for start, end, owner, gpus, busy in slices:
            seconds = gpus * max(0.0, min(end, until) - max(start, since))
            total = totals.setdefault(owner, [0.0, 0.0])
            total[0] += seconds
            total[1] += seconds * busy
        return {owner: pytest.approx(total) for owner, total in totals.items() if total[0]}

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger"
        ledger = open_ledger(path, history)
        for verb, lease, gpus, pause in steps:
            name, owner = f"{lease}.{ends[lease]}", OWNERS[lease]
            had, was_busy = held.get(lease, (0, False))
            if verb == "grant":
                ledger.append([granted(now, name, owner, gpus)])
                held[lease] = (gpus, True)
            elif verb in ("busy", "idle"):
                ledger.append([active(now, name, verb, owner)])
                held[lease] = (had, verb == "busy")
            elif verb == "park":
                ledger.append([record("LeaseParked", now, owner, name)])
                held[lease] = (0, was_busy)
            elif verb == "end":
                ledger.append([ended(now, name, owner)])
                held.pop(lease, None)
                ends[lease] += 1
            elif verb == "snapshot":
                ledger.write_snapshot([])
            elif verb == "prune":
                ledger.prune(BOOT + now)
            else:
                ledger.close()
                ledger = open_ledger(path, history)
            slices += [(now, now + pause, OWNERS[one], *held[one]) for one in held]
            now += pause
            # Everything, and any window that is younger than the exact spans.
            for since, until in ((-DAY, now), (now - 1.5 * DAY, now), (now - 7000.0, now - 30.0)):
                rows = ledger.usage(BOOT + since, BOOT + until, None)
                told = {one.environment: one for one in rows if one.gpu_seconds_held}
                assert said(since, until) == {
                    who: [one.gpu_seconds_held, one.gpu_seconds_busy] for who, one in told.items()
                }
        ledger.close()


# -- who reads -------------------------------------------------------------------------------------


async def test_the_processor_is_charged_and_not_a_slow_disk(tmp_path: Path) -> None:
    """Where a thread only waits, as for a disk, whom it reads for may call at once."""

    def wait(ledger: Reads) -> None:
        time.sleep(0.3)  # the disk: seconds in which the thread is not busy

    told: list[tuple[object, float]] = []
    with closing(Ledger.open(tmp_path / "ledger.sqlite", history=1e9, wall=1.7e9)) as ledger:
        reads = LedgerReads(ledger)
        reads._charges = SimpleNamespace(  # type: ignore[assignment]
            took=lambda *charged: told.append(charged)
        )
        await reads.ask("alice", wait)
        await reads.ask("bob", lambda ledger: sum(range(10**6)))
        await reads.close()
    (waited, worked) = told
    assert (waited[0], worked[0]) == ("alice", "bob")
    assert waited[1] < 0.1
    assert worked[1] > 0.001


async def test_who_gives_up_waiting_is_charged_for_what_was_begun(tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    told: list[object] = []

    def fails(ledger: Reads) -> None:
        begun.set()
        goes_on.wait(60)
        raise ValueError

    with closing(Ledger.open(tmp_path / "ledger.sqlite", history=1e9, wall=1.7e9)) as ledger:
        reads = LedgerReads(ledger)
        reads._charges = SimpleNamespace(  # type: ignore[assignment]
            took=lambda owner, _busy: told.append(owner)
        )
        given_up = asyncio.create_task(reads.ask("alice", fails))
        await asyncio.to_thread(begun.wait, 60)
        next_one = asyncio.create_task(reads.ask("bob", lambda ledger: 7))
        given_up.cancel()
        await asyncio.wait({given_up})
        assert told == [], "the thread still reads for alice"
        goes_on.set()
        assert await next_one == 7
        await reads.close()
    assert told == ["alice", "bob"]
