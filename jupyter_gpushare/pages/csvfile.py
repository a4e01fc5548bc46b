"""Tables as comma-separated values (RFC 4180), for spreadsheets. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

#: A spreadsheet runs a cell that begins so as a formula, and names come from other people.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def to_csv(header: Sequence[str], rows: Iterable[Sequence[str | int | float]]) -> str:
    """Rows as CSV; lines end with CR LF. Text that looks like a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: str | int | float) -> str | int | float:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def hours(seconds: float) -> float:
    """GPU-seconds as GPU-hours with four places."""
    return round(seconds / 3600, 4)
