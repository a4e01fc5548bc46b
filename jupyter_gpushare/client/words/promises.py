"""The promise that a person names for a cell or a program, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...figures import format_duration
from ...protocol.said import clock
from ...protocol.times import LONGEST, parse_duration
from .told import number, whole

#: A new estimate is said again if it is later by this much: seconds, and the share of what is left.
_LATER: Final = 60.0
_MUCH: Final = 0.1


class Wish(NamedTuple):
    """It is to be ready in ``deadline`` seconds, or to make ``rate`` steps a second, or both."""

    deadline: float | None = None
    rate: float | None = None

    def words(self, now: float) -> str:
        """``ready by 15:40 and at least 2 steps a second``; ``now`` in Unix seconds."""
        parts = [] if self.deadline is None else [f"ready by {clock(now + self.deadline, now)}"]
        if self.rate is not None:
            parts.append(f"at least {self.rate:g} steps a second")
        return " and ".join(parts)


def read_wish(deadline: Any = None, rate: Any = None) -> Wish | None:
    """``None``: nothing is named. ``deadline`` in seconds, or as ``"10m"``.

    Raises :class:`ValueError`.
    """
    if deadline is None and rate is None:
        return None
    within = None if deadline is None else parse_duration(deadline, 1.0, LONGEST)
    return Wish(within, None if rate is None else read_rate(rate))


def read_rate(given: Any) -> float:
    """Steps a second. Raises :class:`ValueError`."""
    try:
        rate = float(given)
    except (TypeError, ValueError):
        rate = 0.0
    if not 0 < rate < LONGEST:
        raise ValueError("it is not a number of steps a second, such as 2 or 0.5.")
    return rate


class News:
    """Says how it stands with a promise, when that has changed for its people.

    ``what`` is "This cell", "This program" or "The command".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._state = "on_time"
        self._told: float | None = None  # the estimate that was said last, Unix seconds

    def text(self, told: Mapping[str, Any], now: float) -> str:
        """The sentences about a notice; empty: it says nothing new. ``now`` in Unix seconds."""
        state, before = str(told.get("state")), self._state
        left, expected = (number(told.get(one), -LONGEST, LONGEST) for one in ("left", "expected"))
        at = None if expected is None else now + expected
        if state not in _SAYS or not told.get("named"):
            return ""
        much = _LATER if expected is None else max(_LATER, _MUCH * expected)
        later = at is not None and self._told is not None and at >= self._told + much
        if state == before and not later:
            return ""
        self._state = state
        by = "" if left is None else f" by {clock(now + left, now)}"
        text = f"{self._what} {_SAYS[state][left is None]}{by}"
        if state == "on_time":
            self._told = None
            return f"{text} again."
        why = str(told.get("message") or "")
        text = f"{text}: {why}." if why else f"{text}."
        if at is not None and state in ("late", "missed"):
            self._told = at
            text += f" New estimate: {clock(at, now)}."
        return text


#: Of a deadline, and of a rate.
_SAYS: Final = {
    "on_time": ("is expected to be ready", "is expected to be fast enough"),
    "late": ("will not be ready", "will not make the steps a second that it was promised"),
    "missed": ("was not ready", "did not make the steps a second that it was promised"),
}


def share_words(told: object) -> str:
    """What it has for it, in hundredths; 0: nothing; empty where that is not told."""
    share = whole(told, 0, 100)
    if share is None:
        return ""
    if not share:
        return (
            "Its GPU's time is not shared out by turns, so nothing is done for it but to watch it."
        )
    return f"For it, it has {share} % of its GPU's time, whoever else wants to compute."


def too_late(deadline: float, waited: float) -> str:
    """Why nothing can be promised any more."""
    return (
        f"It was to be ready in {format_duration(deadline)}, and waited {format_duration(waited)} "
        "for its GPU. It was not started."
    )
