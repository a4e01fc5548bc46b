"""People read what a model needs or why that is not known, and nothing of their cell is run."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.client.cell import reading
from jupyter_gpushare.client.cell.reading import Unknown, work_of
from jupyter_gpushare.client.words.prediction import Prediction, start_words, time_words

GIB = 2**30


def kind(name: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": name,
        "gpus": 1,
        "memory": 6 * GIB,
        "memory_p90": 7 * GIB,
        "seconds": 720.0,
        "seconds_p90": 900.0,
        "utilisation": 80,
        "error": 0.1,
        "basis": "predicted",
        "starts": "now",
        "wait": None,
        **more,
    }


def test_the_table_has_a_row_for_each_kind() -> None:
    slow = kind("T4", gpus=4, basis="dry run", starts="waits", wait={"low": 600, "high": 1800})
    shown = Prediction({"batch": 32, "iterations": 1000, "kinds": [kind("A100"), slow]})
    first, _titles, a100, t4, note = repr(shown).splitlines()
    assert first == "Expected for 1000 iterations with a batch of 32"
    cells = [re.split(r"  +", line) for line in (a100, t4)]
    assert cells[0] == [
        "A100",
        "6 GiB to 7 GiB",
        "12 min to 15 min",
        "80 %",
        "the predictor",
        "now",
    ]
    assert cells[1][0] == "4 × T4"  # noqa: RUF001
    assert cells[1][-2:] == ["the dry run alone", "waits about 10 to 30 min"]
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
    assert start_words(row) == ""


def test_small_times_have_figures_and_nonsense_none() -> None:
    assert [time_words(x) for x in (0.0123, 9.87, 12.0, 7200.0)] == [
        *("0.012 s", "9.9 s"),
        *("12 s", "2 h"),
    ]
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
    assert work == (known["model"], "the batch", 70, True, known["optimizer"])
    assert work_of("net.model(x, y)", known)[:4] == (
        known["model"],
        ("the batch", "the target"),
        1,
        False,
    )
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
