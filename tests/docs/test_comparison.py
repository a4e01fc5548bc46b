"""Each cell of the page that compares has a source, and what was handed out twice is counted."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The comparison's modules can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(PEERS))
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == PEERS:
            del sys.modules[name]


def names_in(path: Path) -> set[str]:
    """Names of the test functions of a file, in classes too."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.usefixtures("peers")
def test_each_cell_has_a_source_and_ours_exist() -> None:
    from features import FEATURES, TOOLS

    data = json.loads((ROOT / "docs" / "comparison.json").read_text("utf-8"))
    assert len(FEATURES) > 12
    for feature in FEATURES:
        assert len(feature.cells) == len(TOOLS), feature.feature
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


def test_the_page_is_made_of_the_figures() -> None:
    done = subprocess.run([sys.executable, PEERS / "page.py", "--check"], check=False)
    assert done.returncode == 0, "run python benchmarks/peers/page.py"


@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize(
    ("spans", "picks", "worst"),
    [
        ([("a", 0, 1), ("a", 1, 2), ("b", 0, 2)], 0, 1),
        ([("a", 0, 2), ("a", 1, 3)], 1, 2),
        ([("a", 0, 5), ("a", 1, 2), ("a", 1.5, 3), ("b", 0, 9)], 2, 3),
        ([("a", 0, 5), ("a", 0, 5), ("a", 0, 5)], 2, 3),
        ([], 0, 0),
    ],
)
def test_what_was_given_twice_is_counted(
    spans: list[tuple[str, float, float]], picks: int, worst: int
) -> None:
    from observed import Clashes, Hold, clashes

    holds = [Hold(n, gpu, got, got, gone) for n, (gpu, got, gone) in enumerate(spans)]
    assert clashes(holds) == Clashes(picks, worst)
