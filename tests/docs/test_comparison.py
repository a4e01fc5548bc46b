"""Each cell of the page that compares has a source, and the page is made of the figures."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"


def names_in(path: Path) -> set[str]:
    """Names of the test functions of a file, in classes too."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_each_cell_has_a_source_and_ours_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
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
