"""The periods of a budget of GPU-hours besides the rolling window, as people write them.

``week`` begins on Monday, ``month`` on the 1st; a day such as ``2026-10-01`` begins a term, which
goes on until an administrator names the next one. The node manager knows the time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, Final

WEEK: Final = "week"
MONTH: Final = "month"
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_period(given: Any) -> str:
    """The period as somebody wrote it. Raises :class:`ValueError` with a sentence."""
    if given in (WEEK, MONTH):
        return str(given)
    try:
        if isinstance(given, date):  # YAML reads a day without quotes as one
            given = f"{given:%Y-%m-%d}"
        if isinstance(given, str) and _DAY.fullmatch(given):
            date.fromisoformat(given)
            return given
    except ValueError:
        pass
    raise ValueError(
        f'it must be "week", "month", or the first day of a term such as "2026-10-01", '
        f"not {given!r:.40}."
    )


def first_day(period: str, today: date) -> date:
    """The day on which the period that ``today`` is in began; a term's may be still to come."""
    if period == WEEK:
        return today - timedelta(days=today.weekday())
    return today.replace(day=1) if period == MONTH else date.fromisoformat(period)


def next_first_day(period: str, today: date) -> date | None:
    """The day on which the next period begins; ``None`` for a term, whose end is not known."""
    if period == WEEK:
        return first_day(period, today) + timedelta(days=7)
    if period != MONTH:
        return None
    return (first_day(period, today) + timedelta(days=32)).replace(day=1)


def day_names(starts: Iterable[float], offset: float) -> list[str]:
    """``2026-11-21``: the days that began then, by clocks ``offset`` seconds ahead of UTC's."""
    # Noon is on the same day whichever way a clock was changed meanwhile.
    zone = timezone(timedelta(seconds=offset))
    return [f"{datetime.fromtimestamp(start + 43200, zone):%Y-%m-%d}" for start in starts]


def zone_name(offset: float) -> str:
    """``UTC``, ``UTC+01:00``."""
    return str(timezone(timedelta(seconds=round(offset / 60) * 60))) if offset else "UTC"


def moment(unix: float) -> str:
    """A day and a time, as ``2026-11-29 14:00 UTC``."""
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M} UTC"
