"""What a person hears who gives a sweep or an elastic job something that it cannot use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import elastic
from jupyter_gpushare.jobs.sweeps import sweep


def train() -> None: ...


def needs(config: Any) -> None: ...


@pytest.fixture(autouse=True)
def _no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("begin", "says"),
    [
        (lambda: elastic.run(None), "give the function itself"),
        (lambda: elastic.run(needs), "without arguments, and it needs config"),
        (lambda: elastic.run(train, min_gpus=3, max_gpus=2), "min_gpus=3 is more than max_gpus=2"),
        (lambda: elastic.run(train, max_gpus="4"), "max_gpus='4': it must be a whole number"),
        (lambda: elastic.run(train, min_gpus=0), "min_gpus=0: it must be a whole number"),
        (lambda: elastic.run(train, memory=8), "memory=8 is 8 bytes: say its unit, as in '8GiB'"),
        (lambda: elastic.run(train, memory="lots"), "write it like 8GiB"),
        (lambda: elastic.run(train, data=iter([])), "has no length"),
        (lambda: next(elastic.batches([1, 2], batch=1, tail="cut")), "say 'drop' or 'pad'"),
        (lambda: sweep(None, [{}]), "give the function itself"),
        (lambda: sweep(train, {"lr": [1, 2]}), "a list with one entry for each model"),
        (lambda: sweep(train, 3), "a list with one entry for each model"),
        (lambda: sweep(train, []), "nothing to try"),
        (lambda: sweep(train, [{}], gpus="2"), "gpus='2': a model needs a whole number"),
        (lambda: sweep(train, [{}], pick="most"), "say 'random' or 'most-free'"),
        (lambda: sweep(train, [{}], memory="8"), "memory='8' is 8 bytes"),
    ],
)
def test_it_says_what_is_wrong_and_what_to_do(begin: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        begin()
