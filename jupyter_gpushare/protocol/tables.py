"""Plain-text tables and figures for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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


def listing(rows: Sequence[Mapping[str, object]], none: str) -> str:
    """A table of rows with the same names, which are its heads; ``none``: without rows."""
    if not rows:
        return none
    return table([name.upper() for name in rows[0]], [[*row.values()] for row in rows])


def clean(value: object) -> str:
    """Text that cannot move the cursor: a notebook's name may hold any character."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value)
    )
