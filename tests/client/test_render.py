"""Every state has words for people, and nothing from elsewhere is markup or moves a cursor."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.cli import leases as cli_leases
from jupyter_gpushare.client.words import render
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol import holding

GIB = 2**30
HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[2J\r\n\u202e"


def gpu(**more: Any) -> dict[str, Any]:
    return {
        "uuid": "GPU-0",
        "index": 0,
        "name": "NVIDIA L4",
        "memory": 24 * GIB,
        "reserved": 12 * GIB,
        "unleased": 2 * GIB,
        "system": GIB // 2,
        "free": 10 * GIB,
        "used": 3 * GIB,
        "mine": 8 * GIB,
        "utilisation": 0.37,
        "tasks": 2,
        "health": "ok",
        "problem": None,
        "squatters": [],
        **more,
    }


def lease(**more: Any) -> dict[str, Any]:
    return {
        "id": "0123456789abcdef",
        "environment": "alice",
        "mine": True,
        "state": "active",
        "phase": "held",
        "activity": "busy",
        "name": "train.ipynb",
        "kind": "kernel",
        "kernel_id": None,
        "path": None,
        "pid": 1,
        "gpus": [{"uuid": "GPU-0", "index": 0, "memory": 8 * GIB, "measured": 3 * GIB}],
        "asked": {"gpus": 1, "memory": None},
        "priority_class": "interactive",
        "requested": 0.0,
        "granted": 1.0,
        "age": 125.0,
        "position": None,
        **more,
    }


def waiting(**more: Any) -> dict[str, Any]:
    return {
        "position": 1,
        "lease": None,
        "mine": False,
        "environment": None,
        "priority_class": "batch",
        "gpus": 2,
        "memory": None,
        "waiting": 61.0,
        "reason": None,
        "message": None,
        "budget": None,
        "outlook": None,
        **more,
    }


OUTLOOK = {
    "estimate": {"low": 605.0, "high": 1790.0, "basis": "idle"},
    "idle": {
        "mine": False,
        "environment": None,
        "name": None,
        "idle": 725.0,
        "after": 1800.0,
        "left": 1075.0,
    },
    "idle_after": 1800.0,
}
BUDGET = {"hours": 0.05, "spent": 0.08, "window": 604800.0, "level": "spent"}


def status(**more: Any) -> dict[str, Any]:
    node = {
        "name": "big-host",
        "version": "1",
        "simulated": False,
        "problem": None,
        "time": 100.0,
        "started": 0.0,
        "max_tasks_per_gpu": 4,
        "heartbeat_timeout": 15.0,
    }
    return {
        "node": {**node, **more.pop("node", {})},
        "environment": "alice",
        "admin": False,
        "quota": {
            "gpus": 2,
            "memory": 8 * GIB,
            "weight": 1.0,
            "source": "group",
            "used_gpus": 1,
            "remaining": {"gpus": 1, "memory": [{"uuid": "GPU-a", "index": 0, "bytes": 2 * GIB}]},
        },
        "gpus": [gpu()],
        "leases": [lease()],
        "queue": [],
        **more,
    }


class Page(HTMLParser):
    """What a browser would make of it: tags, attributes, text; fails on what is left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


SAFE_TAGS = {"div", "span", "strong", "code", "table", "caption", "thead", "tbody", "tr"}
SAFE_TAGS |= {"th", "td"}
SAFE_ATTRIBUTES = {"style", "scope", "role", "aria-live", "aria-hidden"}


def check_html(html: str) -> Page:
    page = Page(html)
    assert page.tags <= SAFE_TAGS
    assert page.attributes <= SAFE_ATTRIBUTES
    return page


def check_text(text: str) -> None:
    assert all(sign.isprintable() or sign == "\n" for sign in text)


# Anything a hostile or newer node manager may put where something else is expected.
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=30),
    st.just(HOSTILE),
)


def same_shape(example: Any) -> st.SearchStrategy[Any]:
    """Documents with the keys of ``example`` and any leaves."""
    if isinstance(example, dict):
        return st.fixed_dictionaries({key: same_shape(value) for key, value in example.items()})
    if isinstance(example, list):
        return st.lists(same_shape(example[0]), max_size=3) if example else st.just([])
    return leaves


SQUATTER = {"pid": 3, "memory": GIB, "kind": "squatter"}
DETAILED = waiting(mine=True, outlook=OUTLOOK, budget=BUDGET)
documents = same_shape(status(gpus=[gpu(squatters=[SQUATTER])], queue=[DETAILED]))


@given(documents)
def test_any_status_is_safe_html_and_text(document: dict[str, Any]) -> None:
    check_html(render.status_html(document))
    check_text(render.status_text(document))
    check_html(render.quota_html(document))
    check_text(render.quota_text(document))


@given(same_shape([{"at": 1.0, "kind": "x", "environment": "a", "lease": "b", "text": "c"}]))
def test_any_history_is_safe(events: list[dict[str, Any]]) -> None:
    check_html(render.history_html(events))
    check_text(render.history_text(events))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("position", "ahead", "message", "lease"), leaves),
            "reason": st.just("budget_spent") | leaves,
            "outlook": same_shape(OUTLOOK) | leaves,
            "budget": same_shape(BUDGET) | leaves,
        },
    ),
    st.floats(),
)
def test_any_notice_is_safe(notice: dict[str, Any], seconds: float) -> None:
    check_html(render.waiting_html(notice, seconds, HOSTILE))
    check_text(render.waiting_line(notice, seconds))
    assert "\n" not in render.waiting_line(notice, seconds)


def test_hostile_names_are_shown_as_they_are() -> None:
    document = status(
        leases=[lease(name=HOSTILE, environment=HOSTILE)],
        gpus=[gpu(name=HOSTILE, problem=HOSTILE, health=HOSTILE)],
        environment=HOSTILE,
    )
    page = check_html(render.status_html(document))
    assert "<img src=x onerror=alert(1)>" in page.text


def test_a_status_says_who_holds_what() -> None:
    document = status(
        leases=[
            lease(
                id=None,
                mine=False,
                environment=None,
                name=None,
                state="idle",
                since=-500.0,
                kind="process",
                pid=None,
            ),
            lease(),
        ],
        queue=[waiting(), waiting(position=2, mine=True, environment="alice", gpus=1)],
    )
    text = render.status_text(document, here="0123456789abcdef")
    page = check_html(render.status_html(document, here="0123456789abcdef")).text

    for shown in (text, page):
        assert "big-host" in shown
        assert "simulated" not in shown
        assert "You are alice. Quota: 2 GPUs, 8 GiB on each (from your group)" in shown
        assert "; 1 held now, left: 1 GPU, 2 GiB on GPU 0." in shown
        assert (
            "8 GiB yours, 4 GiB reserved by others, 512 MiB used by the system, 1.5 GiB "
            "used without a lease, 10 GiB free of 24 GiB" in shown
        )
        assert "37%" in shown
        assert "train.ipynb (this one)" in shown
        assert "0: 3 GiB of 8 GiB" in shown
        assert "2 min" in shown
        assert "● in use" in shown
        assert "○ held, idle for 10 min" in shown
        assert "somebody else" in shown
        assert "None" not in shown
        assert "2 GPUs, the whole GPU" in shown
        assert shown.index("alice (you)") < shown.index("somebody else")  # one's own first


@pytest.mark.parametrize("state", sorted(set(render.STATES) - {"queued", "ended"}))
def test_every_state_is_an_icon_and_words(state: str) -> None:
    document = status(leases=[lease(state=state)])
    icon, words, _colour = render.STATES[state]

    assert f"{icon} {words}" in render.status_text(document)
    assert f"{icon} {words}" in check_html(render.status_html(document)).text


def test_every_state_of_the_node_manager_is_known() -> None:
    from jupyter_gpushare.node.views.status import DisplayState

    assert {state.value for state in DisplayState} == set(render.STATES)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"warning": {"reason": "contended", "at": 1025.0}}, "taken back in 25 s"),
        ({"warning": {"reason": "contended", "at": 10.0}}, "taken back in 0 s"),
        ({"warning": {}}, "taken back in ?"),
        ({"pinned_until": 1600.0}, "kept for 10 min more"),
        ({"pinned_until": 1000.0}, ""),
        ({"rung": "release", "parked_memory": 0}, "nothing was on the GPU"),
        ({"rung": "storage", "parked_memory": 2**31}, "tensors in host memory: 2 GiB"),
        ({"rung": "driver", "parked_memory": 2**31}, "all in host memory, by the driver: 2 GiB"),
        ({"rung": "<b>new"}, ""),
        ({}, ""),
    ],
)
def test_what_is_told_of_parking(more: dict[str, Any], said: str) -> None:
    assert render.parking_words(more, 1000.0) == said
    document = status(node={"time": 1000.0}, leases=[lease(state="idle", **more)])
    shown = f"held, idle ({said})" if said else "held, idle "
    assert shown in render.status_text(document)
    assert f"held, idle ({said})" in check_html(render.status_html(document)).text or not said


def test_host_memory_of_parked_tasks() -> None:
    full = {"parked_memory": 3 * 2**30, "parked_memory_limit": 2**32}
    for shown in (
        render.status_text(status(node=full)),
        Page(render.status_html(status(node=full))).text,
    ):
        assert "Parked tasks take 3 GiB of 4 GiB of host memory." in shown
    assert render.host_memory_line({"parked_memory": 0, "parked_memory_limit": 1}) is None
    assert render.host_memory_line({"parked_memory": 2**30}) == (
        "Parked tasks take 1 GiB of host memory."
    )


def test_simulated_gpus_are_said_to_be_simulated() -> None:
    document = status(node={"simulated": True})

    for shown in (render.status_text(document), Page(render.status_html(document)).text):
        assert "GPUs of big-host (simulated)" in shown
        assert "frameworks compute on the CPU" in shown


def test_trouble_is_said() -> None:
    document = status(
        node={"problem": "The disk is full."},
        gpus=[
            gpu(problem="It fell off the bus.", health="lost", free=0),
            gpu(
                index=1,
                squatters=[
                    {"pid": None, "memory": None, "kind": "squatter"},
                    {"pid": 42, "memory": 9 * GIB, "kind": "over_limit"},
                ],
            ),
        ],
    )
    for shown in (render.status_text(document), Page(render.status_html(document)).text):
        assert "The disk is full." in shown
        assert "GPU 0 takes no leases: It fell off the bus." in shown
        assert "✕ lost" in shown
        assert "GPU 1: a process uses some memory without a lease." in shown
        assert "GPU 1: process 42 uses 9 GiB, more than its lease allows." in shown


def test_gpus_that_are_left_out_are_told_and_no_quota_is_blamed() -> None:
    document = status(gpus=[], leases=[], left_out=["GPU 1 is left out: it is <lost>."])

    assert "PROBLEM: GPU 1 is left out: it is <lost>." in render.status_text(document)
    assert "GPU 1 is left out: it is <lost>." in check_html(render.status_html(document)).text
    (told,) = [line for line in render.quota_lines(document) if "No GPU" in line]
    assert "this node has none to share" in told


def test_a_status_without_anything() -> None:
    document = status(gpus=[], leases=[], quota=None)

    assert "This node has no GPUs to share." in render.status_text(document)
    assert "nobody holds a GPU" in render.status_text(document)
    assert "GPUs: none." in check_html(render.status_html(document)).text
    check_html(render.quota_html(document))


def test_memory_bars_have_the_right_widths() -> None:
    widths = re.findall(r"width:([0-9.]+)%", render.status_html(status()))
    assert [float(width) for width in widths] == pytest.approx([33.3, 16.7, 2.1, 6.2], abs=0.1)
    assert "[#######===:!........]" in render.status_text(status())


@given(st.tuples(*(st.integers(0, 2**50) for _ in range(4))))
def test_memory_bars_never_overflow(sizes: tuple[int, ...]) -> None:
    parts = dict(zip(("mine", "reserved", "unleased", "system"), sizes, strict=True))
    document = status(gpus=[gpu(**parts)])

    widths = re.findall(r"width:([0-9.]+)%", render.status_html(document))
    assert sum(float(width) for width in widths) <= 100.5
    (bar,) = re.findall(r"\[[#=:!.]*\]", render.status_text(document))
    assert len(bar) == 22


def test_a_quota_says_what_is_left_and_what_was_used() -> None:
    usage = {
        "since": 0.0,
        "until": 7 * 86400.0,
        "rows": [
            {"environment": "alice", "gpu_seconds_held": 7200.0, "gpu_seconds_busy": 1800.0},
            {"environment": "bob", "gpu_seconds_held": 1e9, "gpu_seconds_busy": 1e9},
        ],
    }
    text = render.quota_text(status(), usage)
    assert "You can get 1 more GPU" in text
    assert "In the last 7 d: 2.00 GPU-hours held, 0.50 of them busy (25%)." in text
    assert "■□" in check_html(render.quota_html(status(), usage)).text


def test_a_quota_of_nothing_and_a_full_one_say_what_to_do() -> None:
    none = {"gpus": 0, "memory": None, "weight": 1, "source": "default", "used_gpus": 0}
    assert "Ask the administrator" in render.quota_text(status(quota=none))
    full = {**none, "gpus": 2, "used_gpus": 2, "weight": 2.5}
    assert "used up" in render.quota_text(status(quota=full))
    assert "weight 2.5" in render.quota_text(status(quota=full))


def test_what_a_pool_lends_is_told_as_own_lent_and_borrowed() -> None:
    pool = {"pool": "lab", "whole": 2, "lent": 1, "borrowed": 1, "reclaimed": False, "valid": True}
    quota = {**status()["quota"], "source": "pool", "pool": {**pool, "why": None}}
    text = render.quota_text(status(quota=quota))
    assert "Quota: 2 GPUs, 8 GiB on each (on all hosts of the pool together)" in text
    assert "The pool lab lends you 1 GPU on this host now." in text
    assert "1 GPU of those you borrow from others: they may take it back." in text
    worse = {"reclaimed": True, "valid": False, "why": "Your other GPUs are in use on host c."}
    text = render.quota_text(status(quota={**quota, "pool": {**pool, **worse}}))
    assert "is asked back" in text
    assert "does not answer now" in text
    assert "in use on host c." in text
    none = {**quota, "gpus": 0, "pool": {**pool, "whole": None, "valid": False}}
    text = render.quota_text(status(quota=none))
    assert "Your quota is that of the pool lab." in text
    assert "has lent you nothing here yet" in text
    assert "Ask the administrator" not in text


def test_nothing_happened_yet() -> None:
    assert render.history_text([]) == "Nothing has happened yet."
    assert "Nothing has happened yet." in render.history_html([])


def test_help_is_complete() -> None:
    from jupyter_gpushare.client.cell.magics import VERB_OPTIONS

    page = check_html(render.help_html()).text
    for verb, options in VERB_OPTIONS.items():
        for word in (f"%gpushare {verb}", *options):
            assert word in render.help_text()
            assert word in page


def test_waiting_says_place_and_who_is_ahead() -> None:
    notice = {"position": 3, "ahead": {"interactive": 2, "batch": 0}}
    assert render.waiting_line(notice, 75) == (
        "Waiting for GPUs: position 3; ahead: 2 interactive; 1 min so far"
    )
    assert "nobody is ahead" in render.waiting_line({"position": 1, "ahead": {}}, 0)
    there = render.waiting_line({"position": 1, "host": "b"}, 0)
    assert there.startswith("Waiting for GPUs on host b: position 1;")
    both = {"position": 5, "ahead": {"interactive": 1, "batch": 3}}
    assert "ahead: 1 interactive and 3 batch" in render.waiting_line(both, 0)


def test_who_waits_is_told_on_a_terminal_too_where_she_would_not() -> None:
    text = "Host c has a free GPU now: start your kernel there."
    waits = {"position": 1, "ahead": {}, "hints": [{"host": "c", "text": text}]}
    assert render.waiting_line(waits, 5).endswith(f"5 s so far; {text[:-1]}")
    narrow = render.waiting_line_within(waits, 5, "Ctrl-C leaves", 80)
    assert narrow == f"{text[:-1]}; 5 s so far"
    for wrong in (None, "c", [], [None], [{}]):
        assert render.waiting_line({**waits, "hints": wrong}, 5).endswith("5 s so far")


def test_who_waits_is_told_why_how_long_and_what_will_happen() -> None:
    notice = {
        "position": 2,
        "ahead": {"interactive": 1, "batch": 0},
        "reason": "no_resources",
        "message": "You asked for a whole GPU (24 GiB). GPUs 0 and 1 have 16 GiB free.",
        "outlook": OUTLOOK,
    }
    assert render.waiting_line(notice, 12) == (
        "Waiting for GPUs: position 2; ahead: 1 interactive; about 10 to 30 min; 12 s so far"
    )
    page = check_html(render.waiting_html(notice, 12, "Interrupt to leave.")).text
    assert "GPUs 0 and 1 have 16 GiB free." in page
    assert "It takes about 10 to 30 min, if kernels that are idle now stay idle." in page
    assert "Somebody's kernel has been idle for 12 min; after 30 min it is asked" in page
    for whose, said in (
        ({"environment": "bob"}, "A kernel of bob has been idle"),
        ({"mine": True, "environment": "alice", "name": "a.ipynb"}, "Your a.ipynb has been idle"),
    ):
        outlook = {**OUTLOOK, "idle": {**OUTLOOK["idle"], **whose}}
        assert said in " ".join(render.why_lines({**notice, "outlook": outlook}))
    nothing = {"estimate": None, "idle": None, "idle_after": 1800.0}
    assert render.why_lines({**notice, "outlook": nothing})[1] == (
        "There is no estimate yet of how long it takes. Idle GPUs are asked back after 30 min."
    )
    for whose, left, said in (
        ({}, 240.0, "Somebody's batch program is asked in 4 min to save its state and make way."),
        ({"environment": "bob"}, 0.0, "A batch program of bob is asked now to save"),
        ({"mine": True, "name": "digits"}, 240.0, "Your digits is asked in 4 min to save"),
    ):
        stop = {"mine": False, "environment": None, "name": None, **whose, "left": left}
        (_, happens) = render.why_lines({**notice, "outlook": {**nothing, "stop": stop}})
        assert said in happens
    # An older node manager tells nothing of it.
    assert render.why_lines({"message": "Because."}) == ["Because."]


def test_a_spent_budget_is_no_place_in_a_line() -> None:
    estimate = {"low": 7300.0, "high": 7300.0, "basis": "budget"}
    notice = {
        "position": 1,
        "ahead": {"interactive": 0, "batch": 0},
        "reason": "budget_spent",
        "message": "Your GPU-hour budget is spent.",
        "budget": BUDGET,
        "outlook": {"estimate": estimate, "idle": None, "idle_after": 60.0},
    }
    line = render.waiting_line(notice, 5)
    assert line == (
        "Waiting: the GPU-hours are spent (0.08 of 0.05 in the last 7 d); about 2 h; 5 s so far"
    )
    page = check_html(render.waiting_html(notice, 5, "Interrupt to leave.")).text
    assert "Your GPU-hour budget is spent." in page
    for shown in (line, page):
        assert "position" not in shown
        assert "ahead" not in shown
    queue = [waiting(mine=True, environment="alice", **notice)]
    quota = {**status()["quota"], "budget": BUDGET}
    for shown in (
        render.status_text(status(queue=queue, quota=quota)),
        check_html(render.status_html(status(queue=queue, quota=quota))).text,
    ):
        assert "Your GPU-hour budget is spent." in shown
        assert "GPU-hours: 0.08 of 0.05 in the last 7 d. The budget is spent" in shown
        assert "at position" not in shown


def test_what_one_shares_with_oneself_is_said() -> None:
    mine = Grant("l", (GrantedGpu("GPU-a", 0, "L4", 24 * GIB, 24 * GIB, ("first.ipynb",)),))
    assert render.grant_words(mine) == "GPU 0 (24 GiB, shared with your first.ipynb)"
    part = GrantedGpu("GPU-a", 1, "L4", 8 * GIB, 24 * GIB, ("a", "b", "c"))
    words = "GPU 1 (8 GiB of 24 GiB, shared with your a, b and c)"
    assert render.grant_words(Grant("l", (part,))) == words
    both = [lease(), lease(id="other", name="first.ipynb", path="work/first.ipynb")]
    for shown in (
        render.status_text(status(leases=both)),
        check_html(render.status_html(status(leases=both))).text,
    ):
        assert "shared with your first.ipynb" in shown
        assert "shared with your train.ipynb" in shown
    others = [lease(), lease(id="other", environment="bob", mine=False)]
    assert "shared" not in render.status_text(status(leases=others))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"free": 10 * GIB}, "You can get 1 more GPU now."),
        ({"free": 7 * GIB}, "You can get 1 more GPU, as soon as there is room."),
        ({"free": 10 * GIB, "tasks": 4}, "You can get 1 more GPU, as soon as there is room."),
        ({"free": 10 * GIB, "problem": "lost"}, "You can get 1 more GPU, as soon as there is"),
    ],
)
def test_what_can_be_yours_now_is_not_put_off(more: dict[str, Any], said: str) -> None:
    gpus = [gpu(), gpu(index=1, mine=0, **more)]
    assert said in render.quota_text(status(gpus=gpus))


def test_grants_and_asks_in_words() -> None:
    grant = Grant(
        "l",
        (
            GrantedGpu("GPU-a", 0, "L4", 8 * GIB, 24 * GIB),
            GrantedGpu("GPU-b", 3, "L4", 24 * GIB, 24 * GIB),
        ),
    )
    assert render.grant_words(grant) == "GPU 0 (8 GiB of 24 GiB) and GPU 3 (all of its 24 GiB)"
    assert render.ask_words(Ask()) == "1 GPU"
    assert render.ask_words(Ask(2, GIB, "batch")) == "2 GPUs with 1 GiB on each, class batch"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (1799, "30 min"),
        (3599.9, "1 h"),
        (3725, "1 h 2 min"),
        (7799, "2 h 10 min"),
        (86399, "1 d"),
        (90000, "1 d 1 h"),
        (float("nan"), "?"),
        (float("inf"), "?"),
        (None, "?"),
        (True, "?"),
    ],
)
def test_durations(seconds: object, words: str) -> None:
    assert render.duration(seconds) == words


def test_turns_and_limits_are_told() -> None:
    def told(**more: Any) -> str:
        return render.sharing_words({**lease(), **more}, 100.0)

    assert told() == ""
    assert told(turn=None, overran=False, over_limit=None) == ""
    assert told(turn="holds") == "has the turn"
    assert told(turn="waits", overran=True) == "waits for its turn, overran its turn"
    waits = {"turn": "waits", "turn_since": 80.0}
    assert told(**waits) == "paused for somebody's turn, so far 20 s"
    three = {"pauses": {"times": 3, "seconds": 41.0}}
    assert told(**waits, **three) == "paused for somebody's turn, so far 20 s, 3 times in this cell"
    assert told(**three) == "was paused 3 times in this cell, 41 s in all"
    once = {"kind": "process", "pauses": {"times": 1, "seconds": 4.0}}
    assert told(turn="holds", **once) == "has the turn, was paused once since it began, 4 s in all"
    moved = {"pauses": {"times": 0, "seconds": 0.0, "moved": 2}}
    assert told(**moved) == "moved to another GPU 2 times in this cell"
    both = {"kind": "process", "pauses": {"times": 1, "seconds": 4.0, "moved": 1}}
    assert told(**both) == (
        "was paused once since it began, 4 s in all; moved to another GPU once since it began"
    )
    over = {"used": 9 * GIB, "limit": 8 * GIB, "next": "trim", "next_at": 105.0}
    assert told(over_limit=over) == "uses 9 GiB and may use 8 GiB, its caches are emptied in 5 s"
    assert render.limit_words({"memory": 8 * GIB, "limit": 8 * GIB}) == ""
    assert render.limit_words({"memory": 8 * GIB, "limit": 12 * GIB}) == "lifted to 12 GiB"
    assert render.limit_words({"memory": 8 * GIB, "limit": 6 * GIB}) == "lowered to 6 GiB"
    assert render.limit_words({"memory": 8 * GIB}) == ""


@pytest.mark.parametrize(
    ("what", "until", "words"),
    [
        ("moves", None, "moves to another GPU"),
        ("makes_way", None, "makes way for a request that waits"),
        ("locked", 105.0, "paused by the driver's lock, for 5 s more at most"),
        ("locked", "nonsense", "paused by the driver's lock"),
        ("stops", 160.0, "saves its state and stops, within 1 min"),
        ("stops", 99.0, "saves its state and stops, within 1 s"),
        ("of a newer node manager", None, ""),
        (None, None, ""),
    ],
)
def test_what_is_done_with_a_task_at_work(what: str | None, until: object, words: str) -> None:
    told: Any = lease(interrupted={"what": what, "until": until})
    assert render.sharing_words(told, 100.0) == words
    assert render.sharing_words(lease(interrupted=None), 100.0) == ""
    assert cli_leases.state(told, 100.0) == (f"active ({words})" if words else "active")


def resident(who: str | None, **more: Any) -> dict[str, Any]:
    """Somebody's lease on GPU 0, as another person sees it where ``who`` is ``None``."""
    part = {"uuid": "GPU-0", "index": 0, "memory": 8 * GIB, "measured": None, "there_since": 40.0}
    shown = {"environment": who, "mine": who == "alice", "name": "train.ipynb" if who else None}
    return lease(**{**shown, "gpus": [{**part, **more.pop("part", {})}], **more})


def test_memory_and_time_of_a_gpu_are_two_things() -> None:
    def lines(*leases: dict[str, Any]) -> list[str]:
        return render.gpu_lines(status(leases=list(leases)))

    bob = resident("bob", name="big.ipynb", state="idle", part={"measured": 2 * GIB})
    alice, other = resident("alice", state="idle"), resident(None, kind="process", state="idle")
    assert lines() == []
    assert lines(bob, alice, other) == [
        "GPU 0 memory: your train.ipynb 8 GiB for 1 min; bob's big.ipynb 2 GiB of 8 GiB for 1 min; "
        "someone else's program 8 GiB for 1 min.",
        "GPU 0 time: no turns; nobody computes now.",
    ]
    busy = {"state": "active"}
    assert (
        lines({**alice, **busy}, bob)[1] == "GPU 0 time: no turns; your train.ipynb computes now."
    )
    assert lines({**other, **busy}, {**bob, **busy})[1] == (
        "GPU 0 time: no turns; someone else's program and 1 more compute now."
    )
    assert lines(*[other] * 6)[0].endswith("; 2 more.")
    for gone in ("queued", "ended"):
        assert lines(resident("alice", state=gone)) == []
    assert lines(resident("alice", part={"uuid": "GPU-1", "index": 1})) == []


def test_whose_turn_it_is_since_when_and_who_is_next() -> None:
    def time(*leases: dict[str, Any]) -> str:
        return render.gpu_lines(status(leases=list(leases)))[1].partition("time: ")[2]

    holds = resident("bob", name="big.ipynb", turn="holds", turn_since=88.0)
    waits = [
        resident(None, turn="waits", turn_since=90.0, turn_place=2),
        resident("alice", turn="waits", turn_since=96.0, turn_place=1),
    ]
    assert time(holds, *waits) == (
        "by turns; bob's big.ipynb computes for 12 s; next is your train.ipynb, paused for 4 s; "
        "1 more paused."
    )
    assert time({**holds, "turn": "yields"}) == "by turns; bob's big.ipynb ends its turn."
    assert time({**holds, "turn": "rest"}) == "by turns; nobody computes."
    document = status(leases=[holds, *waits])
    for shown in (render.status_text(document), check_html(render.status_html(document)).text):
        assert "GPU 0 memory: " in shown
        assert "by turns; bob's big.ipynb computes for 12 s" in shown
        assert "paused for somebody's turn, so far 4 s" in shown


def test_what_is_to_be_typed_is_code_in_a_notebook() -> None:
    shown = render.notice_html("It lasts until `%gpushare release` <or> its end.", good=True)
    assert "<code>%gpushare release</code> &lt;or&gt; its end." in shown
    assert "<code>%gpushare resume</code>" in render.note_html("Run `%gpushare resume`.")


def test_what_is_done_next_about_a_stalled_task_is_told() -> None:
    def told(**stall: Any) -> str:
        return render.stall_words({**lease(state="stalled"), "stall": stall or None}, 100.0)

    assert told() == ""
    later = told(next="interrupt", after=1800.0, at=None)
    assert later == "interrupted after 30 min without progress, if somebody waits for its memory"
    soon = told(next="kill", after=86400.0, at=700.0)
    assert soon == "ended in 10 min unless it goes on: somebody waits for it"


def test_why_there_is_a_lease_without_its_notebook_is_told() -> None:
    assert render.survivor_words(lease(), 100.0) == ""
    told = render.survivor_words({**lease(pid=12), "inherited": 40.0}, 100.0)
    assert told == "process 12 goes on, the one that asked ended 1 min ago"


# -- one job, one row ----------------------------------------------------------------------------


def worker(index: int, **more: Any) -> dict[str, Any]:
    """A worker of the job digits."""
    uuid = f"GPU-{index}"
    told = {
        "id": f"{index}123456789abcdef",
        "job": "digits",
        "name": "python -m jupyter_gpushare.elastic.member",
        "kind": "process",
        "priority_class": "batch",
        "gpus": [{"uuid": uuid, "index": index, "memory": 8 * GIB, "measured": 3 * GIB}],
        "age": 60.0 + index,
    }
    return lease(**{**told, **more})


def lines_of(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def test_a_job_is_one_row_with_all_its_gpus() -> None:
    leases = [worker(1), lease(id="f" * 32), worker(0), worker(2)]
    document = status(leases=leases)
    told = {
        "cell": lines_of(render.status_text(document), "digits,"),
        "terminal": lines_of(cli_leases.lease_table(leases, 100.0), "digits,"),
    }
    for where, lines in told.items():
        assert len(lines) == 1, where
        assert "digits, 3 workers" in lines[0], where
        assert "3 leases" in lines[0], where
        assert "1 min" in lines[0], where
    assert "0, 1, 2: 9 GiB of 24 GiB in all" in told["cell"][0]
    assert "0,1,2" in told["terminal"][0]
    html = render.status_html(document)
    assert html.count("digits, 3 workers") == 1
    assert "elastic.member" not in html + render.status_text(document)
    assert "train.ipynb" in html  # a lease by itself has its row as before


def test_the_workers_of_a_job_are_in_several_states() -> None:
    leases = [worker(0), worker(1, state="draining"), worker(2)]
    assert "2 active, 1 draining" in cli_leases.lease_table(leases, 100.0)
    assert "2 ● in use, 1 ◐ ended, memory still in use" in render.status_text(status(leases=leases))


def test_jobs_of_two_people_with_one_name_are_two() -> None:
    leases = [worker(0), worker(1, environment="bob", mine=False), worker(2, job="letters")]
    table = cli_leases.lease_table(leases, 100.0)
    assert len(lines_of(table, "digits, 1 worker")) == 2
    assert len(lines_of(table, "letters, 1 worker")) == 1


def test_others_do_not_tell_of_which_job_they_are() -> None:
    hidden = {"id": None, "environment": None, "mine": False, "name": None, "job": None}
    leases = [worker(index, **hidden) for index in range(2)]
    assert len(lines_of(cli_leases.lease_table(leases, 100.0), "someone else")) == 2
    assert len(lines_of(render.status_text(status(leases=leases)), "somebody else")) == 2


def test_each_lease_of_a_job_can_be_seen() -> None:
    table = cli_leases.lease_table([worker(0), worker(1)], 100.0, each=True)
    assert len(lines_of(table, "digits, 2 workers")) == 1
    assert len(lines_of(table, "python -m jupyter_gpushare")) == 2


@given(st.lists(st.tuples(st.sampled_from([None, "alice", "bob"]), st.sampled_from([None, "a"]))))
def test_rows_have_each_lease_once_in_its_order(told: list[tuple[str | None, str | None]]) -> None:
    leases = [{"id": n, "environment": who, "job": job} for n, (who, job) in enumerate(told)]
    found = holding.rows(leases)
    assert sorted(one["id"] for row in found for one in row) == list(range(len(told)))
    firsts = [row[0]["id"] for row in found]
    assert firsts == sorted(firsts)
    for row in found:
        assert len(row) == 1 or {(one["environment"], one["job"]) for one in row} in (
            {("alice", "a")},
            {("bob", "a")},
        )
