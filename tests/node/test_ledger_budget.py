"""The ledger stays small, and no wall clock that jumps forward makes its history old.

It is coalesced, within its budget, and the file gives room back.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from support.classyear import DAY, GIB, Classroom, classroom
from support.clock import FakeClock
from support.ledgers import BOOT, Opens, active, granted, record
from support.loop import soon
from support.managing import managing

from jupyter_gpushare.ledger import usage
from jupyter_gpushare.ledger.budget import LedgerBudget, excess
from jupyter_gpushare.ledger.ledger import JSON, UNOWNED, Ledger, Record, UsageRow
from jupyter_gpushare.node.host import walljumps
from jupyter_gpushare.node.host.walljumps import OFF, PROOF, SLACK, Belief, Instant
from jupyter_gpushare.node.manager import Manager
from jupyter_gpushare.node.wire import translate
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import ProcessId, Quota
from jupyter_gpushare.protocol.calls import parse_call
from jupyter_gpushare.protocol.framing import encode

MIB = 2**20


def toggles(count: int, start: float, lease: str = "L", who: str = "alice") -> list[Record]:
    """One a second, from busy."""
    return [active(start + n, lease, ("idle", "busy")[n % 2], who) for n in range(count)]


# -- toggling ----------------------------------------------------------------------------------


def test_a_lease_that_toggles_leaves_two_records_a_minute(ledger: Ledger) -> None:
    ledger.append([granted(0.0, "L")])
    for start in range(0, 600, 20):
        ledger.append(toggles(20, 1.0 + start))
    kinds = [row.kind for row in ledger.history(None, 1000)]
    assert 20 <= kinds.count("ActivityChanged") <= 22
    newest = ledger.history(None, 1)[0]
    assert (newest.at, newest.data["activity"]) == (600.0, "busy")
    # Usage counts each of them, as exactly as before.
    assert ledger.usage(BOOT, BOOT + 601, None) == [UsageRow("alice", 601.0, 301.0, 1)]


def test_what_happened_in_between_keeps_both(ledger: Ledger) -> None:
    ledger.append([granted(0.0, "L"), *toggles(3, 1.0)])
    ledger.append([record("LeaseParked", 4.0, lease="L"), granted(5.0, "L"), *toggles(1, 6.0)])
    ledger.append([*toggles(2, 7.0, "other", "bob"), *toggles(3, 7.0)])
    told = [(row.kind, row.at) for row in reversed(ledger.history("alice", 100))]
    assert told == [
        ("LeaseGranted", 0.0),
        ("ActivityChanged", 1.0),
        ("ActivityChanged", 3.0),
        ("LeaseParked", 4.0),
        ("LeaseGranted", 5.0),
        ("ActivityChanged", 6.0),
        ("ActivityChanged", 9.0),
    ]


def test_a_batch_that_fails_drops_nothing(ledger: Ledger) -> None:
    ledger.append([granted(0.0, "L"), *toggles(2, 1.0)])
    before = ledger.history(None, 100)
    with pytest.raises(ValueError, match=r"."):
        ledger.append([*toggles(1, 3.0), record("Bad", float("nan"), lease="L")])
    assert ledger.history(None, 100) == before
    ledger.append(toggles(1, 3.0))
    assert [row.at for row in ledger.history(None, 100)] == [3.0, 1.0, 0.0]


LONG = "\u0001" * 1024


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("kept", {"lease": "L", "reason": LONG}),
        ("ability", {"lease": "L", "rung": "none", "why": LONG}),
        ("request", {"task": {"name": "n", "kind": "process", "path": 4 * LONG}}),
    ],
)
def test_what_a_client_says_is_bounded_as_it_is_stored(method: str, params: dict[str, Any]) -> None:
    call = parse_call(encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    who = translate.Caller("mallory", ProcessId("boot", 1, 1))
    command = translate.COMMANDS[call.method](0.0, who, call.params, "L")
    assert len(json.dumps(msgspec.to_builtins(command))) < 2048 + 640


# -- the budget --------------------------------------------------------------------------------

SIZES = st.dictionaries(st.none() | st.text(max_size=3), st.integers(0, 10_000), max_size=12)


@given(sizes=SIZES, each=st.integers(0, 8000), most=st.integers(-50, 60_000))
def test_who_keeps_little_keeps_all_and_all_fit(
    sizes: dict[str | None, int], each: int, most: int
) -> None:
    over = excess(sizes, each, most)
    left = {name: size - over.get(name, 0) for name, size in sizes.items()}
    assert sum(left.values()) <= max(0, most)
    assert all(size <= each for name, size in left.items() if name is not None)
    if over and not any(size > each for size in sizes.values()):
        # Nobody loses who has less than somebody who loses nothing.
        spared = [size for name, size in sizes.items() if name not in over]
        assert max(spared, default=0) <= min(sizes[name] for name in over)
    assert all(0 < lost <= sizes[name] for name, lost in over.items())


async def fill(room: Classroom, who: str, leases: int) -> None:
    """Lease after lease, under the longest name."""
    path = "/" + "x" * 2000
    for number in range(leases):
        room.give_back(room.ask(who, path))
        if number % 25 == 24:
            await room.settle()
            room.clock.advance(30.0)
        if number % 250 == 249:
            await room.manager.tidy()


async def test_one_who_fills_the_ledger_loses_his_own_oldest_detail_only(path: Path) -> None:
    """And what is nobody's, as what the audit finds on GPUs, costs nobody their history."""
    budget = LedgerBudget(2 * MIB)

    async with classroom(path, ledger_bytes=budget.file, snapshot_every=100) as room:
        ledger, asks = room.manager.ledger, room.manager.in_ledger
        await room.day(students=5, lessons=1, cells=10)
        honest = await asks(lambda: ledger.history("student-03", 1000))
        at, quota = room.clock.boot(), Quota(1, 8 * GIB)
        await room.manager.submit(cmd.SetQuota(at, "mallory", quota, "root"))
        by = Record("Noted", 0.0, BOOT, None, None, {"by": "root"})
        process = {"boot_id": "b", "pid": 1, "start": 1}
        data: dict[str, JSON] = {"gpu": "GPU-0", "process": process, "kind": "squatter"}
        data["phase"] = "cleared"
        flags = [Record("FlagMoved", float(n), BOOT, None, None, data) for n in range(10_000)]
        await asks(lambda: ledger.append([by, *flags]))
        await fill(room, "mallory", 700)
        await room.manager.tidy()
        size, used = await asks(ledger.size)
        assert used <= budget.used
        assert size <= budget.file
        shares, _ = await asks(ledger.shares)
        assert 0 < shares["mallory"] <= budget.each + budget.grown
        assert 0 < shares[UNOWNED] <= budget.each + budget.grown
        # Nobody else lost anything, nor is forgotten what was done to him, or his GPU-hours.
        assert await asks(lambda: ledger.history("student-03", 1000)) == honest
        his = await asks(lambda: ledger.history("mallory", 100_000))
        assert his[-1].kind == "QuotaChanged"
        assert by in await asks(lambda: ledger.history(None, 100_000))
        until = room.clock.wall()
        rows = await asks(lambda: ledger.usage(0.0, until, None))
        assert {row.environment: row.leases for row in rows}["mallory"] == 700


async def test_a_class_fits_for_a_year(path: Path) -> None:
    """Three days of a quarter of a class; `make bench-ledger` lives through the whole year."""

    async with classroom(path) as room:
        used = []
        for _ in range(3):
            await room.day(students=10, lessons=1, cells=40)
            used.append((await room.manager.in_ledger(room.manager.ledger.size))[1])
        a_cell = (used[2] - used[1]) / (10 * 40)
        # Forty students, 200 cells a day on five days a week; history is of 90 days.
        assert a_cell * 40 * 200 * 90 * 5 / 7 < GIB / 2


def test_exact_usage_of_who_makes_too_much_of_it_is_added_up_early(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_SPANS", 50)
    ledger.append([granted(0.0, "L"), granted(0.0, "B", "bob"), *toggles(30, 1.0, "B", "bob")])
    ledger.append(toggles(1000, 1.0))
    before = ledger.usage(BOOT - DAY, BOOT + DAY, None)
    assert ledger.shares()[1] == ["alice"]
    while ledger.fold("alice"):
        pass
    assert ledger.shares()[1] == []
    after = ledger.usage(BOOT - DAY, BOOT + DAY, None)
    assert [(row.environment, row.leases) for row in after] == [("alice", 1), ("bob", 1)]
    for one, other in zip(before, after, strict=True):
        assert one.gpu_seconds_held == pytest.approx(other.gpu_seconds_held)
        assert one.gpu_seconds_busy == pytest.approx(other.gpu_seconds_busy)


# -- the file ----------------------------------------------------------------------------------


def test_the_file_gives_back_what_is_forgotten(path: Path, opens: Opens) -> None:
    ledger = opens(path, history=0.0)
    for start in range(0, 2000, 1000):
        ledger.append(
            [record("Noted", float(start + n), lease="L", text="x" * 900) for n in range(1000)]
        )
    large, _ = ledger.size()
    ledger.write_snapshot([])
    while ledger.prune(BOOT + DAY):
        pass
    while ledger.shrink():
        ledger.append([record("Noted", 2000.0, lease="L")])  # grants go on in between
    size, used = ledger.size()
    assert used <= size < large / 10
    ledger.close()
    assert path.stat().st_size < large / 10


# -- a wall clock that jumps -----------------------------------------------------------------------

START = Instant("boot-1", 1000.0, 1.7e9)


def later(since: Instant, seconds: float, jump: float = 0.0, boot_id: str | None = None) -> Instant:
    boot = since.boot + seconds if boot_id is None else seconds
    return Instant(boot_id or since.boot_id, boot, since.wall + seconds + jump)


def test_time_that_passed_is_believed() -> None:
    belief = Belief().after(START)
    assert belief.is_sure
    assert belief.after(later(START, 400 * DAY)).is_sure


def test_a_jump_is_believed_when_it_has_lasted() -> None:
    belief = Belief().after(START)
    jumped = later(START, 600.0, 91 * DAY)
    belief = belief.after(jumped)
    assert not belief.is_sure
    assert not belief.after(later(jumped, PROOF - 1)).is_sure
    assert belief.after(later(jumped, PROOF)).is_sure


def test_a_clock_that_is_put_right_is_believed_at_once() -> None:
    belief = Belief().after(START).after(later(START, 600.0, 91 * DAY))
    assert belief.after(later(START, 1200.0)).is_sure


def test_a_host_that_was_off_for_a_month_is_believed_and_for_longer_after_a_day() -> None:
    belief = Belief().after(START)
    assert belief.after(later(START, 60.0, OFF - 60.0, boot_id="boot-2")).is_sure
    long_off = later(START, 60.0, 91 * DAY, boot_id="boot-2")
    belief = belief.after(long_off)
    assert not belief.is_sure
    # A boot that did not last proves nothing.
    assert not belief.after(later(START, PROOF, 91 * DAY, boot_id="boot-3")).is_sure
    assert belief.after(later(long_off, PROOF)).is_sure


def test_a_host_that_is_switched_off_every_night_is_believed_after_days() -> None:
    """Proof took a day in one boot: after one long absence nothing was ever forgotten again."""
    belief, off = Belief().after(START), 91 * DAY
    looks = 0
    for day in range(4):
        wall = START.wall + off + day * DAY
        for hour in range(9):
            if belief.is_sure and looks:
                break
            belief = belief.after(Instant(f"boot-{day}", 60.0 + hour * 3600, wall + hour * 3600))
            belief, looks = walljumps.from_json(asdict(belief)), looks + 1
    assert belief.is_sure
    assert looks == 3 * 9, "24 hours that were seen, 8 of each day"
    # Another jump in between begins anew.
    belief = Belief().after(START).after(later(START, 60.0, off, boot_id="boot-2"))
    belief = belief.after(later(START, PROOF - 1, off, boot_id="boot-2"))
    belief = belief.after(later(START, 60.0, 2 * off, boot_id="boot-3"))
    assert not belief.after(later(START, 3600.0, 2 * off, boot_id="boot-3")).is_sure


@given(st.lists(st.tuples(st.floats(1.0, 3 * DAY), st.floats(-SLACK / 2, SLACK / 2)), max_size=20))
def test_a_clock_that_drifts_or_is_set_back_is_always_believed(
    steps: list[tuple[float, float]],
) -> None:
    belief, at = Belief().after(START), START
    for seconds, jump in steps:
        at = later(at, seconds, jump)
        belief = belief.after(at)
        assert belief.is_sure
        assert walljumps.from_json(asdict(belief)) == belief


@pytest.mark.parametrize("kept", [None, 3, {}, {"known": 1}, {"known": {"boot_id": "x"}}])
def test_what_cannot_be_read_is_no_belief(kept: object) -> None:
    assert walljumps.from_json(kept) == Belief()


class Watched:
    """A real ledger that tells when a tidying has asked it for the clocks, or has ended."""

    def __init__(self, path: Path, wall: float) -> None:
        self.real = Ledger.open(path, history=90 * DAY, wall=wall)
        self.looks = 0

    def recollect(self, key: str) -> object:
        self.looks += 1
        return self.real.recollect(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


async def test_history_outlives_a_clock_that_jumps_91_days(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()

    def looked_after() -> AbstractAsyncContextManager[Manager]:
        ledger = Watched(tmp_path / "ledger", clock.wall())
        return managing(ledger, clock=clock, tidy_interval=0.02, measure_interval=0.05)

    async with looked_after() as manager:
        await soon(lambda: manager.ledger.looks >= 2)
        clock.advance(600.0)
        clock._wall += 91 * DAY
        before = manager.ledger.looks
        await soon(lambda: manager.ledger.looks >= before + 3)
    async with looked_after() as manager:
        await soon(lambda: manager.ledger.looks >= 3)

        def first() -> set[str]:
            return {record.kind for record in manager.ledger.real.history(None, 1000)}

        assert "GpuFound" in await manager.in_ledger(first)
        assert caplog.text.count("does not explain it") == 1
        clock.advance(PROOF)
        async with asyncio.timeout(60):
            while "GpuFound" in await manager.in_ledger(first):
                await asyncio.sleep(0.02)
