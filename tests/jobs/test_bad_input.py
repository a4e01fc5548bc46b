"""Sweeps and elastic jobs say what is wrong with input, and read what was written."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from support.livenode import in_process

from jupyter_gpushare import elastic
from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.elastic import records as jobs
from jupyter_gpushare.elastic.records import Follower, Plan, Records
from jupyter_gpushare.jobs import records as sweeps
from jupyter_gpushare.jobs.core import Phase, Pick
from jupyter_gpushare.jobs.hostside import Job
from jupyter_gpushare.jobs.store import Stored
from jupyter_gpushare.jobs.sweeps import sweep
from jupyter_gpushare.protocol.sizes import parse_memory


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
        (lambda: sweep(train, [{}], gpus=0), "one GPU at least"),
        (lambda: sweep(train, [{}], pick="most"), "say 'random' or 'most-free'"),
        (lambda: sweep(train, [{}], memory="8"), "Did you mean 8GiB?"),
    ],
)
def test_it_says_what_is_wrong_and_what_to_do(begin: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        begin()


@pytest.mark.parametrize(
    "begin", [lambda one: sweep(one, [{}]), elastic.run, lambda one: elastic.run(train, data=[one])]
)
def test_without_cloudpickle_a_notebooks_code_is_refused_before_any_gpu_is_taken(
    begin: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = sys.modules["__main__"]
    written: dict[str, Any] = {"__name__": "__main__"}
    exec("def written_in_a_cell(): ...", written)
    monkeypatch.setattr(main, "written_in_a_cell", written["written_in_a_cell"], raising=False)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises((sweeps.SweepError, elastic.ElasticError), match="pip install cloudpickle"):
        begin(written["written_in_a_cell"])
    assert (sweep.names(), elastic.names()) == ([], [])


# -- what another user may have written is not unpickled -----------------------------------------

Kind = tuple[Callable[[str], object], Callable[[str], None], Callable[[str], Stored]]


class Trap:
    """What its unpickling runs: it makes the file."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.made,)


def _sweep(name: str) -> Stored:
    return sweeps.Records.make(Job(name, b""), sweeps.Plan(), [{}])


def _job(name: str) -> Stored:
    return jobs.Records.make(jobs.Plan(Job(name, b""), 1, 2))


@pytest.fixture(params=["sweep", "elastic"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """How such a job is loaded, deleted, and made."""
    if request.param == "sweep":
        return sweep.load, sweep.delete, _sweep
    return elastic.load, elastic.delete, _job


def test_an_ended_one_is_deleted_and_its_name_is_free(kind: Kind) -> None:
    _load, delete, make = kind
    records = make("digits")
    with pytest.raises(GpuShareError, match="'digits' already"):
        make("digits")
    held = records.lock()
    with pytest.raises(GpuShareError, match=r"runs already|has a leader already"):
        delete("digits")
    os.close(held)
    assert records.names() == ["digits"]
    delete("digits")
    assert (records.names(), list(records.folder().iterdir())) == ([], [])
    with pytest.raises(GpuShareError, match=r"There is no (sweep|job) 'digits'"):
        delete("digits")
    make("digits")


def test_who_only_looks_whether_it_runs_bars_nobody(kind: Kind) -> None:
    records = kind[2]("digits")
    os.close(records.lock())
    looks = os.open(records.at(records.locks), os.O_RDONLY)
    fcntl.flock(looks, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, (looks,)).start()
    os.close(records.lock(20.0))
    assert not records.is_run()


@pytest.fixture
def trapped(kind: Kind, tmp_path: Path) -> tuple[Path, Path]:
    """The file that says what the job ``mine`` is, with a trap in it, and what the trap makes."""
    records, sprung = kind[2]("mine"), tmp_path / "sprung"
    place = records.at(records.parts[0])
    if place.suffix == ".sqlite":
        with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as db:
            db.execute("UPDATE sweep SET job=?", (pickle.dumps(Trap(sprung)),))
    else:
        place.write_bytes(pickle.dumps(Trap(sprung)))
    return place, sprung


@pytest.mark.parametrize("name", ["../other/mine", "/mine", "..", "-x", ".mine", "", "a b", "a\n"])
def test_a_name_leads_nowhere_else(kind: Kind, trapped: tuple[Path, Path], name: str) -> None:
    place, sprung = trapped
    folder = place.parent if place.suffix else place.parent.parent
    folder.rename(other := folder.with_name("other"))
    folder.mkdir()
    for use in kind[:2]:
        with pytest.raises(GpuShareError, match="is no name for a job"):
            use(name)
    assert not sprung.exists()
    assert (other / place.relative_to(folder)).exists()


@pytest.mark.parametrize("part", ["file", "folder"])
@pytest.mark.parametrize("how", ["owner", "group", "others"])
def test_what_others_may_have_written_is_not_unpickled(
    kind: Kind, trapped: tuple[Path, Path], part: str, how: str
) -> None:
    place, sprung = trapped
    spoiled = place if part == "file" else place.parent
    if how != "owner":
        spoiled.chmod(spoiled.stat().st_mode | (0o020 if how == "group" else 0o002))
    elif os.geteuid() == 0:
        os.chown(spoiled, 65534, -1)
    else:
        pytest.skip("only root gives files away")
    says = "belongs to another user" if how == "owner" else "Other users may write into"
    for use in kind[:2]:
        with pytest.raises(GpuShareError, match=says):
            use("mine")
    assert not sprung.exists()
    assert place.exists()


def test_checkpoints_that_others_may_have_written_are_not_taken() -> None:
    _job("mine").at("{}/checkpoints").chmod(0o720)
    with pytest.raises(elastic.ElasticError, match=r"Other users may write into .*checkpoints"):
        elastic.load("mine")


# -- as the first release wrote it, in `recorded/` -------------------------------------------------

RECORDED: Final = Path(__file__).with_name("recorded")


@pytest.fixture
def _recorded(tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("_recorded")
def test_a_sweep_of_the_first_release() -> None:
    look = sweep.look("rates")
    first, second, third = look.models()
    assert first.row == {
        **{"model": 0, "lr": 0.1, "loss": 0.5, "phase": "done", "host": "a", "gpus": "GPU 0"},
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


@pytest.mark.usefixtures("_recorded")
def test_an_elastic_job_of_the_first_release() -> None:
    records = Records("digits")
    train, command = records.plan().job.train, ("/home/train.py", "--lr")
    work = Job("digits", train, 1, parse_memory("8GiB..20GiB"), "/home", ())
    assert records.plan() == Plan(work, 1, 4, command)
    status = Follower(records).read()
    assert (status.phase, status.reason) == (elastic.Phase.STOPPED, "It was stopped.")
    assert (status.step, status.epoch, status.losses) == (9, 1, ((9, 3.0, 0.25),))
    assert said("elastic", "--list")["jobs"] == [
        {"name": "digits", "state": "stopped", "step": 9, "epoch": 1}
    ]
    assert said("elastic", "--delete=digits") == {"deleted": "digits"}
    assert elastic.names() == []
