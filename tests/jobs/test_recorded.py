"""A sweep and an elastic job that an earlier release wrote down are read as those of this one are.

`recorded/` has what the release before the common store wrote.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any, Final

import pytest
from support.livenode import in_process

from jupyter_gpushare import elastic
from jupyter_gpushare.elastic.records import Plan, Records
from jupyter_gpushare.jobs.core import Phase, Pick
from jupyter_gpushare.jobs.hostside import Job
from jupyter_gpushare.jobs.sweeps import sweep
from jupyter_gpushare.protocol.sizes import parse_memory

RECORDED: Final = Path(__file__).with_name("recorded")


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    sweeps, job = tmp_path / "gpushare" / "sweeps", tmp_path / "gpushare" / "elastic" / "digits"
    for folder in (sweeps, job / "checkpoints"):
        folder.mkdir(parents=True, mode=0o700)
    for name in ("plan", "events"):
        shutil.copyfile(RECORDED / name, job / name)
    with contextlib.closing(sqlite3.connect(sweeps / "rates.sqlite")) as db:
        db.executescript((RECORDED / "rates.sql").read_text())
    for made in tmp_path.rglob("*"):
        made.chmod(0o700 if made.is_dir() else 0o600)


def said(*words: str) -> Any:
    """What a verb says to a program."""
    return json.loads(in_process(*words, "--json").stdout)


def test_a_sweep() -> None:
    look = sweep.look("rates")
    first, second, third = look.models()
    assert first.row == {
        **{"model": 0, "lr": 0.1, "loss": 0.5, "phase": "done", "host": "a", "gpus": "GPU-5c1a"},
        **{"attempts": 1, "seconds": 2.5, "error": ""},
    }
    assert (first.output, look.reports()) == ("hello\n", [(0, {"loss": 2.0})])
    assert (second.phase, second.error) == (Phase.FAILED, "ValueError: no such rate")
    assert (third.phase, third.candidate) == (Phase.QUEUED, {"lr": 0.3})
    records = look._records
    assert (records.plan.pick, records.plan.seed, records.plan.every) == (Pick.MOST_FREE, 7, 2.0)
    assert (records.job.memory, records.job.path) == (parse_memory("8GiB"), ("/home/lib",))
    assert said("sweep", "--list")["sweeps"] == [
        {"name": "rates", "state": "stopped", "queued": 1, "running": 0, "done": 1, "failed": 1}
    ]
    assert said("sweep", "--show=rates")["best"] == 0
    assert said("sweep", "--delete=rates") == {"deleted": "rates"}
    assert sweep.names() == []


def test_an_elastic_job() -> None:
    records = Records("digits")
    train, command = records.plan().job.train, ("/home/train.py", "--lr")
    work = Job("digits", train, 1, parse_memory("8GiB..20GiB"), "/home", ())
    assert records.plan() == Plan(work, 1, 4, command)
    status = records.follow().read()
    assert (status.phase, status.reason) == (elastic.Phase.STOPPED, "It was stopped.")
    assert (status.step, status.epoch, status.losses) == (9, 1, ((9, 3.0, 0.25),))
    assert said("elastic", "--list")["jobs"] == [
        {"name": "digits", "state": "stopped", "step": 9, "epoch": 1}
    ]
    assert said("elastic", "--delete=digits") == {"deleted": "digits"}
    assert elastic.names() == []
