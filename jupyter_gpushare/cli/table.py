"""Plain-text tables and figures for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns padded to their widest cell; numbers to the right."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[column]) for row in cells)) if cells else len(heading)
        for column, heading in enumerate(headings)
    ]
    right = [
        bool(rows) and all(isinstance(row[column], (int, float)) for row in rows)
        for column in range(len(headings))
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(list(headings)), *(line(row) for row in cells)])


def clean(value: object) -> str:
    """Text that cannot move the cursor: a notebook's name may hold any character."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value)
    )


def duration(seconds: float) -> str:
    """``45s``, ``12m``, ``3h 20m``, ``2d 4h``."""
    whole = max(0, int(seconds))
    for size, unit, smaller, small_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit} {rest}{small_unit}" if rest else f"{whole // size}{unit}"
    return f"{whole // 60}m" if whole >= 60 else f"{whole}s"
