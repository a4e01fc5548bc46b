"""The page docs/replay.md says what the figures say, and the study behind it runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

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
