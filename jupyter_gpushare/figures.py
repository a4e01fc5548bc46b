"""Numbers, sizes and lengths of time as people read them, and the ends of sentences.

The policy says why somebody waits, a front end says for how long, and both must write the same
figure in the same way. So this file lies below the policy and the protocol, and imports nothing of
ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_HOUR, _MINUTE, _DAY = 3600, 60, 86400


def counted(number: int, one: str, many: str = "") -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def often(times: int) -> str:
    """``once``, ``3 times``."""
    return "once" if times == 1 else f"{times} times"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; of none an empty text."""
    *most, last = names or ("",)
    return f"{', '.join(most)} and {last}" if most else last


def format_hours(hours: float) -> str:
    """GPU-hours with as many figures as say something: ``0``, ``< 0.01``, ``0.08``, ``12.5``."""
    if hours <= 0:
        return "0"
    if hours < 0.01:
        return "< 0.01"
    places = 2 if hours < 10 else 1 if hours < 100 else 0
    text = f"{hours:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_size(size: int) -> str:
    """Bytes as a person reads them: ``8 GiB``."""
    for unit, scale in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if abs(size) >= scale:
            count = size / scale
            return f"{count:.0f} {unit}" if abs(count) >= 9999 else f"{count:.4g} {unit}"
    return f"{size} B"


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


def ended(sentence: str) -> str:
    """With a full stop, where it has none."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
