"""Cells that use a framework are told from those that do not before they run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from jupyter_gpushare.client.cell.uses import used_framework

frame = ModuleType("frame")
Tensor = type("Tensor", (), {"__module__": "frame.core"})
helpers = ModuleType("helpers")
helpers.frame = frame  # type: ignore[attr-defined]


def notebook() -> dict[str, Any]:
    """What a notebook has, after a few cells."""
    space: dict[str, Any] = {
        "__name__": "__main__",
        "frame": frame,
        "x": Tensor(),
        "helpers": helpers,
        "parts": [1, Tensor()],
        "by_name": {"x": Tensor()},
        "losses": [0.1, 0.2],
        "Tensor": Tensor,
    }
    exec(
        "def train(): return frame.ones(3)\n"
        "def outer(): return train()\n"
        "def nested():\n    def inner(): return x\n    return inner()\n"
        "def plot(): return losses\n"
        "def again(): return again()\n"
        "class Net(Tensor): pass\n"
        "class Runner:\n    def run(self): return frame.ones(2)\n"
        "runner = Runner()\n",
        space,
    )
    return space


def used(cell: str, *frameworks: str) -> str | None:
    transform = TransformerManager().transform_cell
    return used_framework(cell, transform, notebook(), frameworks or ("frame", "jax"))


@pytest.mark.parametrize(
    "cell",
    [
        "import frame",
        "import os, frame.nn as nn",
        "from frame.nn import Linear",
        "if False:\n    import frame",
        "frame.ones(3)",
        "x + 1",
        "print(parts)",
        "by_name",
        "train()",
        "outer()",
        "nested()",
        "Net()",
        "runner.run()",
        "work = runner.run",
        "helpers.fit()",
        "%time train()",
        "%timeit -n 1 -r1 train()",
        "%%time\ntrain()",
        "%%capture out\nimport frame\n",
        "!ls\nx",
        "%gpushare status\nx",
    ],
)
def test_a_cell_that_uses_it(cell: str) -> None:
    assert used(cell) == "frame"


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "1 + 1",
        "import os",
        "import framework",
        "from . import frame_of_a_package",
        "print(losses)",
        "plot()",
        "again()",
        "this is no Python",
        "!python train.py",
        "%cd ..",
        "%timeit -n",
        "%run nowhere.py",
        # These ask themselves.
        "%gpushare request --memory 8GiB\nimport frame",
        "import frame\n%gpushare release",
        "from jupyter_gpushare.client import lease\nwith lease():\n    x",
    ],
)
def test_a_cell_that_does_not_or_asks_itself(cell: str) -> None:
    assert used(cell) is None


def test_a_file_that_is_run(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text("import frame\n")
    assert used(f"%run {script}") == "frame"
    assert used(f"%run '{script}' --fast") == "frame"
    script.write_text("import os\n")
    assert used(f"%run {script}") is None


def test_what_belongs_to_a_framework_under_another_name() -> None:
    assert used("import jaxlib") == "jax"
    assert used("import keras", "tensorflow") == "tensorflow"
    assert used("import keras", "frame") is None


def test_nothing_is_asked_of_an_object() -> None:
    class Sly:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    space = {"sly": Sly(), "around": [Sly()]}
    assert used_framework("sly; around", str, space, ("frame",)) is None
