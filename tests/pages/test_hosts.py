"""The pages say of all hosts what is free there, and why one takes nothing.

From documents: no Hub, no browser.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.hub.site import hub_templates
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages import hosts
from jupyter_gpushare.pages.hosts import Host, HostGpu, HostState, Own
from jupyter_gpushare.pages.listing import (
    ROWS,
    HostListing,
    Listing,
    Member,
    host_listing,
    listing,
    page_of,
)

GIB = 2**30


def gpu(index: int = 0, *, kind: str = "A100", free: int = 80, out: str = "") -> HostGpu:
    return HostGpu(index, kind, 80 * GIB, free * GIB, is_empty=free == 80, out=out)


FREE = Host("a", gpus=(gpu(), gpu(1, free=10)), expected=(0.0, 0.0))
BUSY = Host("b", gpus=(gpu(kind="H100", free=0),), waiting=3, expected=(60.0, 300.0))
PARTLY = Host("c", gpus=(gpu(out="its fan"), gpu(1)))
DRAINED = Host("d", drained="new driver", gpus=(gpu(out="new driver"),))
LOST = hosts.away("e", "no answer")
ALL = [FREE, BUSY, PARTLY, DRAINED, LOST]


def test_whether_a_host_takes_new_tasks() -> None:
    assert [host.state for host in ALL] == [
        HostState.SERVES,
        HostState.SERVES,
        HostState.PARTLY,
        HostState.OUT,
        HostState.AWAY,
    ]
    every_gpu_lost = replace(FREE, gpus=(gpu(out="lost"), gpu(1, out="lost")))
    assert every_gpu_lost.state is HostState.OUT
    assert PARTLY.free == (1, 80 * GIB), "a GPU that is out of service is not free"
    assert DRAINED.free == LOST.free == (0, 0)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abcde"),
        ({"find": "B"}, "b"),
        ({"kind": "A100"}, "acd"),
        ({"state": "serves"}, "ab"),
        ({"state": "away"}, "e"),
        ({"state": "serves", "kind": "H100"}, "b"),
        ({"sort": "state"}, "edcab"),
        ({"sort": "free"}, "acbde"),
        ({"sort": "waiting"}, "bacde"),
        # Nobody knows how long one waits at c; nobody waits at d and e, for they take nothing.
        ({"sort": "expected"}, "abcde"),
        ({"sort": "kind"}, "eacdb"),
    ],
)
def test_which_hosts_are_shown_in_which_order(wanted: dict[str, Any], found: str) -> None:
    shown = hosts.fitting(ALL, HostListing(**wanted))
    assert "".join(host.name for host in shown) == found


def test_rows_say_what_is_free_and_why_a_host_takes_nothing() -> None:
    a, b, c, d, e = ALL
    assert a.kinds_text == "2 of A100, 80 GiB"
    assert a.free_text == "1 GPU; up to 80 GiB on one"
    assert b.free_text == d.free_text == "none"
    assert replace(a, gpus=(gpu(free=10),)).free_text == "no GPU; up to 10 GiB on one"
    assert [host.expected_text for host in ALL] == ["none", "about 1 to 5 min", "unknown", "", ""]
    assert (c.notes, d.notes, e.notes) == (["GPU 0: its fan"], ["new driver"], ["no answer"])
    assert e.free_text == e.kinds_text == "unknown"


def test_totals_say_which_hosts_they_lack() -> None:
    whole = "4 hosts with 6 GPUs: 2 are free now, 3 requests wait."
    assert hosts.totals_text(ALL[:4]) == whole
    lacks = "e is not in these figures: it cannot be reached."
    assert hosts.totals_text(ALL) == f"{whole} {lacks}"
    assert hosts.totals_text([LOST]) == lacks
    many = [hosts.away(name, "") for name in "efghij"]
    assert hosts.totals_text(many) == (
        "e, f, g and 3 others are not in these figures: they cannot be reached."
    )


def test_a_page_says_gets_one_only_of_a_host_that_the_viewers_server_reaches() -> None:
    at_b = [FREE, replace(BUSY, own=Own(talks=True)), LOST]
    assert hosts.own_hosts(at_b) == ("b",)
    assert hosts.chosen(at_b, "") == "b", "their own host is shown first"
    assert hosts.chosen(at_b, "a") == "a"
    assert hosts.nothing_text("b", at_b) == ""
    assert "Your notebooks run on b" in hosts.nothing_text("a", at_b)
    assert hosts.where_text(at_b).endswith("Servers, kernels or programs of yours run on b.")
    nowhere = [FREE, BUSY]
    assert hosts.chosen([LOST, FREE], "") == "a"
    assert "if its server runs there" in hosts.nothing_text("a", nowhere)
    assert hosts.where_text(nowhere).endswith("No server of yours runs on one of these hosts now.")
    assert "is not known" in hosts.where_text([FREE, LOST])
    # Of the only host nothing has to be said.
    assert hosts.where_text([FREE]) == hosts.nothing_text("a", [FREE]) == ""
    of_a_pool = [replace(FREE, own=Own(lent=0))]
    assert "if its server runs there" in hosts.nothing_text("a", of_a_pool)


@pytest.mark.parametrize("own", [Own(held=1), Own(parked=1), Own(waiting=1), Own(talks=True)])
def test_a_host_is_ones_own_if_something_runs_there(own: Own) -> None:
    assert hosts.own_hosts([replace(FREE, own=own)]) == ("a",)
    assert hosts.own_hosts([replace(FREE, own=Own(lent=1))]) == (), "a loan runs nothing"


def test_what_one_has_on_all_hosts() -> None:
    mine = [replace(FREE, own=Own(held=1, parked=2)), replace(BUSY, own=Own(waiting=1, lent=1))]
    assert [host.own.text for host in (*mine, PARTLY)] == [
        "1 GPU held, 2 tasks parked",
        "1 request waiting, 1 GPU of your quota lent to it",
        "",
    ]


def test_an_address_keeps_what_the_page_around_it_shows() -> None:
    told = {"host": "b", "host_sort": "free", "host_page": "2", "group": "x&y", "span": "5m"}
    states = [state.value for state in HostState]
    wanted = host_listing(lambda name: told.get(name, ""), states, list(hosts.SORTS))
    read = {name: values[0] for name, values in parse_qs(wanted.address(chosen="c")).items()}
    assert read == {**told, "host": "c"}, "another host is shown below the same page of rows"
    assert "host_page" not in wanted.address(sort="name")
    assert HostListing().address() == ""


def render(known: list[Host], *, admin: bool = False, **wanted: Any) -> str:
    asked = HostListing(**wanted)
    template = hub_templates(()).get_template("gpushare/hosts.html")
    return template.render(
        **hosts.view(known, asked),
        shown="a",
        admin=admin,
        prefix="/p/",
        here="/p/admin" if admin else "/p/",
    )


def test_a_hundred_hosts_are_a_few_pages() -> None:
    many = [replace(FREE, name=f"n{place:03}<b>") for place in range(100)]
    first = render(many)
    assert first.count('scope="row"') == 25
    assert "n000&lt;b&gt;" in first
    assert "page 1 of 4" in first
    assert "100 hosts with 200 GPUs: 100 are free now" in first
    assert 'href="/p/?host_page=2#hosts"' in first
    last = render(many, page=4, rows=25)
    assert "n099&lt;b&gt;" in last
    assert 'rel="next"' not in last


def test_only_administrators_are_offered_to_take_a_host_out_of_service() -> None:
    assert "admin/drain" not in render(ALL)
    offered = render(ALL, admin=True)
    assert 'aria-label="Take a out of service"' in offered
    assert 'aria-label="Put d back into service"' in offered
    assert "drain-host-e" not in offered, "a host that cannot be reached cannot be told"


def test_a_host_that_an_engine_holds_says_by_what() -> None:
    assert "held by Slurm job 7 &lt;b&gt;" in render([replace(FREE, held="Slurm job 7 <b>")])
    assert "held by" not in render([FREE])


# -- lists -----------------------------------------------------------------------------------------


def member(name: str, *, held: int = 0, waiting: int = 0, used: int = 0, **quota: Any) -> Member:
    usual = {"gpus": 1, "memory": None, "used_gpus": used, "source": "default", "budget": None}
    seconds = quota.pop("seconds", 0.0)
    usage = {f"gpu_seconds_{name}": seconds for name in ("held", "charged")}
    usage |= {"gpu_seconds_busy": 0.0, "resident_gib_seconds": 0.0}
    return Member(name, {**usual, **quota}, held, waiting, usage)


def budget(spent: float, hours: float) -> dict[str, Any]:
    return {"hours": hours, "spent": spent, "window": 1.0, "level": "ok"}


CLASS = [
    member("Anna", groups=["students"], seconds=30.0, memory=4),
    member("ben", groups=["students"], waiting=2, source="override", memory=8),
    member("cem", groups=["staff"], held=1, used=1, seconds=90.0, budget=budget(3, 4)),
    member("dora", groups=["staff"], used=2, held=2, budget=budget(0.08, 0.05), seen=True),
    member("emil", budget=budget(0, 0), seen=False),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["Anna", "ben", "cem", "dora", "emil"]),
        ({"find": "E"}, ["ben", "cem", "emil"]),
        ({"group": "staff"}, ["cem", "dora"]),
        ({"group": "staff", "find": "o"}, ["dora"]),
        ({"only": "holding"}, ["cem", "dora"]),
        ({"only": "waiting"}, ["ben"]),
        ({"only": "over"}, ["dora", "emil"]),
        ({"only": "set"}, ["ben"]),
        ({"only": "never"}, ["emil"]),
        ({"sort": "gpus"}, ["dora", "cem", "Anna", "ben", "emil"]),
        ({"sort": "memory"}, ["cem", "dora", "emil", "ben", "Anna"]),
        ({"sort": "leases"}, ["ben", "dora", "cem", "Anna", "emil"]),
        ({"sort": "hours"}, ["cem", "Anna", "ben", "dora", "emil"]),
        ({"sort": "budget"}, ["emil", "dora", "cem", "Anna", "ben"]),
    ],
)
def test_who_is_shown_in_which_order(wanted: dict[str, Any], found: list[str]) -> None:
    assert [one.name for one in page_of(CLASS, Listing(**wanted)).shown] == found


@given(st.integers(0, 120), st.sampled_from(ROWS), st.integers(1, 9))
def test_the_pages_hold_everybody_once(count: int, rows: int, beyond: int) -> None:
    many = [member(f"u{n:03}") for n in range(count)]
    first = page_of(many, Listing(rows=rows))
    seen = [
        one.name
        for number in range(1, first.pages + 1)
        for one in page_of(many, Listing(rows=rows, page=number)).shown
    ]
    assert seen == [one.name for one in many]
    last = page_of(many, Listing(rows=rows, page=first.pages + beyond))
    assert last.number == first.pages, "behind the last page is the last one"
    assert (last.found, last.known) == (count, count)


def test_an_address_says_what_the_page_shows_and_keeps_the_rest() -> None:
    others = {"kind": "LeaseEnded", "text": ""}
    table = {"find": "a&b", "sort": "hours", "page": 3, "rows": 50, "others": others}
    now = Listing(window="7d", group="staff", only="over", **table)
    told = {name: values[0] for name, values in parse_qs(now.address(page=3)).items()}
    read = listing(lambda name: told.get(name, ""))
    assert read == replace(now, others={"kind": "LeaseEnded"})
    assert "page" not in now.address(sort="name"), "another order begins at its begin"
    assert Listing().address() == ""


@pytest.mark.parametrize(
    "wrong",
    [{"only": "x"}, {"sort": "x"}, {"page": "0"}, {"page": "x"}, {"rows": "101"}, {"window": "x"}],
)
def test_nonsense_in_an_address_is_told(wrong: dict[str, str]) -> None:
    with pytest.raises(NodeProblem):
        listing(lambda name: wrong.get(name, ""))
