"""Whoever reads the ledger pays for it, and holds up nobody's heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

from jupyter_gpushare.daemon.fairness import Purses
from jupyter_gpushare.ledger.ledger import Ledger, Reads
from jupyter_gpushare.ledger.reads import LedgerReads
from jupyter_gpushare.node.wire.turnstile import Turnstile


async def test_a_slow_disk_stops_nobodys_heartbeats(tmp_path: Path) -> None:
    """The thread only waits, as for a disk: whom it reads for may call at once."""

    async with reading(tmp_path) as reads:
        turnstile = Turnstile(asyncio.get_running_loop(), Purses(500.0, 100.0), Purses(1.0, 1.0))
        reads._charges = turnstile

        def wait(ledger: Reads) -> None:
            time.sleep(0.3)  # the disk: seconds in which the thread is not busy

        await reads.ask("alice", wait)
        assert turnstile.enter(_Beat())


class _Beat:
    owner = "alice"

    def serve(self) -> bool:
        return False


async def test_a_reading_that_keeps_the_processor_is_charged(tmp_path: Path) -> None:
    async with reading(tmp_path) as reads:
        told: list[tuple[object, float]] = []
        reads._charges = SimpleNamespace(  # type: ignore[assignment]
            took=lambda owner, seconds: told.append((owner, seconds))
        )
        await reads.ask("alice", lambda ledger: sum(range(10**6)))
        ((owner, seconds),) = told
        assert owner == "alice"
        assert seconds > 0.001


@asynccontextmanager
async def reading(path: Path) -> AsyncIterator[LedgerReads]:
    ledger = Ledger.open(path / "ledger.sqlite", history=1e9, wall=1.7e9)
    reads = LedgerReads(ledger)
    try:
        yield reads
    finally:
        await reads.close()
        ledger.close()
