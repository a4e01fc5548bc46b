"""Code that asks has one name for one path and content, and the name tells no content."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.kernel import Kernel

from jupyter_gpushare.client.session import code

SCRIPT = (
    "import os, sys\nfrom jupyter_gpushare.client.session.code import code_of\n"
    "print(code_of(os.environ))\n"
)


def run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=True, input=stdin
    )
    return done.stdout.strip()


def test_a_script_is_its_path_and_its_bytes(tmp_path: Path) -> None:
    here, there = tmp_path / "train.py", tmp_path / "other.py"
    for script in (here, there):
        script.write_text(SCRIPT)
    first = run(str(here))
    assert len(first) == 64
    assert run(str(here), "--epochs", "3") == first, "its arguments are no code"
    assert run(str(there)) != first
    here.write_text(SCRIPT + "# more\n")
    assert run(str(here)) != first


def test_what_has_no_file_has_no_name() -> None:
    assert run("-c", SCRIPT) == "None"
    assert run("-", stdin=SCRIPT) == "None"


def saved(path: Path, *cells: str) -> Path:
    some: list[dict[str, object]] = [{"cell_type": "markdown", "source": "not code"}]
    some += [{"cell_type": "code", "source": [cell], "outputs": [cell]} for cell in cells]
    path.write_text(json.dumps({"cells": some}))
    return path


def test_a_notebook_is_its_path_and_its_saved_cells(tmp_path: Path) -> None:
    asks = SCRIPT.splitlines()[1] + "\nimport os\nprint(code_of(os.environ))"
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


def test_a_large_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_LARGEST", 10)
    script = tmp_path / "train.py"
    script.write_text("x" * 11)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert code.code_of({}) is None
    script.write_text("x" * 10)
    assert code.code_of({}) is not None
