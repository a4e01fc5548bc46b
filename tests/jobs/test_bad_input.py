"""Sweeps and elastic jobs say what is wrong with their input, and free the names of ended ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import elastic
from jupyter_gpushare.elastic import records as jobs
from jupyter_gpushare.jobs import records as sweeps
from jupyter_gpushare.jobs.hostside import Job
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
        (lambda: elastic.run(train, memory=8), "Did you mean 8GiB?"),
        (lambda: elastic.run(train, memory="lots"), "write it like 8GiB"),
        (lambda: elastic.run(train, data=iter([])), "has no length"),
        (lambda: next(elastic.batches([1, 2], batch=1, tail="cut")), "say 'drop' or 'pad'"),
        (lambda: sweep(None, [{}]), "give the function itself"),
        (lambda: sweep(train, {"lr": [1, 2]}), "a list with one entry for each model"),
        (lambda: sweep(train, 3), "a list with one entry for each model"),
        (lambda: sweep(train, []), "nothing to try"),
        (lambda: sweep(train, [{}], gpus="2"), "gpus='2': a model needs a whole number"),
        (lambda: sweep(train, [{}], pick="most"), "say 'random' or 'most-free'"),
        (lambda: sweep(train, [{}], memory="8"), "Did you mean 8GiB?"),
    ],
)
def test_it_says_what_is_wrong_and_what_to_do(begin: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        begin()


def test_an_ended_sweep_is_deleted_and_its_name_is_free(tmp_path: Path) -> None:
    plan, job = sweeps.Plan(), Job("digits", b"")
    records = sweeps.Records.make(job, plan, [{}])
    records.lock()
    with pytest.raises(sweeps.SweepError, match="runs already"):
        sweep.delete("digits")
    records.close()
    sweep.delete("digits")
    assert sweep.names() == []
    assert list(sweeps.folder().iterdir()) == []
    with pytest.raises(sweeps.SweepError, match="There is no sweep 'digits'"):
        sweep.delete("digits")
    sweeps.Records.make(job, plan, [{}])


def test_an_ended_job_is_deleted_and_its_name_is_free(tmp_path: Path) -> None:
    plan = jobs.Plan(Job("digits", b""), 1, 1)
    held = jobs.Records.make(plan).lock()
    with pytest.raises(elastic.ElasticError, match="has a leader already"):
        elastic.delete("digits")
    os.close(held)
    elastic.delete("digits")
    assert elastic.names() == []
    assert list(jobs.folder().iterdir()) == []
    with pytest.raises(elastic.ElasticError, match="There is no job 'digits'"):
        elastic.delete("digits")
    jobs.Records.make(plan)
