"""Code that asks has one name for one path and content, and the name tells no content."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.kernel import Kernel

from jupyter_gpushare.client.session import code


def named(monkeypatch: pytest.MonkeyPatch, script: Path | None) -> str | None:
    """The name of a program with this main script."""
    main = SimpleNamespace() if script is None else SimpleNamespace(__file__=str(script))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    return code.code_of({})


def test_a_script_is_its_path_and_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "train.py", tmp_path / "other.py"
    for script in (here, there):
        script.write_text("fit()")
    first = named(monkeypatch, here)
    assert first is not None
    assert len(first) == 64
    assert named(monkeypatch, here) == first
    assert named(monkeypatch, there) != first
    here.write_text("fit(longer=True)")
    assert named(monkeypatch, here) not in (first, None)
    assert named(monkeypatch, None) is None, "what a prompt reads, and `python -c`"
    assert named(monkeypatch, tmp_path / "gone.py") is None
    monkeypatch.setattr(code, "_LARGEST", 10)
    here.write_text("x" * 10)
    assert named(monkeypatch, here) is not None
    here.write_text("x" * 11)
    assert named(monkeypatch, here) is None, "it is too large to be read"


def saved(path: Path, *cells: str) -> Path:
    some: list[dict[str, object]] = [{"cell_type": "markdown", "source": "not code"}]
    some += [{"cell_type": "code", "source": [cell], "outputs": [cell]} for cell in cells]
    path.write_text(json.dumps({"cells": some}))
    return path


def test_a_notebook_is_its_path_and_its_saved_cells(tmp_path: Path) -> None:
    asks = (
        "import os\nfrom jupyter_gpushare.client.session.code import code_of\n"
        "print(code_of(os.environ))"
    )
    notebook = saved(tmp_path / "train.ipynb", "import torch", "fit()")
    with Kernel(tmp_path, None, JPY_SESSION_NAME=str(notebook)) as kernel:
        first = kernel.ok(asks).stream().strip()
        assert kernel.ok("'another cell'\n" + asks).stream().strip() == first
        saved(notebook, "import torch", "fit(longer=True)")
        assert kernel.ok(asks).stream().strip() != first
        saved(notebook, "import torch", "fit()")
        assert kernel.ok(asks).stream().strip() == first, "outputs and text are no code"
        notebook.write_text("no notebook")
        cell = kernel.ok(asks).stream().strip()
        assert cell not in (first, "None"), "the cell that asked"
        assert kernel.ok(asks).stream().strip() == cell
        assert kernel.ok("1\n" + asks).stream().strip() != cell


def test_a_path_relative_to_the_server_is_looked_for_beside_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "a.ipynb", "import torch")
    monkeypatch.chdir(tmp_path)
    shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=["", "cell"]))
    monkeypatch.setattr(code, "running_kernel", lambda: SimpleNamespace(shell=shell))
    named = code.code_of({"JPY_SESSION_NAME": "work/a.ipynb"})
    shell.history_manager.input_hist_raw.append("another")
    assert code.code_of({"JPY_SESSION_NAME": "work/a.ipynb"}) == named
    assert code.code_of({"JPY_SESSION_NAME": "other/a.ipynb"}) != named
    other = code.code_of({})
    shell.history_manager.input_hist_raw.append("yet another")
    assert code.code_of({}) != other
