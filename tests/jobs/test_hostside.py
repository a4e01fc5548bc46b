"""A job takes cards that idle, and no more than its quota; people see jobs as HTML in words."""

from __future__ import annotations

import re
from functools import reduce
from html.parser import HTMLParser
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.elastic import show as elastic_show
from jupyter_gpushare.elastic.core import Phase as JobPhase, Rank, Status, told
from jupyter_gpushare.jobs import hostside, show
from jupyter_gpushare.jobs.engine import Idle, OneHost
from jupyter_gpushare.jobs.hostside import Job, idle_in
from jupyter_gpushare.protocol.sizes import MemoryRange

GIB = 2**30
RANGE = MemoryRange(6 * GIB, 20 * GIB)


def gpu(uuid: str, **more: Any) -> dict[str, Any]:
    plain = {"health": "ok", "out_of_service": None, "tasks": 0, "ranged": 0, "mine": False}
    return {"uuid": uuid, "memory": 24 * GIB, "free": 24 * GIB, "lifted": 0, **plain, **more}


#: Others' tasks on it have asked for ranges, and use 18 GiB beyond the least of these.
FULL = {"tasks": 2, "ranged": 2, "free": 0, "lifted": 18 * GIB}


@pytest.mark.parametrize(
    ("there", "beside", "is_idle"),
    [
        ({}, False, True),
        ({"health": "lost"}, False, False),
        ({"out_of_service": {"reason": "fans"}}, False, False),
        ({"free": 5 * GIB}, False, False),
        ({"free": 6 * GIB}, False, True),
        (FULL, True, True),
        (FULL, False, False),
        ({**FULL, "ranged": 1}, True, False),
        ({**FULL, "mine": True}, True, False),
        ({**FULL, "lifted": 5 * GIB}, True, False),
    ],
)
def test_which_cards_idle(there: dict[str, Any], beside: bool, is_idle: bool) -> None:
    found = idle_in({"gpus": [gpu("1", **there)]}, RANGE, beside)
    assert bool(found) == is_idle


def test_only_a_range_finds_room_beside_others() -> None:
    assert idle_in({"gpus": [gpu("1", **FULL)]}, 6 * GIB, beside=True) == []


class Node:
    """A node manager with three cards, on one of which others make room."""

    quota: ClassVar[dict[str, int]] = {"gpus": 9, "used_gpus": 0}

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None: ...

    def call(self, _method: object) -> dict[str, Any]:
        gpus = [gpu("1"), gpu("2", free=12 * GIB), gpu("3", free=25 * GIB), gpu("4", **FULL)]
        return {"gpus": gpus, "quota": self.quota}


@pytest.mark.parametrize(
    ("allowed", "used", "beside", "named"),
    [(9, 0, False, "312"), (9, 0, True, "3124"), (3, 1, False, "31"), (1, 2, True, "")],
)
def test_a_host_names_the_freest_first_within_the_quota(
    allowed: int, used: int, beside: bool, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostside, "connect", Node)
    monkeypatch.setattr(Node, "quota", {"gpus": allowed, "used_gpus": used})
    host = OneHost(Job("x", b"", memory=RANGE), "here", beside=beside)
    host.ask("here")
    (told,) = host.events(20.0)
    assert isinstance(told, Idle)
    assert "".join(row.card.gpu for row in told.rows) == named


# -- what people see -------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


class Tags(HTMLParser):
    """The elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def labels(self, tag: str) -> list[str]:
        return [str(at.get("aria-label")) for name, at in self.found if name == tag]


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([light(one), light(other)])
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_ground_of_each_theme() -> None:
    for colour in (*show.COLOURS, show.GOOD, show.BAD, show.NEUTRAL):
        for ground in ("#ffffff", "#111111"):
            assert contrast(colour, ground) >= 3.0, (colour, ground)


def test_the_plot_says_in_words_what_it_draws_and_names_the_best_lines() -> None:
    lines = {number: [1.0, number / 20] for number in range(20)}
    html = show.plot("loss", {**lines, 20: [float("nan")]})
    (label,) = Tags(html).labels("svg")
    assert label == ("loss by report, 20 models: from 0 to 1; the least at last is model 0 with 0")
    assert "model 3: 0.15" in html
    assert "and 8 more" in html
    assert show.plot("loss", {0: [float("inf")]}) == ""


def test_a_tables_heads_are_buttons_and_long_names_are_short() -> None:
    gpus = ", ".join(f"GPU {number}" for number in range(16))
    html = show.table([{"model": 0, HOSTILE: HOSTILE, "gpus": gpus, "error": "a\nValueError: b"}])
    tags = Tags(html)
    assert [name for name, _ in tags.found].count("button") == 4
    assert "img" not in [name for name, _ in tags.found]
    assert ' style="white-space:nowrap">GPU 0, GPU 1, ' in html
    assert gpus in html, "its title has all of it"
    assert ">ValueError: b<" in html
    assert tags.labels("div") == ["Table of models"]


def a_status(**more: object) -> Status:
    events: list[dict[str, object]] = [
        {"event": "begins", "at": 100.0},
        {"event": "changes", "at": 101.0, "first": True, "reason": "2 idle GPUs joined."},
        *(
            {"event": "trains", "at": 110.0, "rank": rank, "world": 2, "entry": "train", "step": 0}
            | {"host": "here", "gpu": f"GPU-{rank}", "index": 3 + rank, "lease": f"l{rank}"}
            for rank in (1, 0)
        ),
        {"event": "step", "at": 111.0, "step": 1, "epoch": 0, "loss": 0.5},
        {"event": "step", "at": 112.0, "step": 2, "epoch": 0, "loss": 0.25},
    ]
    events += [more] if more else []
    return reduce(lambda now, event: told(now, event, 100.0), events, Status("digits"))


def test_the_picture_of_a_job_says_in_words_what_it_draws() -> None:
    html = elastic_show.picture(a_status(), 7300.0)
    assert Tags(html).labels("svg") == ["Workers: 2 from 10 s on; loss: 0.25 now, from 0.25 to 0.5"]
    assert "2 h 2 min" in html
    begins = elastic_show.picture(Status("digits"), 3.0)
    assert Tags(begins).labels("svg") == ["Workers: none yet; no loss yet"]
    assert "none reported yet" in begins


def test_a_job_tells_its_gpus_by_their_numbers_and_what_happened() -> None:
    status = a_status()
    assert status.ranks[0] == Rank("here", "GPU-0", "l0", 10.0, 3)
    assert "0 on GPU 3 of here, 1 on GPU 4 of here" in str(status)
    assert [text for _, text in status.said] == ["Training begins with 2 workers (entry: train)."]
    more = {"event": "trains", "at": 120.0, "rank": 0, "world": 1, "entry": "breakpoint"}
    again = a_status(**more, step=7, host="here", gpu="GPU-0", lease="l0", index=3)
    assert again.said[-1][1] == "Training goes on at step 7 with 1 worker (entry: breakpoint)."
    assert again.phase is JobPhase.TRAINING
    old = Rank("here", "GPU-0", "l0", 10.0)
    assert str(old) == "GPU-0 of here", "a record of an earlier release has no number"


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.integers(0, 64)), max_size=30),
    st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e7), FLOATS), max_size=30),
    st.floats(0, 1e8),
)
def test_any_job_can_be_drawn(
    workers: list[tuple[float, int]], losses: list[tuple[int, float, float]], now: float
) -> None:
    status = Status(HOSTILE, workers=tuple(workers), losses=tuple(losses))
    html = elastic_show.picture(status, now)
    assert "nan" not in re.sub(r'aria-label="[^"]*"', "", html)
    assert {name for name, _ in Tags(html).found} <= {"svg", "text", "path", "polyline", "polygon"}


@given(st.dictionaries(st.integers(0, 40), st.lists(FLOATS, max_size=8), max_size=20))
def test_any_sweep_can_be_drawn(lines: dict[int, list[float]]) -> None:
    html = show.plot(HOSTILE, lines)
    assert "img" not in [name for name, _ in Tags(html).found]
