"""A wall clock that jumps forward makes no history old."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.clock import FakeClock
from support.loop import soon
from support.managing import managing

from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.node.host import walljumps
from jupyter_gpushare.node.host.walljumps import OFF, PROOF, SLACK, Belief, Instant
from jupyter_gpushare.node.manager import Manager

DAY = 86_400.0
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
