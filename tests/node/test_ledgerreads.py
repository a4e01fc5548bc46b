"""Whoever reads the ledger pays for it, and holds up nobody's heartbeats."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

from jupyter_gpushare.ledger.ledger import Ledger, Reads
from jupyter_gpushare.ledger.reads import LedgerReads


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
