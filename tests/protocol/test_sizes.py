"""Sizes and times are read alike everywhere, as people write them, and nonsense is told to be none.

A table fits its widest cell, and no cell moves the cursor of a terminal.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from traitlets import TraitError

from jupyter_gpushare.cli.usage import UsageApp
from jupyter_gpushare.client.words.settings import read_settings
from jupyter_gpushare.console.verb import UsageError
from jupyter_gpushare.figures import format_duration, format_size
from jupyter_gpushare.pages.forms import read_quota
from jupyter_gpushare.protocol.sizes import (
    LEAST_MEMORY,
    MemoryRange,
    format_memory,
    least_of,
    most_of,
    parse_memory,
    parse_share,
    parse_size,
)
from jupyter_gpushare.protocol.tables import clean, table
from jupyter_gpushare.protocol.times import parse_duration
from jupyter_gpushare.server.extension import GpuShareExtension


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("16G", 16 * 10**9),
        ("512MiB", 512 * 2**20),
        ("0.5GiB", 2**29),
        ("0,125GiB", 2**27),
        ("1,5TiB", 3 * 2**39),
        ("1073741824B", 2**30),
        ("2048KiB", 2 * 2**20),
        (1073741824, 2**30),
        ("9007199254740993b", 2**53 + 1),
    ],
)
def test_what_people_write(text: str | int, size: int) -> None:
    assert parse_size(text) == size
    assert [parse_size(nothing, 0) for nothing in ("0", 0, "0GiB")] == [0, 0, 0], "where it may be"


@pytest.mark.parametrize(
    "text",
    [
        *("", "GiB", "8XiB", "-1GiB", "1e9", "nan", "inf", "8 G i B", "٨GiB", "8\nGiB9"),
        *("1,024MiB", "1,5,2GiB"),
        *("8", "1073741824", "100b", "1KiB", 8, 2**21 - 1),
        *("0", 0, -5, "0GiB", "0.0GiB", "9" * 19, "999999999999TiB", 2**63),
        *(True, False, None, 1.5, [], b"8GiB"),
    ],
)
def test_what_is_no_size_says_so(text: object) -> None:
    with pytest.raises(ValueError, match=r"no (usable )?memory size: .*\."):
        parse_size(text)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("8", "8GiB"),
        (8, "8GiB"),
        ("1,5", "1.5GiB"),
        ("8192", "8192MiB"),
        ("8b", "8GiB"),
        ("8589934592", "8GiB"),
    ],
)
def test_who_forgets_the_unit_is_asked_what_was_meant(given: str | int, meant: str) -> None:
    for parse in (parse_size, parse_memory):
        with pytest.raises(ValueError, match=rf"Did you mean {meant}\?"):
            parse(given)


@given(st.integers(LEAST_MEMORY, 2**62))
def test_what_we_write_we_can_read(size: int) -> None:
    assert parse_size(format_size(size), 1) == pytest.approx(size, rel=1e-3)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (2**30, "1 GiB"), (8 * 2**30, "8 GiB"), (3 * 2**29, "1.5 GiB")],
)
def test_how_sizes_look(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(1, 2**40), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_whole_numbers_are_exact(count: int, unit: str) -> None:
    scale = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    if count * scale < 2**63:
        assert parse_size(f"{count}{unit}", 1) == count * scale


@pytest.mark.parametrize(
    ("text", "share"),
    [
        *((0.5, 0.5), ("0.5", 0.5), (".25", 0.25), (1.0, 1.0), ("1.0", 1.0), (" 0.75 ", 0.75)),
        # What is bytes or nonsense is no part.
        *((no, None) for no in (1, "1", "8GiB", "0.5GiB", "1e-3", True, None, [], "half", "")),
    ],
)
def test_parts_of_a_gpu(text: object, share: float | None) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", [0.0, "0.0", 1.5, "1.5", -0.5, float("nan"), float("inf")])
def test_a_part_is_more_than_nothing_and_at_most_all(text: object) -> None:
    with pytest.raises(ValueError, match="no part of a GPU"):
        parse_share(text)


@pytest.mark.parametrize(
    ("given", "memory"),
    [
        ("8GiB..40GiB", MemoryRange(8 * 2**30, 40 * 2**30)),
        (" 512 MiB .. 1.5 GiB ", MemoryRange(2**29, 3 * 2**29)),
        ([2**30, 2**31], MemoryRange(2**30, 2**31)),
        ("8GiB..8GiB", 8 * 2**30),
        ("8GiB", 8 * 2**30),
        (2**30, 2**30),
    ],
)
def test_a_range_has_two_ends(given: str | int | list[int], memory: object) -> None:
    assert parse_memory(given) == memory


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("40GiB..8GiB", "the smaller size comes first"),
        ("8..40GiB", "each end with a unit"),
        ("8GiB-40GiB", "write it like 8GiB..40GiB"),
        ("..8GiB", "each end with a unit"),
        ("1GiB..2GiB..3GiB", "each end with a unit"),
        ("8GiB...40GiB", "no memory size"),
        ("0GiB..40GiB", "no usable memory size"),
        ([1, 2, 3], "no memory size"),
        (["1", None], "no memory size"),
        (True, "no memory size"),
    ],
)
def test_what_is_no_range_says_so(given: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_memory(given)


def test_a_range_in_words_and_its_ends() -> None:
    memory = parse_memory("8GiB..40GiB")
    assert format_memory(memory) == str(memory) == "8 GiB to 40 GiB"
    assert (least_of(memory), most_of(memory)) == (8 * 2**30, 40 * 2**30)
    assert format_memory(2**30) == "1 GiB"
    assert (least_of(2**30), most_of(2**30)) == (2**30, None)
    assert (least_of(None), most_of(None)) == (None, None)


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


# -- lengths of time --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (90, 90),
        (1e-7, 1e-7),
        ("90s", 90),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1H 30M", 5400),
        ("2m30s", 150),
        ("1h0m5s", 3605),
        ("7d", 604800),
        ("1d12h", 129600),
        (" 2w ", 1209600),
    ],
)
def test_times(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "soon", "1h30", "30m1h", "1.5h30m", "1h1h", "1 d x"),
        *("-5", "nan", "inf", "1e5", "999999999999w", -5, float("nan"), 1e12, True, None, []),
    ],
)
def test_what_is_no_time_is_told_how_to_write_one(text: Any) -> None:
    with pytest.raises(ValueError, match=r"write seconds, or 90s, 10m, 1\.5h, 1h30m"):
        parse_duration(text)


def test_each_place_reads_the_same_times() -> None:
    usage = UsageApp()
    usage.parse(["--since", "1h30m"])
    assert usage.since == 5400
    assert read_settings({"JUPYTER_GPUSHARE_WAIT_TIMEOUT": "1d12h"}).wait_timeout == 129600
    assert GpuShareExtension(wait_timeout="1h30m").wait_timeout == 5400
    _form, wish = read_quota({"idle_timeout": "1h30m"})
    assert wish == {"idle_timeout": 5400}
    _form, wish = read_quota({"idle_timeout": "2,5"})
    assert wish == {"idle_timeout": 150}, "a bare number in the form is minutes"


@pytest.mark.parametrize("bad", [-1, float("nan"), "soon"])
def test_a_setting_or_an_option_that_is_no_time_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(TraitError, match=r"GpuShareExtension\.wait_timeout = .* is not a time"):
        GpuShareExtension(wait_timeout=bad)
    with pytest.raises(TraitError, match="call_timeout"):
        GpuShareExtension(call_timeout=bad)
    with pytest.raises(UsageError, match=r"^--since=.* cannot be used: it is not a time"):
        UsageApp().parse([f"--since={bad}"])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599.9, "1 h"),
        (3725, "1 h 2 min"),
        (187200, "2 d 4 h"),
        (7799, "2 h 10 min"),
        (86399, "1 d"),
        (float("nan"), "?"),
        (float("inf"), "?"),
        (None, "?"),
        (True, "?"),
    ],
)
def test_durations(seconds: object, words: str) -> None:
    assert format_duration(seconds) == words
