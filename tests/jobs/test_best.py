"""The best model of a sweep is said, and its row says what is whose."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from jupyter_gpushare.jobs.best import Best, best
from jupyter_gpushare.jobs.core import Phase
from jupyter_gpushare.jobs.records import Model
from jupyter_gpushare.jobs.verb import SweepApp

NAN = math.nan


@pytest.mark.parametrize(
    ("results", "given", "found"),
    [
        ([{"loss": 2.0}, {"loss": 1.0}], (), Best(1, "loss", 1.0, False)),
        ([{"accuracy": 2}, {"accuracy": 1}], (), Best(0, "accuracy", 2, True)),
        ([{"val_f1": 0.2}, {"val_f1": 0.4}], (), Best(1, "val_f1", 0.4, True)),
        ([{"loss": NAN}, {"loss": math.inf}, {"loss": 3.0}], (), Best(2, "loss", 3.0, False)),
        ([{"epoch": 1, "ok": True, "loss": 3}], (), Best(0, "loss", 3, False)),
        ([{"loss": 1, "n": 1}, {"loss": 2, "n": 0}], ("n",), Best(1, "n", 0, False)),
        ([{"loss": 1}, {"loss": 2}], ("loss", True), Best(1, "loss", 2, True)),
        ([{"loss": 1}, {"loss": 1}], (), Best(0, "loss", 1, False)),
        ([{"loss": NAN}, {"text": "x"}, {}], (), None),
        ([{"loss": 1}], ("accuracy",), None),
        ([{"huge": 10**400}], (), None),
        ([], (), None),
    ],
)
def test_the_best_is_the_least_or_the_most_of_a_number(
    results: list[dict[str, Any]], given: tuple[Any, ...], found: Best | None
) -> None:
    assert best(enumerate(results), *given) == found


def model(candidate: Any, result: Any) -> Model:
    ran = (1, "a", ("GPU-5c1a",), "GPU 0", 10.0, 12.5)
    return Model(7, candidate, Phase.DONE, *ran, result, "", "", {})


def test_nothing_of_a_result_takes_the_place_of_what_the_row_says() -> None:
    row = model({"lr": 0.1, "host": "x"}, {"lr": 0.2, "model": "m", "error": 3.0, "loss": 1}).row
    assert row == {
        **{"model": 7, "lr": 0.1, "given.host": "x", "result.lr": 0.2, "result.model": "m"},
        **{"result.error": 3.0, "loss": 1, "phase": "done", "host": "a", "gpus": "GPU 0"},
        **{"attempts": 1, "seconds": 2.5, "error": ""},
    }
    assert model(3, 4).row["x"] == 3
    assert model(3, 4).row["result"] == 4


def test_json_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    SweepApp().print_json({"models": [{"loss": NAN, "all": (1.0, -math.inf)}]})
    assert json.loads(capsys.readouterr().out) == {"models": [{"loss": None, "all": [1.0, None]}]}
