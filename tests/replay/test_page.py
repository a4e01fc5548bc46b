"""The page docs/replay.md says what the figures say, and the study behind it runs."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUDY: list[str | Path] = [sys.executable, str(ROOT / "benchmarks" / "replay.py")]


def test_the_page_is_made_from_the_figures(tmp_path: Path) -> None:
    figures = ROOT / "docs" / "replay.json"
    made = tmp_path / "replay.md"
    subprocess.run([*STUDY, "--page", "--json", figures, "--markdown", made], check=True)
    assert made.read_text("utf-8") == (ROOT / "docs" / "replay.md").read_text("utf-8"), (
        "docs/replay.md is stale: make replay ARGS=--page"
    )
    assert "{{" not in made.read_text("utf-8")


def test_no_policy_beats_what_is_proven() -> None:
    """Nobody serves more than all GPUs all the time, and the clairvoyant is never behind."""
    results = json.loads((ROOT / "docs" / "replay.json").read_text("utf-8"))
    for name in ("one", "mixed"):
        for points in results[name]["policies"].values():
            for point in points:
                assert point["gpu_hours_busy"] <= point["gpu_hours_bound"] + 1e-6
                assert point["gpu_hours_bound"] <= point["gpu_hours_capacity"] + 1e-6
                assert point["cells_prompt"] <= point["cells"]
    text = (ROOT / "docs" / "replay.md").read_text("utf-8")
    found = re.search(r"served for\s+([\d.]+) people", text)
    assert found is not None
    best = [
        point["people_per_gpu"]
        for points in results["one"]["policies"].values()
        for point in points
        if point["works_out"]
    ]
    assert max(best) <= float(found[1]) + 0.13  # a step, as each size has its own people


def test_every_row_of_what_the_figure_depends_on_says_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--only sensitive`` makes all of them, those of other sizes of a GPU, too."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study = runpy.run_path(str(ROOT / "benchmarks" / "replay.py"))
    options = Namespace(json=tmp_path / "none.json", only=["sensitive"], missing=False)
    searches = study["chosen"](study["studies"](small=False), options)
    point = {
        "people": 8, "people_per_gpu": 1.0, "works_out": True, "cells": 100, "out_of_memory": 7,
    }  # fmt: skip
    results: dict[str, Any] = {}
    for one in searches:
        part = results.setdefault(one.study.name, {"policies": {}})
        part["policies"][one.variant.label] = [point]
    assert set(results) == {"sensitive", "memory40", "memory140"}
    _head, _rule, *rows = study["sensitive_table"](results).splitlines()
    assert len(rows) == len(searches)
    assert all("| **1.00** | 7 in 100 cells |" in row for row in rows)
    assert any("wrong by 2x" in row for row in rows)
    del point["out_of_memory"]  # a file of an earlier study
    assert all(
        "| **1.00** | - |" in row for row in study["sensitive_table"](results).splitlines()[2:]
    )


def test_the_aim_of_promises_is_what_the_figures_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study = runpy.run_path(str(ROOT / "benchmarks" / "replay.py"))
    found = json.loads((ROOT / "docs" / "replay.json").read_text("utf-8"))["promises"]["runs"]
    assert ": met, with" in study["promise_aim"](found)
    fewer = [{**one, "promises_kept": one["promises_kept"] * 9 // 10} for one in found]
    assert ": not met, with" in study["promise_aim"](fewer)
    assert study["promise_table"](found).count("\n") == 6


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "replay.json"
    done = subprocess.run(
        [*STUDY, "--json", target, "--only", "everything"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no study or policy is named everything" in done.stderr
    assert not target.exists()


@pytest.mark.story
def test_the_study_runs(tmp_path: Path) -> None:
    target = tmp_path / "replay.json"
    page, picture = tmp_path / "replay.md", tmp_path / "replay.svg"
    subprocess.run(
        [*STUDY, "--small", "--json", target, "--markdown", page, "--svg", picture],
        check=True,
        timeout=110,
    )
    assert "bound for the session" in page.read_text("utf-8")
    assert "<svg" in picture.read_text("utf-8")
