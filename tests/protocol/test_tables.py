"""A table fits its widest cell, and no cell moves the cursor of a terminal."""

from __future__ import annotations

from jupyter_gpushare.protocol.tables import clean, table


def test_tables_line_up_and_cannot_move_the_cursor() -> None:
    text = table(("NAME", "N"), [("a\x1b[2J\n\u202eb", 5), ("longer", 1234), (None, 1)])
    lines = text.split("\n")
    assert len(lines) == 4
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert [line.rstrip()[-1] for line in lines[1:]] == ["5", "4", "1"]
    assert len({len(line) for line in lines[1:]}) == 1
    assert clean(None) == "-"
    assert table(("A", "B"), []) == "A  B"
