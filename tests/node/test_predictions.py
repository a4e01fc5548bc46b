"""What a model needs is told by kind of GPU, reserved by the next request, and then measured."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, Puppet, RemoteError, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on
from support.predictor import PLANT

from jupyter_gpushare.ledger.learned import Learned
from jupyter_gpushare.predict.features import Features, Hardware
from jupyter_gpushare.predict.records import RECORDS_FILE, Record, read_lines
from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Policy.reserve = "estimate"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\nc.NodeManagerApp.keep_runs = True\n"
    'c.Quotas.default = {"gpus": 1}\n' + PLANT
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
    """A node with a GPU of 24 GiB; people's tasks use it."""

    def __init__(self, world: NvmlWorld, gpu: str, node: RunningNode) -> None:
        self.world, self.gpu, self.node = world, gpu, node

    @contextmanager
    def person(self, who: str) -> Iterator[tuple[Puppet, NodeClient]]:
        with Puppet() as puppet, puppet.client(self.node.socket, who) as client:
            yield puppet, client

    def runs(self) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.node.ledger}?mode=ro", uri=True) as ledger:
            row = "SELECT memory, shapes IS NOT NULL, kind, seconds FROM runs ORDER BY seq"
            return ledger.execute(row).fetchall()


@pytest.fixture
def place(nvml_world: NvmlWorld, tmp_path: Path) -> Iterator[Place]:
    with node_on(nvml_world, tmp_path, CONFIG, "alice", "bob", "root") as (node, (gpu,)):
        yield Place(nvml_world, gpu, node)


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
        with pytest.raises(RemoteError, match="could not be predicted"):
            alice.call(Method.PREDICT, **asks(1, operations=[strange]))


def finish(place: Place, shown: list[dict[str, Any]], seconds: float | None = None) -> None:
    """A whole run of a task that asked about ``shown``: it computes in 4 GiB, and ends.

    If its steps took so many ``seconds``, it tells that, and its GPU works.
    """
    before = len(place.runs())
    with place.person("alice") as (puppet, client):
        for told in shown:
            kind_of(client, **told)
        granted = request(client)
        place.world.add_process(place.gpu, puppet.pid, 4 * GIB)
        lease = granted["lease"]
        if seconds is None:
            figures = [{"uuid": place.gpu, "persistent": GIB, "temporary": GIB}]
            client.call(Method.MEMORY, lease=lease, figures=figures, steps=2)
        else:
            client.call(Method.PROGRESS, lease=lease, done=3, total=None, seconds=seconds)
            place.world.set_utilisation(place.gpu, 70)
            until(lambda: client.call(Method.STATUS)["gpus"][0]["utilisation"] == 0.7, "it works")
        until(lambda: own(client)["gpus"][0]["measured"] == 4 * GIB, "it is measured")
        client.call(Method.RELEASE, lease=lease)
        until(lambda: len(place.runs()) > before, "the run is recorded")
    with place.node.client("root") as root:
        until(lambda: not root.call(Method.STATUS)["leases"], "its memory is free")


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
    assert place.runs()[0][:2] == (4 * GIB, 1)
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
    assert place.runs()[0][:2] == (4 * GIB, 0)
