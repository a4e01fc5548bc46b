"""What a model needs is told by kind of GPU, reserved, measured, and remembered of nobody else.

What a run of some code needed is remembered too: bounded, and over restarts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, Puppet, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on
from support.predictor import PLANT

from jupyter_gpushare.ledger import runs as table
from jupyter_gpushare.ledger.learned import Learned
from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.ledger.runs import Run
from jupyter_gpushare.node.wire import runs as memory
from jupyter_gpushare.node.wire.runs import Known, estimate_of, parts_of
from jupyter_gpushare.policy.words.model import Estimate, Parts
from jupyter_gpushare.predict.features import Features, Hardware
from jupyter_gpushare.predict.records import RECORDS_FILE, Record, read_lines
from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Policy.reserve = "estimate"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\nc.NodeManagerApp.keep_runs = True\n"
    'c.Quotas.default = {"gpus": 2}\n' + PLANT
)


def asks(gib: float, batch: int = 8, **more: Any) -> dict[str, Any]:
    """The parameters of a call about a model with so many GiB of tensors."""
    operation = {"kind": "MatMul", "largest": 64, "count": 1, "flops": 1e18, "bytes": 10}
    told = {"operations": [operation], "batch": batch, "iterations": 100, "inputs": 64}
    return {
        "task": {"name": "a.ipynb", "kind": "kernel", "kernel_id": "k1", "path": "a.ipynb"},
        "framework": "torch",
        "peak": int(gib * GIB),
        "code": "train",
        **told,
        **more,
    }


class Place:
    """A node with GPUs of 24 GiB; people's tasks use them."""

    def __init__(self, world: NvmlWorld, node: RunningNode, gpus: list[str]) -> None:
        self.world, self.node, self.gpus = world, node, gpus

    @contextmanager
    def person(self, who: str) -> Iterator[tuple[Puppet, NodeClient]]:
        with Puppet() as puppet, puppet.client(self.node.socket, who) as client:
            yield puppet, client

    @contextmanager
    def asked(self, who: str, **more: Any) -> Iterator[tuple[Puppet, NodeClient, dict[str, Any]]]:
        with self.person(who) as (puppet, client):
            yield puppet, client, request(client, **more)

    def runs(self) -> list[tuple[int, bool]]:
        """The GiB of each run that is recorded, and whether its model is known."""
        with sqlite3.connect(f"file:{self.node.ledger}?mode=ro", uri=True) as ledger:
            row = "SELECT memory, shapes IS NOT NULL FROM runs ORDER BY seq"
            return [(int(memory) // GIB, bool(shapes)) for memory, shapes in ledger.execute(row)]

    def ends(self) -> None:
        until(lambda: not self.node.status()["leases"], "its memory is free")


@pytest.fixture
def place(request: Any, nvml_world: NvmlWorld, tmp_path: Path) -> Iterator[Place]:
    gpus = getattr(request, "param", 1)
    with node_on(nvml_world, tmp_path, CONFIG, "alice", "bob", "root", gpus=gpus) as node:
        yield Place(nvml_world, *node)


two_gpus = pytest.mark.parametrize("place", [2], indirect=True)


def kind_of(client: NodeClient, **told: Any) -> dict[str, Any]:
    (kind,) = client.call(Method.PREDICT, **told)["kinds"]
    return dict(kind)


def own(client: NodeClient) -> dict[str, Any]:
    return next(dict(x) for x in client.call(Method.STATUS)["leases"] if x["mine"])


def request(client: NodeClient, **more: Any) -> dict[str, Any]:
    return dict(client.request(**{"code": "train", "live": True, **more}))


def test_each_kind_is_told_with_when_it_would_start(place: Place) -> None:
    with place.person("alice") as (_, alice), place.person("bob") as (_, bob):
        kind = kind_of(alice, **asks(10))
        assert (kind["memory"], kind["memory_p90"]) == (10 * GIB, 12 * GIB)
        assert (kind["seconds"], kind["seconds_p90"], kind["utilisation"]) == (50.0, 100.0, 50)
        assert (kind["basis"], kind["gpus"], kind["starts"]) == ("predicted", 1, "now")
        assert kind_of(alice, **asks(30))["starts"] == "too_large"
        request(bob, memory=16 * GIB)
        kind = kind_of(alice, **asks(10))
        assert (kind["starts"], kind["wait"]) == ("waits", None), "nobody can tell how long"
        assert kind_of(alice, **asks(2))["starts"] == "now"
        shown = alice.call(Method.STATUS)["predictions"]
        assert [(one["kernel_id"], one["batch"]) for one in shown] == [("k1", 8)], "the newest one"
        assert "predictions" not in bob.call(Method.STATUS), "nobody else's"
        strange = {**asks(1)["operations"][0], "kind": "?"}
        refused = alice.refused(Method.PREDICT, **asks(1, operations=[strange]))
        assert "could not be predicted" in refused.message


def finish(place: Place, shown: list[dict[str, Any]], seconds: float | None = None) -> None:
    """A whole run of a task that asked about ``shown``: it computes in 4 GiB, and ends.

    If its steps took so many ``seconds``, it tells that, and its GPU works.
    """
    before = len(place.runs())
    with place.person("alice") as (puppet, client):
        for told in shown:
            kind_of(client, **told)
        granted = request(client)
        place.world.add_process(place.gpus[0], puppet.pid, 4 * GIB)
        lease = granted["lease"]
        if seconds is None:
            figures = [{"uuid": place.gpus[0], "persistent": GIB, "temporary": GIB}]
            client.call(Method.MEMORY, lease=lease, figures=figures, steps=2)
        else:
            client.call(Method.PROGRESS, lease=lease, done=3, total=None, seconds=seconds)
            place.world.set_utilisation(place.gpus[0], 70)
            until(lambda: client.call(Method.STATUS)["gpus"][0]["utilisation"] == 0.7, "it works")
        until(lambda: own(client)["gpus"][0]["measured"] == 4 * GIB, "it is measured")
        client.call(Method.RELEASE, lease=lease)
        until(lambda: len(place.runs()) > before, "the run is recorded")
    place.ends()


def reserved(place: Place, **told: Any) -> float:
    """GiB that a request of a new task reserves that asked about this model."""
    with place.person("alice") as (_, client):
        kind_of(client, **told)
        granted = request(client, code="edited")
        client.call(Method.RELEASE, lease=granted["lease"])
        return float(granted["gpus"][0]["memory"] / GIB)


def test_one_call_of_a_process_with_many_leases_makes_one_command(place: Place) -> None:
    """Two hundred of them made two hundred, which others waited for and nobody paid."""
    with place.person("alice") as (_, client):
        granted = [client.request() for _ in range(5)]
        kind_of(client, **asks(10))
        events = client.call(Method.HISTORY, limit=50)["events"]
        foreseen = [event["lease"] for event in events if event["kind"] == "TaskForeseen"]
        assert foreseen == [granted[-1]["lease"]], "the newest is what the model runs on"


def test_what_was_measured_replaces_what_is_predicted(place: Place) -> None:
    finish(place, [asks(10)])
    assert place.runs() == [(4, True)]
    assert reserved(place, **asks(10)) == 5, "of the same model and batch, also in another cell"
    assert reserved(place, **asks(10, batch=16)) == 12, "of another batch nothing is measured"
    place.node.restart()
    assert reserved(place, **asks(10, iterations=5)) == 5, "it is remembered"
    with place.person("alice") as (_, alice), place.person("bob") as (_, bob):
        assert kind_of(alice, **asks(10))["memory"] == 4 * GIB
        assert kind_of(bob, **asks(10))["memory"] == 10 * GIB, "another's runs are not his"


def test_times_and_work_are_measured_told_and_kept_for_training(place: Place) -> None:
    finish(place, [asks(10)], 2.0)
    finish(place, [asks(10)], 4.0)
    with place.person("alice") as (_, client):
        kind = kind_of(client, **asks(10, iterations=10))
        assert (kind["seconds"], kind["seconds_p90"]) == (30.0, 40.0), "the middle, and the most"
        assert (kind["basis"], round(kind["error"], 2)) == ("measured", 0.33)
        assert 1 <= kind["utilisation"] <= 70
    file = place.node.ledger.with_name(RECORDS_FILE)
    assert file.stat().st_mode & 0o077 == 0
    until(lambda: len(file.read_text().splitlines()) == 2, "both runs are kept")
    one, two = read_lines(file.read_text().splitlines())
    assert (one.seconds, two.seconds, one.memory) == (2.0, 4.0, 4 * GIB)
    assert one.family == two.family
    assert one.hardware.name == "Stub GPU"
    for name in ("alice", "ipynb", '"train"'):
        assert name not in one.line()


def test_the_file_of_runs_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    features = Features("torch", (), 1, 1, 1, 1, training=True)
    hardware = Hardware("A100", 8.0, 40 * GIB, 6912)
    record = Record("f", features, hardware, 1.0, 1, 50.0)
    most = 10 * (len(record.line()) + 10)
    kept = Learned(tmp_path / "runs.jsonl", most)
    for number in range(100):
        kept.add(replace(record, memory=number))
        assert (tmp_path / "runs.jsonl").stat().st_size <= most
    left = [one.memory for one in read_lines((tmp_path / "runs.jsonl").read_text().splitlines())]
    assert left == list(range(left[0], 100))
    assert len(left) >= 4


def test_a_run_of_one_of_several_models_is_of_none(place: Place) -> None:
    finish(place, [asks(10), asks(11)])
    assert place.runs() == [(4, False)]


# -- what runs of some code needed ----------------------------------------------------------


def run(number: int, who: str = "alice", code: str = "a", gib: int = 8) -> Run:
    return Run(f"L{number}", who, code, 1, gib * GIB)


def test_an_estimate_is_enough_for_nine_of_ten() -> None:
    assert estimate_of([]) is None
    assert estimate_of([8]) is None, "one run is no rule"
    assert estimate_of([4, 8]) == Estimate(8, 2)
    assert estimate_of(range(1, 11)) == Estimate(9, 10)
    assert estimate_of(range(1, 21)) == Estimate(18, 20)


def test_parts_are_expected_after_two_runs_that_told_them() -> None:
    told = [replace(run(n), persistent=n * GIB, temporary=(9 - n) * GIB) for n in (2, 3)]
    assert parts_of([]) is None
    assert parts_of([run(1), told[0]]) is None, "one run is no rule"
    assert parts_of([run(1), *told]) == Parts(3 * GIB, 7 * GIB)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table, memory):
        monkeypatch.setattr(module, "OF_CODE", 3)
        monkeypatch.setattr(module, "OF_ENVIRONMENT", 5)
        monkeypatch.setattr(module, "IN_ALL", 7)


@pytest.mark.usefixtures("small")
def test_the_oldest_are_forgotten_and_the_ledger_agrees(tmp_path: Path) -> None:
    """Of each code, of each environment, and in all."""
    ledger = Ledger.open(tmp_path / "ledger.sqlite", history=1e6, wall=1.7e9)
    known = Known()

    def left(*more: Run) -> list[str]:
        ledger.record_runs(more)
        for one in more:
            known.put(one)
        kept = ledger.runs()
        for who, code in {(one.environment, one.code) for one in kept}:
            mine = [one for one in kept if (one.environment, one.code) == (who, code)]
            assert tuple(mine) == known.of(who, code)
        return [one.lease for one in kept]

    assert left(*(run(n) for n in range(4))) == ["L1", "L2", "L3"]
    assert left(run(2), replace(run(2), persistent=GIB, temporary=2 * GIB)) == ["L1", "L3", "L2"]
    assert left(run(2, gib=9)) == ["L1", "L3", "L2"], "it grew, and is the newest"
    assert left(*(run(n, code="b") for n in (4, 5, 6))) == ["L3", "L2", "L4", "L5", "L6"]
    assert left(*(run(n, "bob") for n in (7, 8, 9))) == ["L2", "L4", "L5", "L6", "L7", "L8", "L9"]
    assert known.of("alice", "a") == (run(2, gib=9),)
    assert known.of("carol", "a") == ()
    ledger.close()
    with closing(Ledger.open(tmp_path / "ledger.sqlite", history=1e6, wall=1.7e9)) as again:
        assert len(again.runs()) == 7


def whole_run(place: Place, who: str, gib: int, parts: tuple[int, int] = (0, 0)) -> None:
    """It asks, uses memory, tells its ``parts``, its cell ends, and it ends."""
    before = len(place.runs())
    with place.asked(who) as (puppet, client, granted):
        gpu, lease = granted["gpus"][0]["uuid"], granted["lease"]
        place.world.add_process(gpu, puppet.pid, gib * GIB)
        kept, step = (size * GIB for size in parts)
        figures = [{"uuid": gpu, "persistent": kept, "temporary": step}] if kept else []
        for steps in (1, 2):
            client.call(Method.MEMORY, lease=lease, figures=figures, steps=steps)
        until(lambda: own(client)["gpus"][0]["measured"] == gib * GIB, "it is measured")
        client.call(Method.ACTIVITY, lease=lease, state="idle")
        until(lambda: place.runs()[before:] == [(gib, False)], "its cell ended")
        client.call(Method.RELEASE, lease=lease)
    place.ends()


def memory_of(place: Place, who: str, **more: Any) -> float:
    """GiB that a request is granted on its first GPU, and is given back at once."""
    with place.asked(who, **more) as (_puppet, client, granted):
        client.call(Method.RELEASE, lease=granted["lease"])
        return float(granted["gpus"][0]["memory"] / GIB)


def parts_at_first(place: Place, who: str, **more: Any) -> tuple[float | None, ...]:
    """GiB of the parts of a task that has just been granted its GPU, and has computed nothing."""
    with place.asked(who, **more) as (_puppet, client, granted):
        gpu = own(client)["gpus"][0]
        client.call(Method.RELEASE, lease=granted["lease"])
        return tuple(gpu[name] and gpu[name] / GIB for name in ("persistent", "temporary"))


@two_gpus
def test_two_own_runs_of_the_same_code_make_an_estimate_that_survives(place: Place) -> None:
    unknown = (None, None)
    whole_run(place, "alice", 6, parts=(2, 3))
    assert memory_of(place, "alice") == 24, "one run is no rule"
    assert parts_at_first(place, "alice") == unknown, "one run is no rule"
    whole_run(place, "alice", 8, parts=(3, 2))
    whole_run(place, "bob", 2, parts=(1, 1))
    assert memory_of(place, "alice") == 10, "8 GiB and a quarter"
    assert parts_at_first(place, "alice") == (3, 3)
    for more, gib, parts in (
        ({"code": "another"}, 24, unknown),
        ({"gpus": 2}, 24, unknown),  # on two GPUs it was never measured
        ({"reserve": "whole"}, 24, (3, 3)),
        ({"memory": 3 * GIB}, 3, (3, 3)),
        ({"live": False}, 24, (3, 3)),
        ({"persistent": GIB, "temporary": GIB}, 2.5, (1, 1)),  # what is named goes before it
    ):
        found = memory_of(place, "alice", **more), parts_at_first(place, "alice", **more)
        assert found == (gib, parts), more
    assert memory_of(place, "bob") == 24, "another's runs shrink nobody's reservation"
    assert parts_at_first(place, "bob") == unknown, "another's runs say nothing of his"
    place.node.restart()
    assert (memory_of(place, "alice"), parts_at_first(place, "alice")) == (10, (3, 3))


@two_gpus
def test_what_lives_yet_is_no_run(place: Place) -> None:
    whole_run(place, "alice", 8)
    with place.asked("alice") as (puppet, client, granted):
        place.world.add_process(granted["gpus"][0]["uuid"], puppet.pid, GIB)
        until(lambda: own(client)["gpus"][0]["measured"] == GIB, "it is measured")
        client.call(Method.ACTIVITY, lease=granted["lease"], state="idle")
        until(lambda: place.runs()[1:] == [(1, False)], "its cell ended")
        assert memory_of(place, "alice", gpus=1) == 24
