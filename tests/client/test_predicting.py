"""People read what a model needs or why that is not known, and nothing of their cell is run."""

from __future__ import annotations

import ast
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.client.cell import reading
from jupyter_gpushare.client.cell.reading import Unknown, is_model, work_of
from jupyter_gpushare.client.words.prediction import (
    Prediction,
    guessed,
    left_out,
    time_words,
)

GIB = 2**30


def kind(name: str, **more: Any) -> dict[str, Any]:
    known = {"kind": name, "gpus": 1, "memory": 6 * GIB, "memory_p90": 7 * GIB}
    known |= {"seconds": 720.0, "seconds_p90": 900.0, "utilisation": 80, "error": 0.1}
    return {**known, "basis": "predicted", "starts": "now", "wait": None, **more}


def test_the_table_has_a_row_for_each_kind() -> None:
    waits = ["state would wait about {range 600 1800}"]
    slow = kind("T4", gpus=4, basis="dry run", starts="waits", says=waits)
    fast = kind("A100", says=["state would start now"])
    shown = Prediction({"batch": 32, "iterations": 1000, "kinds": [fast, slow]})
    first, _titles, a100, t4, note = repr(shown).splitlines()
    assert first == "Expected for 1000 iterations with a batch of 32"
    cells = [re.split(r"  +", line) for line in (a100, t4)]
    name, *rest = cells[0]
    assert (name, rest[:2]) == ("A100", ["6 GiB to 7 GiB", "12 min to 15 min"])
    assert rest[2:] == ["80 %", "the predictor", "would start now"]
    assert cells[1][0] == "4 × T4"  # noqa: RUF001
    assert cells[1][-2:] == ["the dry run alone", "would wait about 10 to 30 min"]
    assert "reserve 7 GiB" in note
    assert shown.memory == 7 * GIB
    html = shown._repr_html_()
    assert html.count("<tr>") == 3
    assert "<script" not in Prediction({"kinds": [kind("<script>")]})._repr_html_()


def test_without_a_node_manager_it_says_why_and_nothing_of_starts() -> None:
    row = {name: value for name, value in kind("A100").items() if name not in ("starts", "gpus")}
    shown = Prediction({"batch": 1, "iterations": 1, "kinds": [row]}, "There is no node manager.")
    assert "There is no node manager. So" in repr(shown)
    assert "reserve" not in repr(shown)
    assert repr(shown).splitlines()[2].endswith("the predictor"), "nobody knows what would start"


def test_small_times_have_figures_and_nonsense_none() -> None:
    words = ["0.012 s", "9.9 s", "12 s", "2 h"]
    assert [time_words(x) for x in (0.0123, 9.87, 12.0, 7200.0)] == words
    assert [time_words(x) for x in (None, True, -1, float("nan"), 1e20)] == ["?"] * 5


class Model:
    """What counts as a model in these tests."""

    head: Any = None


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "is_model", lambda value: isinstance(value, Model))


def names(**more: Any) -> dict[str, Any]:
    made = {"model": Model(), "x": "the batch", "y": "the target", "N": 7}
    optimizer = SimpleNamespace(param_groups=[])
    return {**made, "optimizer": optimizer, "net": SimpleNamespace(model=made["model"]), **more}


def test_the_call_of_a_model_that_exists_is_found_with_its_loops() -> None:
    cell = """
for epoch in range(N):
    for step in tqdm.tqdm(range(10)):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""
    known = names()
    work = work_of(cell, known)
    assert work[:5] == (known["model"], "the batch", 70, True, known["optimizer"])
    assert work.models == ("model",)
    both = ("the batch", "the target")
    assert work_of("net.model(x, y)", known)[:4] == (known["model"], both, 1, False)
    assert work_of("for _ in [1, 2]: model(3)", known)[1:3] == (3, 2)
    assert work_of("for _ in loader: model(x)", known).iterations == 1, "nobody knows how often"
    assert work_of("model(other); model(x)", known).batch == "the batch"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("for x in loader: model(make(x))", "`model(make(x))`, and its batch exists only"),
        ("Model()(x)", "calls no model that exists already"),
        ("print(x)", "calls no model"),
        ("", "calls no model"),
    ],
)
def test_what_cannot_be_told_says_what_is_needed(cell: str, said: str) -> None:
    with pytest.raises(Unknown, match=re.escape(said)):
        work_of(cell, names())


def test_nothing_of_a_cell_is_run() -> None:
    class Touchy(dict[str, Any]):
        @property
        def model(self) -> None:
            raise AssertionError("a property was read")

    with pytest.raises(Unknown):
        work_of("touchy.model(x); model(explode())", names(touchy=Touchy()))


def test_what_a_prediction_leaves_out_is_said() -> None:
    told = {"batch": 32, "iterations": 1, "kinds": [kind("A100")]}
    (note,) = guessed(73 * 2**20)
    assert "No loss is known" in note
    assert "73 MiB of the memory" in note
    assert guessed(0) == ()
    notes = left_out(("G", "D"), "It sleeps.")
    assert notes[0] == "The cell's own steps could not be followed. It sleeps."
    assert "This is G alone. What the cell does with D comes on top of it" in notes[1]
    assert left_out(("model",), "") == ()
    shown = Prediction(told, notes=notes)
    assert all(note in repr(shown) for note in notes)
    assert "This is G alone" in shown._repr_html_()


# -- one iteration of a cell -------------------------------------------------------------------


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a notebook with two models and their optimizers, as torch's classes are."""

    class Module:
        def __call__(self) -> None:
            raise AssertionError("a model was called")

    class _Loss(Module): ...

    class Optimizer: ...

    class Tensor: ...

    for one in (Module, _Loss, Optimizer, Tensor):
        one.__module__ = "torch"
    monkeypatch.setattr(reading, "is_model", is_model)

    def mine(*_: Any) -> None:
        raise AssertionError("a function was called")

    made = {"G": Module(), "D": Module(), "bce": _Loss(), "x": Tensor(), "mine": mine}
    made |= {"log": [], "post": ModuleType("requests")}
    return {**made, "g": Optimizer(), "d": Optimizer(), "torch": ModuleType("torch")}


GAN = """
for step in range(200):
    z = torch.randn(64, 100, device="cuda")
    with timer():
        fake = G(z)
        wrong = bce(D(x), 1) + mine(D(fake.detach()), 0)
    d.zero_grad(); wrong.backward(); d.step()
    g_wrong = bce(D(fake), 1)
    g_wrong.backward()
    if step % 10 == 0:
        print(step, wrong.item())
        g.step()
    log.append(wrong.item())
    mine(D(x).mean())
    shown = len(log)
"""


def test_a_step_has_all_models_losses_and_optimizers_and_nothing_else(
    torchs: dict[str, Any],
) -> None:
    work = work_of(GAN, torchs)
    assert (work.models, work.iterations, work.training) == (("G", "D"), 200, True)
    assert work.batch is None, "only the step makes it"
    assert work.step is not None
    assert set(work.step.names) == {"torch", "G", "D", "bce", "mine", "x", "g", "d"}
    lines = work.step.source.splitlines()
    assert lines[0] == "z = torch.randn(64, 100, device='cuda')"
    assert lines[-2:] == ["g.step()", "D(x)"]
    assert not any(word in work.step.source for word in ("timer", "log", "print", "shown"))


def test_a_batch_may_be_given_by_name(torchs: dict[str, Any]) -> None:
    torchs["batch"] = {"ids": 1, "mask": 2}
    found = work_of("G(**batch, labels=x)", torchs).batch
    assert found == {"ids": 1, "mask": 2, "labels": torchs["x"]}
    assert work_of("G(**x)", torchs).batch is None, "only the step's process can tell"


@pytest.mark.parametrize(
    "cell",
    [
        "y = mine()\nG(x, y).backward()",  # it makes data
        "def data(): ...\ny = data()\nG(x, y)",
        "for y in loader: G(x, y)",
        "G(x, [mine(one) for one in (1, 2)])",
        "y = torch.load('x')\nG(y)",
        "y = post.send(G(x))\nD(y)",
    ],
)
def test_there_is_no_step_where_something_else_would_have_to_run(
    cell: str, torchs: dict[str, Any]
) -> None:
    assert reading._Slicer(torchs).step_of(ast.parse(cell)) is None


def test_contexts_and_modules_of_torch_come_along(torchs: dict[str, Any]) -> None:
    cell = """
import torch.nn.functional as F
with torch.autocast("cuda"), open("x") as file:
    wrong = F.relu(G(x)).mean()
    print(file)
wrong.backward()
"""
    step = work_of(cell, torchs).step
    assert step is not None
    assert step.source.splitlines()[1] == "with torch.autocast('cuda'):"
    assert "file" not in step.source
