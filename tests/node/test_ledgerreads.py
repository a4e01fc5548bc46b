"""Whoever reads the ledger pays for it, and holds up nobody's heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpushare.daemon.fairness import Purses
from jupyter_gpushare.ledger import reads as ledgerreads
from jupyter_gpushare.ledger.ledger import Ledger, Reads
from jupyter_gpushare.ledger.reads import LedgerReads
from jupyter_gpushare.node.wire.turnstile import Turnstile
from jupyter_gpushare.protocol.framing import Encoded


def test_a_slow_disk_stops_nobodys_heartbeats(tmp_path: Path) -> None:
    """The thread only waits, as for a disk: whom it reads for may call at once."""

    async def story(reads: LedgerReads) -> None:
        turnstile = Turnstile(asyncio.get_running_loop(), Purses(500.0, 100.0), Purses(1.0, 1.0))
        reads._charges = turnstile

        def wait(ledger: Reads) -> None:
            time.sleep(0.3)  # the disk: seconds in which the thread is not busy

        await reads.ask("alice", wait)
        assert turnstile.enter(_Beat())

    play(story, tmp_path)


class _Beat:
    owner = "alice"

    def serve(self) -> bool:
        return False


def test_a_reading_that_keeps_the_processor_is_charged(tmp_path: Path) -> None:
    async def story(reads: LedgerReads) -> None:
        told: list[tuple[object, float]] = []
        reads._charges = SimpleNamespace(  # type: ignore[assignment]
            took=lambda owner, seconds: told.append((owner, seconds))
        )
        await reads.ask("alice", lambda ledger: sum(range(10**6)))
        ((owner, seconds),) = told
        assert owner == "alice"
        assert seconds > 0.001

    play(story, tmp_path)


def test_the_same_question_a_moment_later_is_one_reading_and_then_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgerreads, "FRESH", 0.2)

    async def story(reads: LedgerReads) -> None:
        asked = 0

        def read(ledger: Reads) -> Encoded:
            nonlocal asked
            asked += 1
            return Encoded(b"x" * 1000)

        for _ in range(3):
            await reads.ask("alice", read, "q")
        assert (asked, reads.remembered) == (1, 1000)
        async with asyncio.timeout(60):
            while reads.remembered:
                await asyncio.sleep(0.01)
        await reads.ask("alice", read, "q")
        assert asked == 2

    play(story, tmp_path)


def test_answers_are_kept_up_to_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgerreads, "FRESH", 100.0)

    async def story(reads: LedgerReads) -> None:
        for number in range(20):
            await reads.ask("alice", lambda ledger: Encoded(b"x" * 1_000_000), number)
            assert reads.remembered <= ledgerreads.REMEMBERED
        huge = Encoded(b"x" * (ledgerreads.REMEMBERED + 1))
        assert await reads.ask("alice", lambda ledger: huge, "huge") is huge
        assert reads.remembered <= ledgerreads.REMEMBERED

    play(story, tmp_path)


def play(story: Callable[[LedgerReads], Awaitable[None]], path: Path) -> None:
    async def scene() -> None:
        ledger = Ledger.open(path / "ledger.sqlite", history=1e9, wall=1.7e9)
        reads = LedgerReads(ledger)
        try:
            await story(reads)
        finally:
            await reads.close()
            ledger.close()

    asyncio.run(scene())
