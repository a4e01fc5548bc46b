"""How large is the ledger after a year of a class? ``make bench-ledger``.

A real manager and a real ledger; the clock is moved by hand, so that a year takes minutes. Forty
students open two notebooks on each of five days a week, run 100 cells in each, and are parked once
in it. Every cell turns a lease busy and idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.classyear import DAY, GIB, classroom, size_of  # noqa: E402

STUDENTS, LESSONS, CELLS = 40, 2, 100


async def year(path: Path, days: int) -> dict[str, Any]:
    """Live through ``days``; the largest size on the way is the one that counts."""
    largest, begun = 0, time.monotonic()
    async with classroom(path) as room:
        for day in range(days):
            if day % 7 < 5:
                await room.day(STUDENTS, LESSONS, CELLS)
            else:
                room.clock.advance(DAY)
                await room.manager.tidy()
            largest = max(largest, size_of(path))
            if day % 10 == 0:
                print(f"day {day}: {size_of(path) / 2**20:.1f} MiB", file=sys.stderr, flush=True)
        until = room.clock.wall()
        used = await room.manager.in_ledger(
            lambda: room.manager.ledger.usage(until - days * DAY, until, None)
        )
        oldest = await room.manager.in_ledger(room.manager.ledger.check)
        assert oldest.problems == (), oldest
        assert oldest.since is not None
        assert sum(row.leases for row in used) == room.leases, "a lease is missing in the sums"
        return {
            "days": days,
            "students": STUDENTS,
            "leases": room.leases,
            "toggles": room.toggles,
            "bytes": size_of(path),
            "most_bytes": largest,
            "history_days": (until - oldest.since) / DAY,
            "gpu_hours": sum(row.gpu_seconds_held for row in used) / 3600,
            "seconds": time.monotonic() - begun,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(year(Path(folder) / "ledger.sqlite", given.days))
    text = json.dumps(seen, indent=2)
    print(text)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(text + "\n", encoding="utf-8")
    if seen["most_bytes"] > GIB:
        print("The ledger was larger than 1 GiB.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
