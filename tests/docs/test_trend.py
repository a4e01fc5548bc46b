"""The trend of the benchmarks: what is in it, and that nothing got slower than it may."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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


def rows(name: str, *values: float) -> list[dict[str, Any]]:
    return [{"date": "2026-11-23", "commit": "abc", "ratios": {name: value}} for value in values]


def test_nothing_got_slower_than_it_may(trend: ModuleType) -> None:
    assert trend.worse(trend.lines(trend.TREND)) == []


def test_the_page_shows_the_newest_line(trend: ModuleType) -> None:
    assert trend.PAGE.read_text("utf-8") == trend.page(trend.lines(trend.TREND)), (
        "docs/trend.md is stale: python benchmarks/trend.py add"
    )


def test_every_ratio_is_read_from_the_pages_there_are(trend: ModuleType) -> None:
    assert set(trend.ratios(ROOT / "docs")) == {one.name for one in trend.WATCHED}


def test_a_ratio_that_got_worse_is_named(trend: ModuleType) -> None:
    one = trend.WATCHED[0]
    assert trend.worse([]) == []
    assert trend.worse(rows(one.name, 9.0)) == [], "there is nothing to compare it with"
    allowed = 2.0 * one.factor
    assert trend.worse(rows(one.name, 2.0, 2.0, 9.0, allowed)) == []
    (said,) = trend.worse(rows(one.name, 2.0, 2.0, 9.0, allowed * 1.01))
    assert said.startswith(f"{one.name}: ")
    assert trend.worse(rows(one.name, 9.0, *[2.0] * trend.BEFORE, allowed * 1.01)), (
        "only the last runs count"
    )


def test_a_part_of_the_benchmarks_gives_a_part_of_the_ratios(
    trend: ModuleType, tmp_path: Path
) -> None:
    figures = [{"name": "a short cell, ratio", "value": 1.07}]
    (tmp_path / "benchmarks.json").write_text(json.dumps({"machine": {}, "figures": figures}))
    assert trend.ratios(tmp_path) == {"a short cell, with us by without": 1.07}
