"""All that a node manager says is shown; nothing from elsewhere is markup or moves a cursor."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from golden.situations import SITUATIONS, golden as of
from hypothesis import given, strategies as st

from jupyter_gpushare.client.words import render
from jupyter_gpushare.client.words.settings import Ask
from jupyter_gpushare.protocol import said

GIB = 2**30
HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[2J\r\n\u202e"

#: What is shown elsewhere than in a status: in the panel's details, or by `%gpushare quota`.
ELSEWHERE = {"ability", "waits", "left", "source", "weight", "memory", "advice", "more", "budget"}
#: For small places of the panel: said at length in other sentences.
ELSEWHERE |= {"summary", "countdown", "turns"}


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


@pytest.mark.parametrize("name", SITUATIONS)
def test_all_that_is_said_is_shown(name: str) -> None:
    """To a terminal and in a notebook; of other people's leases, what stands in the columns."""
    for status in SITUATIONS[name]().documents().values():
        text, page = (
            render.show_status(status).text,
            check_html(render.show_status(status).html).text,
        )
        check_text(text)
        now = status["node"]["time"]
        jobs = {lease for job in status.get("jobs", ()) for lease in job["leases"]}
        own = [lease for lease in status["leases"] if lease["id"] and lease["id"] not in jobs]
        queued = [one for one in status["queue"] if one["mine"]]
        own = [lease for lease in own if lease["position"] is None and lease["state"] != "ended"]
        facts = [one for each in (*own, *status["gpus"], *queued) for one in said.says(each)]
        for one in (*said.says(status), *facts):
            if one["about"] not in ELSEWHERE:
                words = said.text_of(one, now)
                assert words in text, one
                assert words in page, one
        quota = render.show_quota(status).text
        for one in said.about(status["quota"], "quota", "source", "held", "left", "advice", "more"):
            assert said.text_of(one, now) in quota
        check_html(render.show_quota(status).html)


def test_times_count_on_without_the_node_manager() -> None:
    status = of("busy_and_idle")
    first = render.show_status(status).text
    later = {**status, "node": {**status["node"], "time": status["node"]["time"] + 3600}}
    assert "active for 10 min" in first
    assert "active for 1 h 10 min" in render.show_status(later).text


def test_a_kernels_own_lease_is_marked_and_ones_own_come_first() -> None:
    status = of("busy_and_idle", "bob")
    mine = next(lease["id"] for lease in status["leases"] if lease["mine"])
    shown = render.show_status(status, here=mine).text
    assert "read.ipynb (this one)" in shown
    assert shown.index("bob (you)") < shown.index("someone else  ")


def test_a_job_is_one_row_and_each_of_its_leases_can_be_seen() -> None:
    status = of("jobs_of_several_workers")
    job = status["jobs"][0]
    name = said.first(job, "what", 0.0)
    assert render.show_status(status).text.count(name) == 1
    assert f"{len(job['leases'])} leases" in render.show_status(status).text
    each = render.show_leases(status, each=True).text
    assert all(lease[:12] in each for lease in job["leases"])


def test_a_status_without_sentences_is_a_table_of_what_there_is() -> None:
    """A node manager of the baseline composes none."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(part) for key, part in value.items() if key != "says"}
        return [without(part) for part in value] if isinstance(value, list) else value

    for name in ("busy_and_idle", "no_room"):
        bare = without(of(name))
        check_text(render.show_status(bare).text)
        check_html(render.show_status(bare).html)
        assert "Your quota is not known." in render.show_quota(bare).text


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


documents = st.sampled_from([of("no_room"), of("draining", "carol")]).flatmap(same_shape)


@given(documents)
def test_any_status_is_safe_html_and_text(document: dict[str, Any]) -> None:
    check_html(render.show_status(document).html)
    check_text(render.show_status(document).text)
    check_html(render.show_quota(document).html)
    check_text(render.show_quota(document).text)


@given(same_shape([{"at": 1.0, "kind": "x", "environment": "a", "lease": "b", "text": "c"}]))
def test_any_history_is_safe(events: list[dict[str, Any]]) -> None:
    check_html(render.show_history(events).html)
    check_text(render.show_history(events).text)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("position", "time", "message", "lease"), leaves),
            "says": same_shape([of("no_room")["queue"][0]["says"][0]]) | leaves,
            "hints": same_shape([{"host": "c", "text": "x"}]) | leaves,
        },
    ),
    st.floats(),
)
def test_any_notice_is_safe(notice: dict[str, Any], seconds: float) -> None:
    check_html(render.show_waiting(notice, seconds, HOSTILE).html)
    check_text(render.waiting_line(notice, seconds))
    assert "\n" not in render.waiting_line(notice, seconds)


def test_hostile_names_are_shown_as_they_are() -> None:
    status = of("busy_and_idle")
    status["leases"][0]["says"][1]["text"] = HOSTILE
    assert "<img src=x onerror=alert(1)>" in check_html(render.show_status(status).html).text


def test_memory_bars_have_the_right_widths() -> None:
    part = {"about": "part", "tone": "plain", "text": "x"}
    shares = {"mine": 1 / 3, "others": 1 / 6, "system": 0.02, "unleased": 0.0625, "free": 0.4}
    status = of("nobody_is_there")
    status["gpus"] = status["gpus"][:1]
    status["gpus"][0]["says"] = [{**part, "kind": k, "share": s} for k, s in shares.items()]
    widths = re.findall(r"width:([0-9.]+)%", render.show_status(status).html)
    assert [float(width) for width in widths] == pytest.approx([33.3, 16.7, 2, 6.2], abs=0.1)
    assert "[#######===:!........]" in render.show_status(status).text


def test_what_was_used_lately_is_told() -> None:
    usage = {
        "since": 0.0,
        "until": 7 * 86400.0,
        "rows": [
            {"environment": who, **{f"gpu_seconds_{one}": held for one in ("held", "charged")}}
            | {"gpu_seconds_busy": busy}
            for who, held, busy in (("alice", 7200.0, 1800.0), ("bob", 1e9, 1e9))
        ],
    }
    text = render.show_quota(of("busy_and_idle"), usage).text
    assert "In the last 7 d: 2 GPU-hours held, 0.5 of them busy (25%)." in text
    assert "■□" in check_html(render.show_quota(of("busy_and_idle"), usage).html).text


def test_nothing_happened_yet() -> None:
    for told in render.show_history([]):
        assert "Nothing has happened yet." in told


def test_help_is_complete() -> None:
    from jupyter_gpushare.client.cell.magics import VERB_OPTIONS

    page = check_html(render.show_help().html).text
    for verb, options in VERB_OPTIONS.items():
        for word in (f"%gpushare {verb}", *options):
            assert word in render.show_help().text
            assert word in page


def notice(name: str, viewer: str = "alice") -> dict[str, Any]:
    """The row of a viewer's own request, as its `queued` notice has it."""
    status = of(name, viewer)
    row = next(row for row in status["queue"] if row["mine"])
    return {**row, "time": status["node"]["time"]}


def test_waiting_says_place_who_is_ahead_how_long_and_why() -> None:
    line = render.waiting_line(notice("no_room", "bob"), 75)
    ahead = "1 interactive ahead"
    assert line == f"Waiting for GPUs: number 2 in line; {ahead}; 1 min so far"
    page = check_html(render.show_waiting(notice("no_room"), 12, "Interrupt to leave.").html).text
    for words in ("nobody is ahead", "No GPU is free for you now.", "Interrupt to leave."):
        assert words in page
    spent = render.waiting_line(notice("gpu_hours_are_spent", "bob"), 5)
    assert "GPU-hours are spent" in spent
    assert "ahead" not in spent


def test_who_waits_is_told_on_a_terminal_too_where_she_would_not() -> None:
    text = "Host c has a free GPU now: start your kernel there."
    waits = {**notice("no_room"), "hints": [{"host": "c", "text": text}]}
    assert render.waiting_line(waits, 5).endswith(f"5 s so far; {text[:-1]}")
    narrow = render.waiting_line_within(waits, 5, "Ctrl-C leaves", 80)
    assert narrow == f"{text[:-1]}; 5 s so far"
    for wrong in (None, "c", [], [None], [{}]):
        assert render.waiting_line({**waits, "hints": wrong}, 5).endswith("5 s so far")


def test_asks_in_words() -> None:
    assert Ask().words == "1 GPU"
    assert Ask(2, GIB, "batch").words == "2 GPUs with 1 GiB on each, class batch"


def test_what_is_to_be_typed_is_code_in_a_notebook() -> None:
    shown = render.show_notice("Until `%gpushare release` <or> its end.", good=True).html
    assert "<code>%gpushare release</code> &lt;or&gt; its end." in shown
    assert "<code>%gpushare resume</code>" in render.show_note("Run `%gpushare resume`.").html
