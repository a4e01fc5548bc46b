"""Lengths of time as people say them."""

from __future__ import annotations

import re
from typing import Any, Final

_UNITS: Final = {"w": 7 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
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
