"""The clocks. Only the node manager reads them; the policy gets times in commands."""

from __future__ import annotations

import time
from datetime import date, datetime, time as midnight
from typing import Final

from ..policy.words.model import Period
from ..protocol.periods import first_day, next_first_day
from ..protocol.processes import read_boot_id


class Clock:
    """Boot time for deadlines, wall time for people, the boot id to tell boots apart."""

    def boot(self) -> float:
        """Seconds since boot, suspended time included; never jumps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Unix seconds, for display only."""
        return time.time()

    def boot_id(self) -> str:
        """Changes with each boot: boot times of two boots cannot be compared."""
        return read_boot_id()


def bounds(period: Period, wall: float) -> tuple[float, float | None]:
    """The beginning of the period that ``wall`` is in, and of the next one, where it is known.

    Unix seconds; days begin at midnight in this host's time zone.
    """
    today = datetime.fromtimestamp(wall).astimezone().date()
    coming = next_first_day(period, today)
    return _begin(first_day(period, today)), None if coming is None else _begin(coming)


def ahead(wall: float) -> float:
    """Seconds by which this host's clocks are ahead of UTC's at a Unix time."""
    offset = datetime.fromtimestamp(wall).astimezone().utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


# Python has no local time at the ends of its calendar, and no GPU was used before Unix time began.
_FIRST_DAY: Final = date(1970, 1, 2)
_LAST_DAY: Final = date(9999, 12, 30)


def _begin(day: date) -> float:
    day = min(max(day, _FIRST_DAY), _LAST_DAY)
    return datetime.combine(day, midnight()).astimezone().timestamp()
