"""The trend of the benchmarks names what got slower than it may."""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trend", ROOT / "benchmarks" / "trend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trend"] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_nothing_got_slower_than_it_may(trend: ModuleType) -> None:
    assert trend.worse(trend.lines(trend.TREND)) == []


def test_the_page_shows_the_newest_line(trend: ModuleType) -> None:
    assert trend.PAGE.read_text("utf-8") == trend.page(trend.lines(trend.TREND)), (
        "docs/trend.md is stale: python benchmarks/trend.py add"
    )


def test_every_ratio_is_read_from_the_pages_there_are(trend: ModuleType) -> None:
    assert set(trend.ratios(ROOT / "docs")) == {one.name for one in trend.WATCHED}


def test_each_ratio_of_the_file_would_be_noticed(trend: ModuleType) -> None:
    """With the lines that there are: a name that no line has finds nothing."""
    there = trend.lines(trend.TREND)
    for one in trend.WATCHED:
        known = [row["ratios"][one.name] for row in there if one.name in row["ratios"]]
        limit = one.factor * statistics.median(known[-trend.BEFORE :])
        for value, found in ((limit * 0.99, 0), (limit * 1.01, 1)):
            newest = {**there[-1], "ratios": {one.name: value}}
            assert len(trend.worse([*there, newest])) == found, one.name
        assert 1 < one.factor <= 3


def test_pages_of_figures_say_when_and_on_what_once_they_are_made_anew() -> None:
    """Date, commit and machine; some pages are older than that."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (parts,) = re.findall(r"^bench-all: (.+)$", makefile, re.MULTILINE)
    for part in parts.split():
        (recipe,) = re.findall(rf"^{part}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        scripts = re.findall(r"benchmarks/[\w/]+\.py", recipe)
        texts = [(ROOT / script).read_text("utf-8") for script in scripts]
        # `keep` of run.py writes the machine down, too.
        says = any("machine()" in text or "keep(figures," in text for text in texts)
        assert says or "machine.py" in recipe, part


def test_the_replays_page_says_on_what_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import machine
    import replay

    results = json.loads((ROOT / "docs" / "replay.json").read_text("utf-8"))
    told = replay.page({**results, "machine": machine.machine()})
    (line,) = re.findall(r"^Replayed on: (.+)$", told, re.MULTILINE)
    assert re.search(r"cpu: .+date: 20\d\d-\d\d-\d\d, commit: [0-9a-f]{8}", line)
