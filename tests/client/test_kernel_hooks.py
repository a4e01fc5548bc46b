"""The node manager hears truly when a kernel's cells run, and our trouble never reaches a cell.

Cells that use a framework are told from those that do not before they run.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, strategies as st
from IPython.core.error import InputRejected
from IPython.core.events import EventManager, available_events
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpushare.client.cell import kernel as hooks
from jupyter_gpushare.client.cell.kernel import CellWatch
from jupyter_gpushare.client.cell.uses import used_framework


class Shell:
    """A shell that has IPython's own events and nothing else."""

    def __init__(self) -> None:
        self.events = EventManager(self, available_events)
        self.ast_transformers: list[object] = []
        self.tracebacks = 0

    def showtraceback(self) -> None:
        self.tracebacks += 1


class Told:
    """Stands for what a kernel tells the client, and asks of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **own: Any) -> None:
        self.busy: list[object] = []
        answers: dict[str, Any] = {"barred": lambda: None, "set_activity": self.busy.append}
        for name in ("before_cell", "code_runs", "before_use", "after_error"):
            answers[name] = lambda *_: None
        for name, answer in {**answers, **own}.items():
            monkeypatch.setattr(hooks.acquire, name, answer)


@given(st.lists(st.sampled_from(["begin", "end", "silent"])))
def test_only_changes_are_told_and_they_are_true(steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        told = Told(monkeypatch).busy
        watch = CellWatch(Shell())
        depth = 0
        for step in steps:
            before, was = len(told), depth
            if step == "begin":
                depth += 1
                watch.cell_begins(None)
            elif step == "end":
                depth = max(0, depth - 1)  # an end without a beginning: the cell that loaded us
                watch.cell_ends(None)
            else:
                watch.code_ends()
            if step == "begin":
                assert told[before:] == ([] if was else [True])
            else:
                assert told[before:] == ([] if depth else [False])
            assert watch.running == depth


def test_cells_in_two_threads_are_one_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch).busy
    watch = CellWatch(Shell())
    with ThreadPoolExecutor(1) as other:
        watch.cell_begins(None)
        other.submit(watch.cell_begins, None).result(60)
        watch.cell_ends(None)
        assert told == [True]
        other.submit(watch.cell_ends, None).result(60)
    assert told == [True, False]


class Cell:
    """What IPython tells of a cell before it runs."""

    def __init__(self, raw_cell: str) -> None:
        self.raw_cell = raw_cell


def test_what_was_parked_is_resumed_before_the_first_cell_and_never_before_our_magics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[object] = []

    def then_fails(what: object = "resumed") -> None:
        said.append(what)
        raise RuntimeError("ours")

    shell = Shell()
    Told(monkeypatch, set_activity=then_fails, before_cell=then_fails)
    watch = CellWatch(shell)
    shell.events.register("pre_run_cell", watch.cell_begins)
    for code in ("x = 1", "run_cell('y')"):  # the second inside the first
        shell.events.trigger("pre_run_cell", Cell(code))
    assert said == [True, "resumed"], "busy is told before a wait that may be long"
    for _ in range(2):
        watch.cell_ends(None)
    said.clear()
    for code in ("%gpushare status", "  %%gpushare --gpus 2\nx"):
        shell.events.trigger("pre_run_cell", Cell(code))
        watch.cell_ends(None)
    assert said == [True, False, True, False]
    said.clear()
    shell.events.trigger("pre_run_cell", Cell("%gpushare status\nx"))
    assert said == [True, "resumed"], "what else is in the cell may need the GPU"
    assert shell.tracebacks == 0, "trouble of ours never reaches a cell"


def test_a_cell_in_every_thread_is_resumed_and_only_its_own_magics_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resumed: list[int] = []
    Told(
        monkeypatch,
        before_cell=lambda: resumed.append(threading.get_ident()),
        barred=lambda: "Not now.",
    )
    watch = CellWatch(Shell())
    watch.cell_begins(Cell("%gpushare status"))
    assert watch.gate.visit("ours") == "ours"

    def other() -> None:
        watch.cell_begins(Cell("x"))
        with pytest.raises(InputRejected, match=r"Not now\."):
            watch.gate.visit("x")
        watch.cell_ends(None)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(other).result(60)
    assert len(resumed) == 1
    assert threading.get_ident() not in resumed
    watch.cell_ends(None)
    with pytest.raises(InputRejected):
        watch.gate.visit("silent code after it")


@pytest.mark.parametrize("where", ["set_activity", "code_runs"])
def test_an_interrupt_that_reaches_us_stops_the_cell_and_no_other(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython prints a callback's Ctrl-C, and would run the cell."""

    def interrupted(*what: object) -> None:
        if now.pop(where, False) is True:
            raise KeyboardInterrupt

    shell = InteractiveShell()
    now: dict[str, bool] = {}
    Told(monkeypatch, **{where: interrupted})
    watch = CellWatch(shell)
    shell.ast_transformers.append(watch.gate)
    for event, hook in (
        ("pre_execute", watch.code_begins),
        ("pre_run_cell", watch.cell_begins),
        ("post_execute", watch.code_ends),
        ("post_run_cell", watch.cell_ends),
    ):
        shell.events.register(event, hook)
    for cell in ("x = 1", "x = 2"):
        now[where] = True
        result = shell.run_cell(cell, store_history=True)
        assert isinstance(result.error_before_exec, InputRejected)
        assert "interrupted" in str(result.error_before_exec)
        assert "x" not in shell.user_ns
        assert watch.running == 0
    assert shell.run_cell("x = 3").success
    assert shell.user_ns["x"] == 3


def test_code_is_told_from_its_beginning_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bool, bool]] = []
    Told(monkeypatch, code_runs=lambda *what: told.append(what))
    shell: Any = Shell()
    shell.parent_header = {"msg_type": "comm_msg"}
    watch = CellWatch(shell)
    watch.code_begins()
    watch.code_ends()
    assert told == [(True, False), (False, True)], "a widget's message"
    told.clear()
    watch.code_begins()
    watch.cell_begins(Cell("run_cell('x', silent=True)"))
    watch.code_begins()
    watch.code_ends()  # of the silent code inside
    watch.code_ends()
    assert all(begins for begins, _ in told), "the cell has not ended"
    watch.cell_ends(None)
    assert told[-1] == (False, True)


def test_installing_twice_counts_once_and_uninstalling_stops() -> None:
    shell = Shell()
    first = hooks.install(shell)
    assert hooks.install(shell) is first
    shell.events.trigger("pre_run_cell", None)
    assert first.running == 1
    hooks.uninstall(shell)
    hooks.uninstall(shell)
    shell.events.trigger("pre_run_cell", None)
    assert first.running == 1
    assert not any(shell.events.callbacks.values())


# -- which cells use a framework ---------------------------------------------------------------

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
