"""Statuses of a large node are made for many at once, and hold nobody else up."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.policy_world import World, gpu, plain_config
from support.sheets import status_document

from jupyter_gpushare.client.words.render import show_status
from jupyter_gpushare.console.node import whole_status
from jupyter_gpushare.node.views import board, status
from jupyter_gpushare.node.views.encoding import encoded, joined, members
from jupyter_gpushare.node.views.lately import Lately
from jupyter_gpushare.node.views.status import NodeFacts, Sheet
from jupyter_gpushare.node.views.viewer import Viewer
from jupyter_gpushare.policy.words.model import Quota, Request
from jupyter_gpushare.protocol.framing import Encoded, encode
from jupyter_gpushare.protocol.messages import Method

NOW = 1_700_000_000.0
FACTS = NodeFacts("node", "0", True, started=NOW, now=NOW, boot=1000.0)
ROOT = Viewer("root", admin=True)


def world(held: int, waiting: int, people: int = 7) -> World:
    """Leases of ``people``, on one GPU that has room for ``held`` of them."""
    config = plain_config(max_tasks_per_gpu=max(1, held), max_waiting_per_environment=10_000)
    made = World(config=config).start([gpu(0)], Quota(1, None))
    for number in range(held + waiting):
        # Who asks for all of the GPU waits for all others.
        wish = Request(1, 2**20 if number < held else gpu(0).memory)
        made.request(f"person-{number % people}", number + 1, wish)
    assert len(made.state.queue.waiting) == waiting
    return made


PAGE_OF_ADMIN, PAGE = 50, 20
LARGE = world(PAGE_OF_ADMIN + 20, PAGE + 30)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PAGE_OF_ADMIN", PAGE_OF_ADMIN)
    monkeypatch.setattr(status, "PAGE", PAGE)


def sheet(of: World = LARGE) -> Sheet:
    return Sheet(of.state, FACTS, of.config, {}, Lately(), ("person-1",))


def test_an_administrators_pages_have_everything_once() -> None:
    pages = [status_document(sheet(), ROOT, page) for page in range(4)]
    for kind, each in (("leases", "id"), ("queue", "lease")):
        rows = [row[each] for page in pages for row in page[kind]]
        assert len(rows) == len(set(rows))
        assert set(rows) == set(
            LARGE.state.leases if kind == "leases" else LARGE.state.queue.waiting
        )
        lengths = [len(page[kind]) for page in pages]
        assert max(lengths) <= PAGE_OF_ADMIN
        assert [page["more"][kind] for page in pages] == [sum(lengths[i + 1 :]) for i in range(4)]


def test_the_command_line_turns_all_pages() -> None:
    class Node:
        def call(self, method: Method, page: int = 0) -> dict[str, Any]:
            return status_document(sheet(), ROOT, page)

    whole = whole_status(Node())
    in_order = sorted(LARGE.state.leases.values(), key=lambda lease: lease.order)
    assert [row["id"] for row in whole["leases"]] == [lease.id for lease in in_order]
    assert not any(whole["more"].values())
    assert "not shown" not in show_status(whole).text
    assert len(whole["queue"]) == len(LARGE.state.queue.waiting)
    seen = status_document(sheet(), Viewer("stranger"))
    left = len(LARGE.state.leases) - PAGE
    assert f"{left} more leases of others are not shown." in show_status(seen).text


@pytest.mark.parametrize("who", ["person-3", "stranger"])
def test_others_have_all_of_their_own_and_a_page_of_the_rest(who: str) -> None:
    seen = status_document(sheet(), Viewer(who))
    for kind, everything in (
        ("leases", LARGE.state.leases),
        ("queue", LARGE.state.queue.waiting),
    ):
        mine = {n for n in everything if LARGE.state.leases[n].environment == who}
        rows = seen[kind]
        assert {row["lease" if kind == "queue" else "id"] for row in rows if row["mine"]} == mine
        assert len(rows) <= PAGE + len(mine)
        assert sum(not row["mine"] for row in rows) >= PAGE - len(mine)
        assert seen["more"][kind] == len(everything) - len(rows)
        assert all(row["environment"] in (None, who) for row in rows)
    assert [row["position"] for row in seen["queue"]] == sorted(
        r["position"] for r in seen["queue"]
    )


class Slices(board.Slices):
    """Rests each time, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.rests = 0

    async def rest(self) -> None:
        self.rests += 1
        await asyncio.sleep(0)


def handed(of: World, viewers: list[Viewer]) -> tuple[list[Encoded], int]:
    got: dict[int, Encoded] = {}
    slices = Slices()
    wanted = [
        (viewer, 0, partial(got.__setitem__, number)) for number, viewer in enumerate(viewers)
    ]
    asyncio.run(board.hand_out(sheet(of), wanted, slices, lambda name, seconds: None))
    return [got[number] for number in range(len(viewers))], slices.rests


VIEWERS = st.builds(
    Viewer,
    st.sampled_from(["person-0", "person-1", "root", "x"]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=30)
@given(st.integers(0, 9), st.integers(0, 9), st.lists(VIEWERS, max_size=5))
def test_all_get_at_once_what_each_would_get_alone(
    held: int, waiting: int, viewers: list[Viewer]
) -> None:
    of = world(held, waiting if held else 0)
    got, _rests = handed(of, viewers)
    for viewer, one in zip(viewers, got, strict=True):
        alone: Any = json.loads(encode(status_document(sheet(of), viewer)))
        assert json.loads(one) == alone
        assert json.loads(encode({"id": 1, "result": one})) == {"id": 1, "result": alone}


def test_the_loop_runs_between_any_two_rows_and_viewers() -> None:
    viewers = [Viewer(f"watcher-{number}") for number in range(20)]
    one, alone = handed(LARGE, viewers[:1])
    many, together = handed(LARGE, viewers)
    assert alone >= 2 * PAGE + 1, "each row is a step"
    assert together - alone == len(viewers) - 1, "rows that all may see are made once"
    assert many[0] == one[0]


def test_the_same_is_made_once_whatever_page_is_asked_for_and_charged_to_who_asks() -> None:
    made: list[Encoded] = []
    taken: list[str] = []
    wanted = [(Viewer("stranger"), page, made.append) for page in range(50)]
    asyncio.run(
        board.hand_out(sheet(), wanted, Slices(), lambda name, _seconds: taken.append(name))
    )
    assert len({id(one) for one in made}) == 1
    assert len(made) == 50
    assert set(taken) == {"stranger"}


def test_each_pays_for_their_own_and_a_part_of_what_is_made_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is first does not pay for all."""
    now = 0.0
    monkeypatch.setattr(board.time, "thread_time", lambda: now)

    class Dear(Sheet):
        """Each row of a lease takes a second."""

        def lease_row(self, *what: Any) -> Encoded:
            nonlocal now
            now += 1.0
            return super().lease_row(*what)

    taken, slices = Counter[str](), Slices()
    now += 3.0  # what the sheet takes, and so much for each of three

    def took(name: str, seconds: float) -> None:
        taken[name] += seconds

    names = ("first", "second", "person-3")
    wanted = [(Viewer(name), 0, lambda status: None) for name in names]
    dear = Dear(LARGE.state, FACTS, LARGE.config, {}, Lately())
    asyncio.run(board.hand_out(dear, wanted, slices, took))
    assert taken["first"] == taken["second"] == pytest.approx(1 + PAGE / 3)
    own = sum(lease.environment == "person-3" for lease in LARGE.state.leases.values())
    assert taken["person-3"] == pytest.approx(taken["first"] + own)
    assert sum(taken.values()) == pytest.approx(now)


def test_a_lease_that_moves_to_a_page_that_was_turned_is_found() -> None:
    """Another one ended meanwhile; and no page is asked for without end."""
    of = world(PAGE_OF_ADMIN * 2 + 20, 0)
    asked: list[int] = []

    class Node:
        def call(self, method: Method, page: int = 0) -> dict[str, Any]:
            if asked == [0]:
                of.release("L1", "person-0")
                of.die(1, seen=True)
            asked.append(page)
            return status_document(sheet(of), ROOT, page)

    whole = whole_status(Node())
    live = {name for name, lease in of.state.leases.items() if lease.phase.value != "ended"}
    assert live <= {row["id"] for row in whole["leases"]}
    assert f"L{PAGE_OF_ADMIN * 2 + 20}" in live
    assert asked == [0, 1, 2, 0, 1, 2]


def test_who_has_many_leases_does_not_hide_the_others_from_administrators() -> None:
    many = world(PAGE_OF_ADMIN * 2, 0, people=1)
    for number, name in enumerate(("alice", "root")):
        many.request(name, 900 + number, Request(1, 2**20))
    first = status_document(sheet(many), ROOT)
    assert {"alice", "root"} <= {row["environment"] for row in first["leases"]}
    assert [row["environment"] for row in first["leases"] if row["mine"]] == ["root"]
    assert len(first["leases"]) == PAGE_OF_ADMIN + 1
    assert first["more"]["leases"] == PAGE_OF_ADMIN + 1


def test_an_environment_has_no_more_leases_than_it_may() -> None:
    """However many processes it has."""
    made = world(6, 0, people=2)
    made.config = dataclasses.replace(made.config, max_leases_per_environment=3)

    def refused(who: str) -> bool:
        decision = made.request(who, 99, Request(1, 1))
        return "This environment has 3 leases already" in str(decision)

    assert refused("person-0")
    assert not refused("person-9")
    made.release("L1", "person-0")
    made.die(1, seen=True)
    assert not refused("person-0")


def test_what_is_encoded_for_many_is_the_same_json() -> None:
    """Also half of a surrogate pair, which a path may have; what is no JSON is not sent."""
    path = {"path": "ü/\ud800", "says": ["{bytes 1}"], "at": 1e-9}
    assert json.loads(encoded(path, rows=[joined(members(path))])) == {**path, "rows": [path]}
    assert json.loads(encoded({}, rows=[], more=[encoded({})])) == {"rows": [], "more": [{}]}
    with pytest.raises(TypeError):
        encoded({"row": encoded({})})
