"""Pages of figures say what the figures say, and a trend names what got slower than it may."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"
STUDY: list[str | Path] = [sys.executable, str(ROOT / "benchmarks" / "replay.py")]


# -- the trend -------------------------------------------------------------------------------------


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


# -- the comparison: each cell has a source --------------------------------------------------------


def names_in(path: Path) -> set[str]:
    """Names of the test functions of a file, in classes too."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_each_cell_has_a_source_and_ours_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    from features import FEATURES, SERVERS, SERVING, TOOLS

    data = json.loads((ROOT / "docs" / "comparison.json").read_text("utf-8"))
    assert len(FEATURES) > 12
    tables = (*((one, TOOLS) for one in FEATURES), *((one, SERVERS) for one in SERVING))
    for feature, tools in tables:
        assert len(feature.cells) == len(tools), feature.feature
        for cell in feature.cells:
            assert cell.text, feature.feature
            assert cell.sources, f"{feature.feature}: {cell.text}"
            for source in cell.sources:
                kind, _, rest = source.partition(":")
                if kind == "test":
                    path, _, name = rest.partition("::")
                    assert name in names_in(ROOT / path), source
                    assert name.startswith("test_"), source
                elif kind == "code":
                    assert (ROOT / rest).is_file(), source
                elif kind == "run":
                    assert rest in data, source
                else:
                    assert kind in ("genv", "lab", "canhazgpu", "https"), source
        ours = feature.cells[0].sources
        assert any(source.startswith(("test:", "code:", "run:")) for source in ours)


def test_the_page_that_compares_is_made_of_the_figures() -> None:
    done = subprocess.run([sys.executable, PEERS / "page.py", "--check"], check=False)
    assert done.returncode == 0, "run python benchmarks/peers/page.py"


# -- replay ----------------------------------------------------------------------------------------


def test_the_replays_page_is_made_from_the_figures(tmp_path: Path) -> None:
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


@pytest.mark.story("jupyter_gpushare/replay/", "benchmarks/replay.py")
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
