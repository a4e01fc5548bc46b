"""The administrators' table shows everybody once, in the order that its address says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages.listing import ROWS, Listing, Member, listing, page_of


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


def names(**wanted: Any) -> list[str]:
    return [one.name for one in page_of(CLASS, Listing(**wanted)).shown]


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
    assert names(**wanted) == found


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
