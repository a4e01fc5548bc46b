"""An elastic job outlives its workers, gives GPUs to notebooks, and loses nothing that it learnt.

A node manager with simulated GPUs, torch's agents, gloo. Nobody else takes part where ranks meet.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import runpy
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.node import RunningNode, until

from jupyter_gpushare import elastic
from jupyter_gpushare.elastic import checkpoints, member, training
from jupyter_gpushare.elastic.leader import Leader
from jupyter_gpushare.elastic.meeting import Meeting, Word
from jupyter_gpushare.elastic.records import Follower, Plan, Records
from jupyter_gpushare.elastic.running import MOST_LEADERS
from jupyter_gpushare.elastic.verb import ElasticApp
from jupyter_gpushare.jobs import hostside
from jupyter_gpushare.jobs.core import Card, End, Row
from jupyter_gpushare.jobs.engine import Idle, Silent
from jupyter_gpushare.jobs.hostside import Job
from jupyter_gpushare.protocol.messages import Method

# Here, where there is no node manager yet: the tests themselves ask for no GPU.
torch = pytest.importorskip("torch")


#: Seconds; torch begins slowly on a machine that has much else to do.
WITHIN = 150.0
#: How far the loss of a step may be from that of a job of fixed size, as a part of it: float32 adds
#: up in another order. docs/how-to/elastic.md has it.
TOLERANCE = 1e-4


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with RunningNode(tmp_path, simulate="3x24GiB", config="c.Policy.stop_after = 0.2") as running:
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(running.socket))
        yield running


def trained(folder: Path, epochs: int, pause: float = 0.2) -> Callable[[], Any]:
    """A small regression that writes down each rank's samples and loss in each step."""
    place, given = str(folder), data(240)

    def train() -> Any:
        import os
        import time

        import torch

        from jupyter_gpushare import elastic

        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        net = elastic.keep(model, optimizer)

        samples = given if net is model else None  # in a job: those of the job
        for number, x, y in elastic.batches(samples, batch=24, epochs=epochs, seed=3):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            elastic.report(loss=loss)
            now = elastic.world()
            with open(f"{place}/samples-{os.getpid()}", "a") as file:
                numbers = ",".join(str(int(one)) for one in number)
                file.write(f"{now.epoch} {now.step} {now.rank} {numbers} {loss.item()}\n")
            if not os.path.exists(f"{place}/go"):
                time.sleep(pause)  # others may keep a change waiting for a minute
        return {"steps": elastic.world().step}

    return train


def data(samples: int) -> Any:
    chosen = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 8, generator=chosen)
    y = x.sum(1, keepdim=True).sin()
    return torch.utils.data.TensorDataset(torch.arange(samples), x, y)


def told(folder: Path) -> list[tuple[int, int, int, list[int], float]]:
    """Epoch, step, rank, samples and loss of all that was trained."""
    lines = [line for file in folder.glob("samples-*") for line in file.read_text().splitlines()]
    return [
        (int(epoch), int(step), int(rank), [int(n) for n in numbers.split(",")], float(loss))
        for epoch, step, rank, numbers, loss in map(str.split, lines)
    ]


def losses(folder: Path) -> list[float]:
    """The loss of each step over all samples of its batch: all ranks have as many."""
    found: dict[int, dict[int, float]] = {}
    for _epoch, step, rank, _numbers, loss in told(folder):
        found.setdefault(step, {})[rank] = loss
    return [sum(parts.values()) / len(parts) for _, parts in sorted(found.items())]


def sizes(job: elastic.Job) -> list[int]:
    return [count for _, count in job.status().workers if count]


def pid_of(job: elastic.Job, rank: int) -> int:
    """The worker's process."""
    said = [e for e in Follower(Records(job.name)).news() if e["event"] == "trains"]
    return [int(e["pid"]) for e in said if e["rank"] == rank][-1]


def check_samples(folder: Path, samples: int, epochs: int, again: int = 0) -> None:
    """Each sample was trained once in each epoch, but for ``again`` steps that were repeated."""
    steps: dict[tuple[int, int], dict[int, list[int]]] = {}
    repeated = set()
    for epoch, step, rank, numbers, _loss in told(folder):
        parts = steps.setdefault((epoch, step), {})
        if rank in parts:
            repeated.add(step)
            assert len(repeated) <= again, f"steps {repeated} were repeated"
        parts[rank] = numbers
    for epoch in range(epochs):
        seen = [
            n for (e, _), parts in steps.items() if e == epoch for p in parts.values() for n in p
        ]
        assert sorted(seen) == list(range(samples)), f"epoch {epoch}"


def begun(tmp_path: Path, most: int, name: str, epochs: int = 80) -> elastic.Job:
    """A job that trains on so many GPUs already."""
    train = trained(tmp_path, epochs)
    job = elastic.run(train, data=data(240), max_gpus=most, name=name, memory="8GiB")
    until(lambda: sizes(job)[-1:] == [most] and job.status().step > 5, "it trains", WITHIN)
    return job


def done(job: elastic.Job, folder: Path, steps: int) -> elastic.Status:
    """It runs to its end, at full speed."""
    (folder / "go").touch()
    assert job.wait(WITHIN), job
    status = job.status()
    assert status.phase is elastic.Phase.DONE, (status, status.said)
    assert status.step == steps
    steps_told = [step for step, _, _ in status.losses]
    assert steps_told == sorted(steps_told)
    return status


def entries(status: elastic.Status) -> list[str]:
    found = [re.search(r"\(entry: (\w+)\)", text) for _, text in status.said]
    return [match[1] for match in found if match]


@pytest.mark.story
def test_it_outlives_its_first_worker_and_goes_on_from_the_breakpoint(
    node: RunningNode, tmp_path: Path
) -> None:
    job = begun(tmp_path, 2, "digits")
    assert {lease["job"] for lease in node.status()["leases"]} == {"digits"}
    with pytest.raises(elastic.ElasticError, match="a job 'digits' already"):
        elastic.run(trained(tmp_path, 1), data=data(240), name="digits")
    with pytest.raises(elastic.ElasticError, match="has a leader already"):
        elastic.load("digits")
    leader = psutil.Process(job._leader.pid)
    found: list[Any] = []
    for process in (leader, *leader.children(recursive=True)):
        found += process.net_connections("tcp")
    assert {one.laddr.ip for one in found} == {"127.0.0.1"}, "ranks listen to this host alone"
    before = job.status().restarts
    os.kill(pid_of(job, 0), signal.SIGKILL)
    until(lambda: job.status().restarts > before, "it begins anew", WITHIN)
    status = done(job, tmp_path, 800)
    assert job.result() == {"steps": 800}
    check_samples(tmp_path, 240, 80, again=1)
    assert entries(status)[0] == "train"
    assert set(entries(status)[1:]) == {"breakpoint"}


@pytest.mark.story
def test_a_notebook_gets_a_card_back_and_the_job_goes_on_with_one_less_and_grows_again(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns what a job of fixed size would have learnt."""
    job = begun(tmp_path, 3, "wide")
    with node.client() as notebook:
        lease = notebook.request(memory=24 * 2**30, priority_class="interactive")
        until(lambda: sizes(job)[-1] == 2, "the job goes on with two", WITHIN)
        notebook.call(Method.RELEASE, lease=lease["lease"])
    until(lambda: sizes(job)[-1] == 3, "the job grows again", WITHIN)
    status = done(job, tmp_path, 800)
    check_samples(tmp_path, 240, 80)  # no step was lost, and none was done twice
    monkeypatch.setattr(training, "_training", None)
    (fixed := tmp_path / "fixed").mkdir()
    (fixed / "go").touch()
    trained(fixed, 80)()  # outside of a job it is one process, from the first step to the last
    assert losses(tmp_path) == pytest.approx(losses(fixed), rel=TOLERANCE)
    assert entries(status)[:3] == ["train", "breakpoint", "breakpoint"]


@pytest.mark.story
def test_a_released_job_stops_as_a_whole_and_can_go_on(node: RunningNode, tmp_path: Path) -> None:
    """Else its workers would train on with no lease, on cards that others may get."""
    job = begun(tmp_path, 2, "released")
    one, _ = leases = node.status()["leases"]
    assert {(lease["job"], lease["job_kind"]) for lease in leases} == {("released", "elastic")}
    with node.client() as person:
        person.call(Method.RELEASE, lease=one["id"])
    assert job.wait(WITHIN)
    status = job.status()
    assert status.phase is elastic.Phase.STOPPED
    assert "The lease was released." in status.reason
    assert "elastic.load('released')" in status.reason
    until(lambda: node.status()["leases"] == [], "all are given back")
    again = elastic.load("released")
    done(again, tmp_path, 800)
    check_samples(tmp_path, 240, 80)


@pytest.mark.story
def test_jobs_have_a_leader_each_and_one_whose_leaders_all_die_ends_with_the_reason(
    node: RunningNode, tmp_path: Path
) -> None:
    (tmp_path / "doomed").mkdir()
    job = begun(tmp_path, 1, "lives")
    doomed = elastic.run(trained(tmp_path / "doomed", 80), data=data(240), max_gpus=1, name="dies")
    killed: set[int] = set()
    for _ in range(MOST_LEADERS):
        until(lambda: doomed._leader.pid not in killed, "another leader takes its place", WITHIN)
        killed.add(doomed._leader.pid)
        os.kill(doomed._leader.pid, signal.SIGKILL)
    assert doomed.wait(WITHIN)
    status = doomed.status()
    assert status.phase is elastic.Phase.FAILED
    assert "The leader's process ended with the code -9. It was the 4th one." in status.reason
    assert job._leader.pid not in killed
    until(lambda: {one["job"] for one in node.status()["leases"]} == {"lives"}, "all given back")
    os.kill(job._leader.pid, signal.SIGKILL)
    until(lambda: len(entries(job.status())) > 1, "another leader goes on", WITHIN)
    status = done(job, tmp_path, 800)
    assert any("Another one takes its place" in text for _, text in status.said)


def test_the_newest_checkpoint_that_is_whole_is_taken(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        saved = checkpoints.write(tmp_path, step, lambda file, step=step: file.write(b"%d" % step))
    assert len(checkpoints.found(tmp_path)) == checkpoints.KEPT
    saved.write_bytes(b"")
    heard: list[str] = []
    assert checkpoints.newest(tmp_path, heard.append) == b"3"
    assert heard == ["The checkpoint of step 4 is damaged. The one before it is taken."]


def test_a_training_that_raises_says_so_in_the_job_s_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a worker's main function; the worker ends, and torch's agent asks for another."""

    class Ended(BaseException):
        """The process would be gone."""

    def gone(code: int) -> None:
        raise Ended(code)

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(training, "_joined", lambda: None)
    monkeypatch.setattr(training, "_training", None)
    monkeypatch.setattr(training.signal, "signal", lambda *_: None)
    monkeypatch.setattr(training.os, "_exit", gone)
    records = Records.make(Plan(Job("fails", pickle.dumps((divide, None))), 1, 1))
    with pytest.raises(Ended, match=str(training.AGAIN)):
        training.main("fails")
    (fault,) = Follower(records).news()
    assert (fault["event"], fault["rank"]) == ("fault", 0)
    assert "ZeroDivisionError" in fault["text"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_leader_whose_job_ends_starts_nobody_more_and_blames_nobody_whom_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    Records.make(Plan(Job("ends", b""), 1, 2))
    leader, started = Leader("ends"), list[Any]()
    monkeypatch.setattr(leader._host, "start", lambda *what: started.append(what))
    card = (Row(Card("", "GPU-1"), 24),)
    leader._told(Idle("", card))
    leader._end = (elastic.Phase.STOPPED, "It was stopped.")
    leader._told(Idle("", card))
    leader._told(hostside.Ended(1, 1, End.HOST_FAULT, error="The worker was killed by SIGKILL."))
    leader._meeting.remove()
    assert len(started) == 1
    assert not [event for event in Follower(Records("ends")).news() if event["event"] == "said"]


def test_each_reason_for_which_a_job_waits_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    Records.make(Plan(Job("waits", b""), 1, 2))
    leader = Leader("waits")
    for event in (Idle("", ()), Idle("", ()), Silent("", "Nobody answers."), Idle("", ())):
        leader._told(event)
    leader._meeting.remove()
    events = Follower(Records("waits")).news()
    reasons = [event["reason"] for event in events if event["event"] == "waits"]
    idle = "No GPU is idle, or your quota allows no more."
    assert reasons == [idle, "Nobody answers.", idle]


def test_a_terminal_lists_the_jobs_and_which_of_them_has_no_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    records = Records.make(Plan(Job("digits", b""), 1, 1))
    records.add("begins")

    def listed() -> list[dict[str, Any]]:
        assert ElasticApp().start(["--list", "--json"]) == 0
        return json.loads(capsys.readouterr().out)["jobs"]

    held = records.lock()
    assert listed() == [{"name": "digits", "state": "waiting", "step": 0, "epoch": 0}]
    os.close(held)
    assert [one["state"] for one in listed()] == ["stopped"]


def divide() -> float:
    """A training that raises."""
    return 1 / 0


PROGRAM = """
import sys

import torch

from jupyter_gpushare import elastic
from jupyter_gpushare.elastic.verb import ElasticApp
from jupyter_gpushare.elastic import training

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(96, 8, dtype=torch.float64)
y = x.sum(1, keepdim=True).sin()
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1].removeprefix("--lr=")))
net = elastic.keep(model, optimizer)
for a, b in elastic.batches(torch.utils.data.TensorDataset(x, y), batch=24, epochs=5):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(net(a), b)
    loss.backward()
    optimizer.step()
    elastic.report(loss=loss)
"""


@pytest.mark.story
def test_a_program_in_a_terminal_trains_as_alone(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On three GPUs the sums of gradients are those of one process: the weights are equal."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "jupyter_gpushare.cli", "elastic", "--name=together"]
    command += ["--max-gpus=3", "--min-gpus=3", "--memory=8GiB", "--json"]
    command += ["--", "python", str(script), "--lr=0.1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert told.returncode == 0, told.stderr + (Records("together").output.read_text())
    answer = json.loads(told.stdout)
    assert (answer["phase"], answer["step"]) == ("done", 20)
    assert "begins with 3 workers (entry: train)" in told.stderr
    together = torch.load(answer["checkpoint"], weights_only=False)["kept"]["model"]
    monkeypatch.setattr(training, "_training", None)
    monkeypatch.setattr(sys, "argv", [str(script), "--lr=0.1"])
    alone = runpy.run_path(str(script))  # outside of a job it is one process
    for name, held in alone["model"].state_dict().items():
        assert torch.allclose(held, together[name], rtol=0, atol=1e-6), name


# -- where ranks meet ------------------------------------------------------------------------------

#: Seconds; torch begins slowly on a machine that has much else to do.


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting.make()
    yield made
    made.remove()


def test_words_come_as_they_were_said(meeting: Meeting) -> None:
    assert meeting.heard() == Word(0)
    word = Word(3, (4, 1, 9), (2,), gentle=False, ends=True)
    meeting.say(word)
    assert meeting.heard() == word
    meeting.remove()
    assert not meeting.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
def test_another_user_reads_and_writes_nothing_there(meeting: Meeting) -> None:
    assert stat.S_IMODE(meeting.folder.stat().st_mode) == 0o700
    for attempt in (f"cat {meeting.folder}/word", f"echo 1 > {meeting.folder}/word"):
        tried = subprocess.run(["sh", "-c", attempt], capture_output=True, text=True, user=65534)
        assert tried.returncode != 0
        assert "ermission denied" in tried.stderr
    assert meeting.heard() == Word(0)


class OldAgent:
    """What is asked of torch's agent before 2.12, where ``_shutdown`` takes no time-out."""

    def __init__(self) -> None:
        self._pcontext, self.closed = self, []

    def close(self, death_sig: object = None, timeout: int = 30) -> None:
        self.closed.append(timeout)

    def _shutdown(self, death_sig: object = None) -> None:
        self.closed.append("shut down")


@pytest.mark.parametrize(("is_gentle", "seconds"), [(True, 60), (False, 20)])
def test_a_worker_has_its_time_with_older_torches_too(is_gentle: bool, seconds: int) -> None:
    agent, _meeting = member._kinds()
    group = SimpleNamespace(spec=SimpleNamespace(rdzv_handler=SimpleNamespace(is_gentle=is_gentle)))
    old = OldAgent()
    agent._stop_workers(old, group)
    assert old.closed == [seconds, "shut down"]


RANK = """
import hashlib, sys
from pathlib import Path
import torch
from torch import distributed
from jupyter_gpushare.elastic.meeting import Meeting
from jupyter_gpushare.elastic.training import _Training

rank, sent = int(sys.argv[2]), sys.argv[3].encode()
here = _Training(None)
here.store = Meeting(Path(sys.argv[1])).store(1)
distributed.init_process_group("gloo", store=here.store, rank=rank, world_size=2)
if rank == 0:
    here.store.set("state", f"5 {hashlib.sha256(b'right').hexdigest()}")
    distributed.broadcast(torch.frombuffer(bytearray(sent), dtype=torch.uint8), src=0)
else:
    print(here._broadcast(None).decode())
"""


@pytest.mark.story
@pytest.mark.parametrize("sent", ["right", "wrong"])
def test_a_state_that_somebody_changed_is_not_unpickled(meeting: Meeting, sent: str) -> None:
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "JUPYTER_GPUSHARE": "off"}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(meeting.folder), str(rank), sent],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    )
    got, said = second.communicate(timeout=WITHIN)
    first.communicate(timeout=WITHIN)
    if sent == "right":
        assert got == "right\n", said
    else:
        assert got == ""
        assert "Another process took part" in said
