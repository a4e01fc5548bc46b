"""What runs needed is remembered: bounded, over restarts, and of nobody else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, Puppet, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on

from jupyter_gpushare.ledger import runs as table
from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.ledger.runs import Run
from jupyter_gpushare.node.wire import runs as memory
from jupyter_gpushare.node.wire.runs import Known, estimate_of, parts_of
from jupyter_gpushare.policy.words.model import Bytes, Estimate, Parts
from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Policy.reserve = "estimate"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\n"
    'c.Quotas.default = {"gpus": 2}\n'
)


def run(number: int, who: str = "alice", code: str = "a", gib: int = 8) -> Run:
    return Run(f"L{number}", who, code, 1, gib * GIB)


def test_an_estimate_is_enough_for_nine_of_ten() -> None:
    assert estimate_of([]) is None
    assert estimate_of([8]) is None, "one run is no rule"
    assert estimate_of([4, 8]) == Estimate(Bytes(8), 2)
    assert estimate_of(range(1, 11)) == Estimate(Bytes(9), 10)
    assert estimate_of(range(1, 21)) == Estimate(Bytes(18), 20)


def test_parts_are_expected_after_two_runs_that_told_them() -> None:
    told = [replace(run(n), persistent=n * GIB, temporary=(9 - n) * GIB) for n in (2, 3)]
    assert parts_of([]) is None
    assert parts_of([run(1), told[0]]) is None, "one run is no rule"
    assert parts_of([run(1), *told]) == Parts(Bytes(3 * GIB), Bytes(7 * GIB))


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
    again = Ledger.open(tmp_path / "ledger.sqlite", history=1e6, wall=1.7e9)
    assert len(again.runs()) == 7
    again.close()


class Place:
    """A node with two GPUs of 24 GiB; people's tasks use them."""

    def __init__(self, world: NvmlWorld, gpus: list[str], node: RunningNode) -> None:
        self.world, self.gpus, self.node = world, gpus, node

    def recorded(self) -> list[int]:
        with sqlite3.connect(f"file:{self.node.ledger}?mode=ro", uri=True) as ledger:
            rows = ledger.execute("SELECT memory FROM runs ORDER BY seq").fetchall()
            return [int(row[0]) // GIB for row in rows]

    @contextmanager
    def asked(self, who: str, **more: Any) -> Iterator[tuple[Puppet, NodeClient, dict[str, Any]]]:
        with Puppet() as puppet, puppet.client(self.node.socket, who) as client:
            granted = client.request(**{"code": "train", "live": True, **more})
            yield puppet, client, granted

    def run(self, who: str, gib: int, parts: tuple[int, int] = (0, 0), **more: Any) -> None:
        """A whole run: it asks, uses memory, tells its ``parts``, its cell ends, and it ends."""
        before = len(self.recorded())
        with self.asked(who, **more) as (puppet, client, granted):
            gpu = granted["gpus"][0]["uuid"]
            self.world.add_process(gpu, puppet.pid, gib * GIB)
            lease = granted["lease"]
            kept, step = (size * GIB for size in parts)
            figures = [{"uuid": gpu, "persistent": kept, "temporary": step}] if kept else []
            for steps in (1, 2):
                client.call(Method.MEMORY, lease=lease, figures=figures, steps=steps)
            until(lambda: own(client)["gpus"][0]["measured"] == gib * GIB, "it is measured")
            client.call(Method.ACTIVITY, lease=lease, state="idle")
            until(lambda: self.recorded()[before:] == [gib], "its cell ended")
            client.call(Method.RELEASE, lease=lease)
        until(lambda: not self.leases(), "its memory is free")

    def leases(self) -> list[Any]:
        with self.node.client("root") as root:
            return list(root.call(Method.STATUS)["leases"])


def own(client: NodeClient) -> dict[str, Any]:
    return next(dict(x) for x in client.call(Method.STATUS)["leases"] if x["mine"])


@pytest.fixture
def place(nvml_world: NvmlWorld, tmp_path: Path) -> Iterator[Place]:
    with node_on(nvml_world, tmp_path, CONFIG, "alice", "bob", "root", gpus=2) as (node, gpus):
        yield Place(nvml_world, gpus, node)


def memory_of(place: Place, who: str, **more: Any) -> float:
    """GiB that a request is granted on its first GPU, and is given back at once."""
    with place.asked(who, **more) as (_puppet, client, granted):
        client.call(Method.RELEASE, lease=granted["lease"])
        return float(granted["gpus"][0]["memory"] / GIB)


def test_two_own_runs_of_the_same_code_make_an_estimate_that_survives(place: Place) -> None:
    place.run("alice", 6)
    assert memory_of(place, "alice") == 24, "one run is no rule"
    place.run("alice", 8)
    place.run("bob", 2)
    assert memory_of(place, "alice") == 10, "8 GiB and a quarter"
    assert memory_of(place, "alice", code="another") == 24
    assert memory_of(place, "alice", gpus=2) == 24, "on two GPUs it was never measured"
    assert memory_of(place, "alice", reserve="whole") == 24
    assert memory_of(place, "alice", memory=3 * GIB) == 3
    assert memory_of(place, "alice", live=False) == 24
    assert memory_of(place, "bob") == 24, "another's runs shrink nobody's reservation"
    place.node.kill9()
    place.node.start()
    assert memory_of(place, "alice") == 10


def test_what_lives_yet_is_no_run(place: Place) -> None:
    place.run("alice", 8)
    with place.asked("alice") as (puppet, client, granted):
        place.world.add_process(granted["gpus"][0]["uuid"], puppet.pid, GIB)
        until(lambda: own(client)["gpus"][0]["measured"] == GIB, "it is measured")
        client.call(Method.ACTIVITY, lease=granted["lease"], state="idle")
        until(lambda: place.recorded() == [8, 1], "its cell ended")
        assert memory_of(place, "alice", gpus=1) == 24


def parts_at_first(place: Place, who: str, **more: Any) -> tuple[float | None, float | None]:
    """GiB of the parts of a task that has just been granted its GPU, and has computed nothing."""
    with place.asked(who, **more) as (_puppet, client, granted):
        gpu = own(client)["gpus"][0]
        client.call(Method.RELEASE, lease=granted["lease"])
        kept, step = (None if gpu[name] is None else gpu[name] / GIB for name in PARTS)
        return kept, step


PARTS = ("persistent", "temporary")


def test_the_parts_of_two_own_runs_are_known_at_the_third(place: Place) -> None:
    place.run("alice", 6, parts=(2, 3))
    assert parts_at_first(place, "alice") == (None, None), "one run is no rule"
    place.run("alice", 6, parts=(3, 2))
    place.run("bob", 6, parts=(1, 1))
    assert parts_at_first(place, "alice") == (3, 3)
    assert parts_at_first(place, "alice", memory=8 * GIB) == (3, 3)
    named = {"persistent": GIB, "temporary": GIB}
    assert parts_at_first(place, "alice", **named) == (1, 1), "what is named goes before it"
    assert parts_at_first(place, "alice", code="another") == (None, None)
    assert parts_at_first(place, "alice", gpus=2) == (None, None)
    assert parts_at_first(place, "bob") == (None, None), "another's runs say nothing of his"
    assert memory_of(place, "alice", reserve="whole") == 24, "they shrink no reservation"
    place.node.kill9()
    place.node.start()
    assert parts_at_first(place, "alice") == (3, 3)
