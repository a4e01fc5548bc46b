"""Lengths of time are read alike from variables, magics, options, configuration and forms."""

from __future__ import annotations

from typing import Any

import pytest
from traitlets import TraitError

from jupyter_gpushare.cli.usage import UsageApp
from jupyter_gpushare.client.words.settings import read_settings
from jupyter_gpushare.console.verb import UsageError
from jupyter_gpushare.pages.forms import read_quota
from jupyter_gpushare.protocol.times import format_duration, parse_duration
from jupyter_gpushare.server.extension import GpuShareExtension


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
