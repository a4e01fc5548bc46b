"""Lengths of time as people say them."""

from __future__ import annotations

from typing import Final

_DAY, _HOUR, _MINUTE = 86400, 3600, 60


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


#: From how many seconds on to how many an estimate is rounded: nobody plans by odd minutes.
_GRAINS: Final = ((90, 10), (600, _MINUTE), (2700, 300), (6 * _HOUR, 900), (2 * _DAY, _HOUR))


def _rounded(seconds: float) -> int:
    grain = next((grain for below, grain in _GRAINS if seconds < below), _DAY // 2)
    return max(grain, _nearest(seconds, grain) * grain)


def format_range(low: float, high: float) -> str:
    """About how long: ``10 to 30 min``, ``20 min``; rounded as far as an estimate is worth."""
    first, last = (format_duration(_rounded(seconds)) for seconds in (low, high))
    if first == last:
        return last
    number, _, unit = first.partition(" ")
    return f"{number if last.partition(' ')[2] == unit else first} to {last}"
