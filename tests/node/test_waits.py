"""Who waits is told why and how long others waited, and a status costs a bounded work."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from support.node import RunningNode, until
from support.policy_world import GIB, World, gpu, plain_config
from support.sheets import status_document

from jupyter_gpushare.ledger.ledger import JSON, Ledger, Record
from jupyter_gpushare.node.views.lately import MOST, WINDOW, Lately
from jupyter_gpushare.node.views.report import report
from jupyter_gpushare.node.views.status import NodeFacts, Sheet
from jupyter_gpushare.node.views.viewer import Viewer
from jupyter_gpushare.policy.books import room
from jupyter_gpushare.policy.decide import waiting
from jupyter_gpushare.policy.words.model import PriorityClass, Quota, Request
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

NOW = 1_700_000_000.0
NOBODY = {"granted": 0, "waited": 0, "median": None, "longest": None}


def tell(lately: Lately, kind: PriorityClass = PriorityClass.INTERACTIVE) -> dict[str, Any]:
    return lately.waits(NOW)[kind.value]


# -- the figures -----------------------------------------------------------------------------


def test_no_more_than_the_newest_are_kept() -> None:
    lately = Lately()
    lately.add(PriorityClass.INTERACTIVE, NOW, 9999.0)
    for _ in range(MOST):
        lately.add(PriorityClass.INTERACTIVE, NOW, 1.0)
    assert tell(lately) == {"granted": MOST, "waited": MOST, "median": 1.0, "longest": 1.0}


grants = st.lists(
    st.tuples(
        st.sampled_from(list(PriorityClass)),
        st.floats(NOW - 2 * WINDOW, NOW),
        st.floats(-10, 1e6),
    ),
    max_size=40,
)


@given(grants)
@example([(PriorityClass.BATCH, NOW - WINDOW - back, 2.0) for back in (0.0, 0.001)])
def test_the_figures_are_those_of_the_window(
    given_: list[tuple[PriorityClass, float, float]],
) -> None:
    lately = Lately()
    for kind, granted, waited in given_:
        lately.add(kind, granted, waited)
    for kind in PriorityClass:
        in_window = [w for k, at, w in given_ if k is kind and at >= NOW - WINDOW]
        waited = [w for w in in_window if w > 0]
        assert tell(lately, kind) == {
            "granted": len(in_window),
            "waited": len(waited),
            "median": median(waited) if waited else None,
            "longest": max(waited) if waited else None,
        }


# -- from the ledger's records ---------------------------------------------------------------


def record(kind: str, at: float, wall: float, lease: str | None, **data: JSON) -> Record:
    return Record(kind, at, wall, "alice", lease, data)


def queued(lease: str, at: float, wall: float, kind: str = "interactive") -> Record:
    process = {"boot_id": "boot", "pid": 1, "start_time": 1}
    task: JSON = {"process": process, "name": "a.ipynb", "kind": "kernel"}
    request: JSON = {"gpus": 1, "memory": None, "priority_class": kind, "request_id": None}
    return record("LeaseQueued", at, wall, lease, task=task, request=request, order=1, urgent_at=1)


def granted(lease: str, at: float, wall: float) -> Record:
    return record("LeaseGranted", at, wall, lease, gpus=[], activity="busy")


def test_the_ledger_refills_them() -> None:
    lately = Lately()
    lately.refill(
        [
            granted("asked before the oldest record", 1.0, NOW - 90),
            queued("a", 10.0, NOW - 80),
            queued("b", 11.0, NOW - 79, "batch"),
            granted("a", 10.0, NOW - 80),
            queued("gave up", 12.0, NOW - 78),
            record("LeaseEnded", 13.0, NOW - 77, "gave up", reason="cancelled", detail=""),
            record("GpuFound", 14.0, NOW - 76, None, gpu={}),
            granted("b", 41.0, NOW - 49),
        ]
    )
    assert tell(lately) == {**NOBODY, "granted": 1}
    waited = {"granted": 1, "waited": 1, "median": 30.0, "longest": 30.0}
    assert tell(lately, PriorityClass.BATCH) == waited


def test_boot_time_that_began_anew_makes_nobodys_wait_negative_or_long() -> None:
    lately = Lately()
    lately.refill(
        [
            queued("lost in the crash", 50_000.0, NOW - 300),
            record("BootSeen", 20.0, NOW - 200, None, boot_id="boot-2"),
            record("LeaseEnded", 20.0, NOW - 200, "lost in the crash", reason="rebooted"),
            queued("b", 30.0, NOW - 190),
            granted("b", 33.0, NOW - 187),
            # Even a ledger that has it so must not make a wait of minus half a day.
            granted("lost in the crash", 40.0, NOW - 180),
        ]
    )
    assert tell(lately)["longest"] == 3.0
    assert tell(lately)["waited"] == 1


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"request": None},
        {"request": "much"},
        {"request": {}},
        {"request": {"priority_class": "royal"}},
        {"request": {"priority_class": ["batch"]}},
    ],
    ids=str,
)
def test_a_record_that_nobody_understands_keeps_nothing_from_starting(
    data: dict[str, JSON],
) -> None:
    """History may be of a release with other words; the figures are only for people."""
    lately = Lately()
    lately.refill(
        [
            record("LeaseQueued", 1.0, NOW - 9, "odd", **data),
            granted("odd", 2.0, NOW - 8),
            queued("a", 3.0, NOW - 7),
            granted("a", 5.0, NOW - 5),
        ]
    )
    assert tell(lately) == {"granted": 1, "waited": 1, "median": 2.0, "longest": 2.0}


# -- a real node manager ---------------------------------------------------------------------


PEOPLE = ("alice", "bob", "root")


def test_a_wait_is_told_and_is_not_forgotten_in_a_crash(tmp_path: Path) -> None:
    config = "c.Policy.max_tasks_per_gpu = 1\n"
    with RunningNode(tmp_path, simulate="1x24GiB", config=config, people=PEOPLE) as node:
        with node.client("alice") as alice, node.client("bob") as bob:
            held = alice.request(name="first")
            waiting = bob.ask(name="second")
            place = bob.wait_notice(Notice.QUEUED)
            assert place["position"] == 1
            # The same words in the notification and in the status.
            told = {key: place[key] for key in ("reason", "message", "budget")}
            assert told.items() <= queues(node)[0][0].items()
            mine, theirs, all_ = queues(node)
            assert [row["ahead"] for row in mine] == [{"interactive": 0, "batch": 0}]
            said = "You asked for a whole GPU (24 GiB). No GPU is free for you now."
            assert mine[0]["message"].startswith(said)
            assert mine[0]["outlook"] == place["outlook"]
            assert mine[0]["outlook"] == {"estimate": None, "idle": None, "idle_after": 1800.0}
            assert theirs[0]["outlook"] is None
            assert mine[0]["reason"] == "no_resources"
            assert theirs[0]["reason"] is theirs[0]["message"] is None
            assert all_[0]["message"] == mine[0]["message"]
            # Time passes, for a person and for the clock of the node manager.
            until(lambda: queues(node)[0][0]["waiting"] > 0.2, "bob has waited a little")
            alice.call(Method.RELEASE, lease=held["lease"])
            bob.wait(waiting)
            before = waits(node)
            assert before["interactive"]["granted"] == 2
            assert before["interactive"]["waited"] == 1
            waited = before["interactive"]["longest"]
            assert waited == before["interactive"]["median"]
            assert 0.2 < waited < 60
            assert before["batch"] == NOBODY
        node.restart()
        after = waits(node)
        assert after["interactive"].pop("longest") == pytest.approx(waited)
        assert after["interactive"].pop("median") == pytest.approx(waited)
        assert after["interactive"] == {"granted": 2, "waited": 1}


def test_who_shares_a_gpu_with_oneself_is_told_with_what(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path, simulate="2x24GiB", people=PEOPLE) as node,
        node.client("alice") as alice,
        node.client("bob") as bob,
    ):
        first = alice.request(name="first.ipynb", gpus=2)
        assert [gpu["index"] for gpu in first["gpus"]] == [0, 1]
        assert [gpu["shared_with"] for gpu in first["gpus"]] == [[], []]
        second = alice.request(name="second.ipynb", memory=4 * GIB)
        assert [gpu["shared_with"] for gpu in second["gpus"]] == [["first.ipynb"]]
        waiting = bob.ask(name="others")
        alice.call(Method.RELEASE, lease=first["lease"])
        alice.call(Method.RELEASE, lease=second["lease"])
        assert bob.wait(waiting)["gpus"][0]["shared_with"] == []


def waits(node: RunningNode) -> dict[str, Any]:
    told = node.status()["waits"]
    with node.client("alice") as client:
        assert client.call(Method.STATUS)["waits"] == told, "it is the same for everybody"
    return told


def queues(node: RunningNode) -> list[Any]:
    """The queue as bob, alice and an administrator see it."""
    seen = []
    for name in ("bob", "alice", "root"):
        with node.client(name) as client:
            seen.append(client.call(Method.STATUS)["queue"])
    return seen


def test_damaged_history_costs_the_figures_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with closing(Ledger.open(path, history=1e9, wall=NOW)) as ledger:
        ledger.append([queued("a", 1.0, NOW)])
        ledger.write_snapshot([])
    with closing(sqlite3.connect(path)) as connection, connection:
        # Rot that no check of SQLite's sees, in what the snapshot stands for.
        assert connection.execute("UPDATE records SET data = '{\"request\": '").rowcount == 1
    with RunningNode(tmp_path, ledger=path) as node, node.client() as client:
        assert "could not be read" in node.story()
        client.request()
        assert client.call(Method.STATUS)["waits"]["interactive"] == {**NOBODY, "granted": 1}
        refused = client.refused(Method.HISTORY)
        assert "history is damaged" in refused.message
        assert refused.reason is Reason.UNAVAILABLE


# -- the queue in a status ---------------------------------------------------------------------

FACTS = NodeFacts("node", "0", True, started=NOW, now=NOW, boot=NOW)


def crowded(waiting: int, people: int = 6) -> World:
    """One GPU, held, and ``waiting`` requests of so many people, batch and interactive by turns."""
    world = World(config=plain_config(max_tasks_per_gpu=1)).start([gpu(0)], Quota(1, None))
    kinds = (PriorityClass.INTERACTIVE, PriorityClass.BATCH)
    for number in range(waiting + 1):
        who = f"person-{number % people}" if number else "holder"
        world.request(who, number + 1, Request(1, None, kinds[number % 2]))
    assert len(world.state.queue.waiting) == waiting
    return world


def queue_of(world: World, name: str, *, admin: bool = False) -> list[dict[str, Any]]:
    sheet = Sheet(world.state, FACTS, world.config, {}, Lately())
    return status_document(sheet, Viewer(name, admin))["queue"]


def test_everybody_sees_how_many_are_ahead_and_only_the_own_reasons() -> None:
    world = crowded(24)
    everything = queue_of(world, "root", admin=True)
    for name in ("person-0", "person-1", "person-2"):
        queue = queue_of(world, name)
        assert len(queue) == 24
        assert any(row["mine"] for row in queue)
        for row, full in zip(queue, everything, strict=True):
            assert row["mine"] == (full["environment"] == name)
            known = full if row["mine"] else {**full, "environment": None, "lease": None}
            known = {**known, "mine": row["mine"]}
            secrets = {} if row["mine"] else dict.fromkeys(("reason", "message", "outlook"))
            said, _ = json.dumps(row.pop("says")), known.pop("says")
            assert row == known | secrets
            assert row["mine"] or full["environment"] not in said
            assert row["mine"] or '"why' not in said
    ahead = {"interactive": 0, "batch": 0}
    for position, row in enumerate(everything, start=1):
        assert row["position"] == position
        assert row["ahead"] == ahead
        assert sum(ahead.values()) == position - 1
        assert row["message"]
        assert row["reason"] == "no_resources"
        if position > 2:
            assert f" {position - 1} requests are ahead." in row["message"]
        ahead[row["priority_class"]] += 1
    # Interactive requests are served first: a batch one has all of them ahead.
    assert everything[-1]["ahead"] == {"interactive": 12, "batch": 11}


def test_the_work_for_a_status_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = crowded(300)
    calls = 0
    real = room.place

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments, **named)

    monkeypatch.setattr(room, "place", counted)
    queue = queue_of(world, "root", admin=True)
    assert calls == waiting.MOST_EXPLAINED
    assert len(queue) == 300
    # Only for those who are served next it is worked out what is free; all are told why.
    free = [row["position"] for row in queue if "No GPU is free" in row["message"]]
    assert free == list(range(1, calls + 1))
    assert queue[-1]["message"].startswith("You asked for 1 GPU. 299 requests are ahead.")
    calls = 0
    mine = [row for row in queue_of(world, "person-3") if row["mine"]]
    assert len(mine) == 50
    assert calls == sum(row["position"] <= waiting.MOST_EXPLAINED for row in mine)
    # Whoever looks, the words are the same.
    assert [row["message"] for row in mine] == [
        row["message"] for row in queue if row["environment"] == "person-3"
    ]
    calls = 0
    queue_of(world, "stranger")
    assert calls == 0


def the_queue(world: World) -> object:
    return queue_of(world, "root", admin=True)


def for_the_pool(world: World) -> object:
    return report(world.state, world.config, "a", "1", world.at, {}, (), [])


@pytest.mark.parametrize(("shows", "people"), [(the_queue, 6), (for_the_pool, 1000)])
def test_the_cost_of_a_status_grows_with_the_queue_and_no_faster(
    shows: Callable[[World], object], people: int
) -> None:
    """Counted, not timed: Python's function calls for 180 and for 360 waiting requests."""

    def cost(waiting: int) -> int:
        world = crowded(waiting, people)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            shows(world)
        finally:
            sys.setprofile(before)
        return calls

    small, large = cost(180), cost(360)
    assert small < large < 2.2 * small
