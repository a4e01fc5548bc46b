"""Lengths of time as people say them."""

from __future__ import annotations

import re
from typing import Any, Final

_DAY, _HOUR, _MINUTE = 86400, 3600, 60
_UNITS: Final = {"w": 7 * _DAY, "d": _DAY, "h": _HOUR, "m": _MINUTE, "s": 1}
#: Compiled when first used: every process under a lease loads this module.
_ONE: Final = r"(\d{1,12}(?:\.\d{1,9})?)\s*([wdhms]?)"
_MANY: Final = r"\s*".join(rf"(?:(\d{{1,12}})\s*{unit})?" for unit in _UNITS)
#: In seconds; no time is as long as this.
LONGEST: Final = 1e12


def parse_duration(given: Any, least: float = 0.0, most: float = LONGEST) -> float:
    """Seconds of ``90``, ``"90s"``, ``"1.5h"``, ``"1h30m"``, ``"7d"``, ``"2w"``.

    Raises :class:`ValueError` with a sentence for a person.
    """
    seconds = -1.0
    if isinstance(given, int | float) and not isinstance(given, bool):
        seconds = given
    elif isinstance(given, str):
        plain = given.strip().lower()
        if (one := re.fullmatch(_ONE, plain, re.ASCII)) is not None:
            seconds = float(one[1]) * _UNITS.get(one[2], 1)
        elif plain and (many := re.fullmatch(_MANY, plain, re.ASCII)) is not None:
            parts = zip(many.groups(), _UNITS.values(), strict=True)
            seconds = sum(int(count) * unit for count, unit in parts if count)
    if not 0 <= seconds < LONGEST:  # NaN is in no range
        raise ValueError("it is not a time: write seconds, or 90s, 10m, 1.5h, 1h30m, 7d.")
    if not least <= seconds <= most:
        raise ValueError(f"it must be from {least:g} to {most:g} seconds.")
    return float(seconds)


def format_duration(seconds: object) -> str:
    """In its two largest units, rounded: ``42 s``, ``30 min``, ``2 h 10 min``, ``3 d 4 h``.

    ``?`` for what is no time.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return "?"
    if not -1e15 < seconds < 1e15:
        return "?"
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    minutes = _nearest(seconds, _MINUTE)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return _two(minutes // 60, "h", minutes % 60, "min")
    hours = _nearest(seconds, _HOUR)
    return _two(hours // 24, "d", hours % 24, "h")


def _nearest(seconds: float, unit: int) -> int:
    return int((seconds + unit / 2) // unit)


def _two(large: int, name: str, small: int, smaller: str) -> str:
    return f"{large} {name} {small} {smaller}" if small else f"{large} {name}"


#: From how many seconds on an estimate is rounded, and to how many: odd minutes are of no use.
_GRAINS: Final = ((90, 10), (600, _MINUTE), (2700, 300), (6 * _HOUR, 900), (2 * _DAY, _HOUR))


def _rounded(seconds: float) -> int:
    grain = next((grain for below, grain in _GRAINS if seconds < below), _DAY // 2)
    return max(grain, _nearest(seconds, grain) * grain)


def format_about(seconds: float) -> str:
    """About how long: ``3 s``, ``20 s``, ``7 min``; rounded as an estimate should be."""
    if seconds < 10:
        return format_duration(max(1, _nearest(seconds, 1)))
    return format_duration(_rounded(seconds))


def format_range(low: float, high: float) -> str:
    """About how long: ``10 to 30 min``, ``20 min``; rounded as an estimate should be."""
    first, last = (format_duration(_rounded(seconds)) for seconds in (low, high))
    if first == last:
        return last
    number, _, unit = first.partition(" ")
    return f"{number if last.partition(' ')[2] == unit else first} to {last}"
