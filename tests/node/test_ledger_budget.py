"""The ledger stays small: coalesced, within its budget, and the file gives room back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from support.classyear import DAY, GIB, Classroom, classroom
from support.ledgers import BOOT, Opens, active, granted, record

from jupyter_gpushare.ledger import usage
from jupyter_gpushare.ledger.budget import LedgerBudget, excess
from jupyter_gpushare.ledger.ledger import JSON, UNOWNED, Ledger, Record, UsageRow
from jupyter_gpushare.node.wire import translate
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Bytes, EnvironmentName, LeaseId, ProcessId, Quota
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
    who = translate.Caller(EnvironmentName("mallory"), ProcessId("boot", 1, 1))
    command = translate.COMMANDS[call.method](0.0, who, call.params, LeaseId("L"))
    assert len(json.dumps(msgspec.to_builtins(command))) < 2048 + 600


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
        mallory, root = EnvironmentName("mallory"), EnvironmentName("root")
        await room.day(students=5, lessons=1, cells=10)
        honest = await asks(lambda: ledger.history("student-03", 1000))
        at, quota = room.clock.boot(), Quota(1, Bytes(8 * GIB))
        await room.manager.submit(cmd.SetQuota(at, mallory, quota, root))
        by = Record("Noted", 0.0, BOOT, None, None, {"by": "root"})
        process = {"boot_id": "b", "pid": 1, "start": 1}
        data: dict[str, JSON] = {"gpu": "GPU-0", "process": process, "kind": "squatter"}
        data["phase"] = "cleared"
        flags = [Record("FlagMoved", float(n), BOOT, None, None, data) for n in range(10_000)]
        await asks(lambda: ledger.append([by, *flags]))
        await fill(room, mallory, 700)
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
