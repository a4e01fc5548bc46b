"""The pages put what the node manager says where it belongs, and keep what is typed in a form.

From the golden documents: no Hub, no browser.
"""

from __future__ import annotations

import asyncio
import copy
import csv
import io
from typing import Any

import pytest
from golden.situations import SITUATIONS, golden
from hypothesis import example, given, strategies as st

from jupyter_gpushare.hub.site import hub_templates
from jupyter_gpushare.pages import forms, live, views
from jupyter_gpushare.pages.admin import RevokeFormHandler
from jupyter_gpushare.pages.csvfile import to_csv
from jupyter_gpushare.pages.hosts import of_status
from jupyter_gpushare.pages.listing import EVENT_FILTERS, Listing, Member, page_of
from jupyter_gpushare.pages.own import own_view
from jupyter_gpushare.pages.page import Answered
from jupyter_gpushare.pages.shown import Fact, Shown
from jupyter_gpushare.protocol import said
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.quota import quota_text, source_text
from jupyter_gpushare.protocol.sizes import parse_size
from jupyter_gpushare.quota import FIELDS

GIB = 2**30
TEMPLATES = hub_templates(())


def own_page(status: Any) -> str:
    node = own_view(Answered("gpuhost", status), [of_status("gpuhost", status)])
    template = TEMPLATES.get_template("gpushare/user_live.html")
    return template.render(node=node, prefix="/p/", xsrf="x")


def admin_page(status: Any) -> str:
    leases = views.leases(status, everybody=True)
    node = {"name": "gpuhost", "page": page_of([], Listing()), "leases": leases}
    node |= views.node_parts(status)
    template = TEMPLATES.get_template("gpushare/admin_live.html")
    return template.render(node=node, wanted=Listing(), prefix="/p/", windows={"1d": ""})


# -- what is said ----------------------------------------------------------------------------------


NOW = 1_700_000_000.0
#: What a page leaves out: it has the words elsewhere, or a button or another page has the fact.
LEFT_OUT = {"you", "used", "summary", "countdown", "who"}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_page_has_all_that_is_said_to_its_reader(name: str) -> None:
    for viewer, status in SITUATIONS[name]().documents().items():
        node, now = status["node"], status["node"]["time"]
        rows = [row for row in status["leases"] if row["mine"]]
        places = [row for row in status["queue"] if row["mine"]]
        page = own_page(status)
        for part in (
            status,
            status["quota"],
            *status.get("servers", ()),
            *status["gpus"],
            *rows,
            *places,
        ):
            for fact in Shown(part, now).facts:
                assert fact.about in LEFT_OUT | {"node"} or fact.text in page, (viewer, fact)
        if status["admin"]:
            page = admin_page(status)
            for part in (status, *status["gpus"], *status["leases"]):
                for fact in Shown(part, now).facts:
                    assert fact.about in LEFT_OUT or fact.text in page, (node["name"], fact)


def test_what_people_name_things_is_text_and_what_is_typed_is_code() -> None:
    figure = f"{{bytes {GIB}}}"
    evil = {"about": "keeps", "tone": "warn", "text": f"<b> {figure} `run it`", "hint": '"><i>'}
    fact = Fact.of(evil, NOW)
    assert fact.text == "&lt;b&gt; 1 GiB <code>run it</code>"
    assert fact.plain == "<b> 1 GiB `run it`"
    status = golden("busy_and_idle")
    for lease in status["leases"]:
        lease["says"] = ["what <script src=//x>", *lease["says"], evil]
    for page in (own_page(status), admin_page(status)):
        assert "<i>" not in page
        assert "<script src=//x" not in page
        assert "&gt;&lt;i&gt;" in page
        assert "&lt;script src=//x&gt;" in page


def test_moments_are_marked_for_the_readers_clock() -> None:
    def text(form: str) -> str:
        return Fact.of({"about": "promise", "text": f"By {{{form} {NOW + 90}}}."}, NOW).text

    at = '<time datetime="2023-11-14T22:14:50+00:00"'
    assert text("clock") == f"By {at}>2023-11-14 22:14 UTC</time>."
    assert text("left") == f'By {at} class="gs-span">2 min</time>.'
    assert text("nonsense") == "By ?."


def test_a_bar_is_as_long_as_its_share_and_trouble_is_an_alert() -> None:
    status = golden("limits_are_lifted")
    held = said.about(status["quota"], "held")[0]
    held["share"] = 0.375
    page = own_page(status)
    assert f'aria-label="GPUs: {held["text"]}"' in page
    assert '<rect class="gs-fill" width="37.5" height="1"/>' in page
    assert "alert-warning" not in page
    page = own_page(golden("the_ledger_is_new"))
    assert '<div class="alert alert-warning">' in page
    page = own_page(golden("walls_do_not_stand"))
    assert "<code>systemctl status jupyter-gpushare-walls</code></div></div>" in page


# -- leases ----------------------------------------------------------------------------------------


def test_a_persons_own_leases_those_that_wait_first() -> None:
    shown = views.leases(golden("waits_for_ones_own_tasks"))
    assert [one.of["state"] == "queued" for one in shown] == sorted(
        (one.of["state"] == "queued" for one in shown), reverse=True
    )
    assert all(one.of["mine"] for one in shown)
    assert len({one.key for one in shown}) == len(shown)


def test_a_job_is_a_row_above_those_of_its_leases() -> None:
    status = golden("jobs_of_several_workers", "root")
    shown = views.leases(status, everybody=True)
    rows = [(one.key.partition("-")[0] == "job", one.of["environment"]) for one in shown]
    assert sum(is_job for is_job, _ in rows) == len(status["jobs"]) == 2
    for job in status["jobs"]:
        keys = [one.key for one in shown]
        first = keys.index(f"job-{job['leases'][0]}")
        assert set(keys[first + 1 : first + 1 + len(job["leases"])]) == {*job["leases"]}
    assert not any(one.can_release or one.can_revoke for one in shown if "job-" in one.key)


@pytest.mark.parametrize(
    ("more", "can"),
    [
        ({}, {"release", "revoke", "keep"}),
        ({"kind": "process"}, {"release", "revoke"}),
        ({"state": "parked", "phase": "parked"}, {"release", "revoke"}),
        ({"state": "queued", "phase": "queued"}, {"cancel", "revoke"}),
        ({"state": "draining", "phase": "ended"}, set()),
        ({"mine": False}, {"revoke"}),
        ({"mine": False, "id": None}, set()),
    ],
)
def test_what_may_be_done_with_a_lease(more: dict[str, Any], can: set[str]) -> None:
    status = golden("busy_and_idle")
    status["leases"] = [{**status["leases"][0], "mine": True, **more}]
    status["jobs"] = []
    (one,) = views.leases(status, everybody=True)
    assert {
        what for what in ("release", "cancel", "revoke", "keep") if getattr(one, f"can_{what}")
    } == can
    status["node"]["pin_limit"] = 0.0
    assert not views.leases(status, everybody=True)[0].can_keep


def test_a_gpu_that_is_about_to_go_is_kept_by_a_button() -> None:
    status = golden("warned_because_others_wait", "bob")
    assert "Keep the GPU:" in own_page(status)
    (row,) = (row for row in status["leases"] if row["mine"])
    row |= {"warning": None, "pinned_until": status["node"]["time"] + 60}
    assert "Keep the GPU no longer:" in own_page(status)
    row["pinned_until"] = status["node"]["time"]
    assert "Keep the GPU" not in own_page(status)


def test_what_a_revoked_lease_costs_its_person() -> None:
    def loses(name: str, viewer: str = "alice") -> set[str]:
        return {one.loses for one in views.leases(golden(name, viewer))}

    assert loses("busy_and_idle") == {"GPU 0"}
    assert loses("no_room") == {"the place in the queue"}
    assert "the parked lease, but no variables," in loses("parked_by_each_rung")


class _Revoking(RevokeFormHandler):
    """Of the form only what finds the lease, in front of a node of two pages."""

    viewer, link = None, None  # type: ignore[assignment] # `ask` answers instead

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def ask(self, node: str, method: Method, **params: Any) -> Any:
        page = params.get("page", 0)
        status = golden("busy_and_idle", "root")
        row = {**status["leases"][0], "id": f"on-page-{page}"}
        left = {"leases": 1 - page, "queue": 0}
        return {**status, "leases": [row], "jobs": [], "more": left}

    def page(self, template: str, **more: Any) -> None:
        self.shown.append(more["lease"].key)


@pytest.mark.parametrize("name", ["on-page-0", "on-page-1"])
def test_a_lease_of_any_page_can_be_revoked(name: str) -> None:
    form = _Revoking()
    asyncio.run(form._form("node", name, "", ""))
    assert form.shown == [name]


# -- the queue, quotas -----------------------------------------------------------------------------


def test_a_long_queue_is_cut_but_for_ones_own_place() -> None:
    status = golden("no_room")
    (mine,) = (row for row in status["queue"] if row["mine"])
    other = {**mine, "mine": False, "lease": None}
    status["queue"] = [other] * 70 + [mine]
    node = views.node_parts(status)
    assert (len(node["queue"]), node["more"]) == (51, 20)
    assert node["queue"][-1].of["mine"]
    assert "… and 20 more." in own_page(status)


def test_each_named_server_shows_its_own_quota() -> None:
    status = golden("named_servers_have_their_own", "alice's servers")
    names = [server for server, _quota in views.quotas(status)]
    assert names[0] == ""
    assert len(names) > 1
    page = own_page(status)
    assert page.index("Server without a name") < page.index(f"Server {names[1]}")
    assert "Server" not in own_page(golden("busy_and_idle"))


# -- what is news ----------------------------------------------------------------------------------


PASSING = (
    *("taking_turns", "the_driver_locks_it", "parked_by_each_rung", "warned_because_others_wait"),
    *("waits_for_an_idle_kernel", "over_its_limit", "a_promise_is_on_time", "out_of_service"),
)


@pytest.mark.parametrize("name", PASSING)
def test_time_that_passes_is_no_news(name: str) -> None:
    situation = SITUATIONS[name]()
    before = situation.documents()
    situation.world.at += 0.7
    for viewer, document in situation.documents().items():
        assert views.fingerprint(document) == views.fingerprint(before[viewer])


def test_measurements_alone_are_no_news() -> None:
    status = golden("busy_and_idle")
    before, later = views.fingerprint(status), copy.deepcopy(status)
    lease = next(row for row in later["leases"] if row["mine"])
    lease["gpus"][0]["measured"] = 7
    memory = said.about(lease, "memory")[0]
    memory |= {"text": "{bytes 7} of {bytes 7}", "share": 0.1}
    assert views.fingerprint(later) == before
    for step in (5, 6):
        lease["says"].append(f"progress Step {step} of 10.")
        assert views.fingerprint(later) == before
    lease["says"].append("why!")
    assert views.fingerprint(later) != before
    assert views.fingerprint(None) != before


async def test_an_open_page_is_told_of_one_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.LiveHandler, "pause", 0.0)

    class Listener(live.LiveHandler):
        viewer, link = None, None  # type: ignore[assignment] # nobody asks here

    listener, told = object.__new__(Listener), list[str]()

    async def write(message: str) -> None:
        told.append(message)

    listener._changed = asyncio.Event()
    monkeypatch.setattr(listener, "write_message", write)
    telling = asyncio.create_task(listener._tell())
    for times in (1, 2):
        listener._changed.set()
        for _ in range(20):  # turns of the loop: it would tell more often if it did
            await asyncio.sleep(0)
        assert told == [live.CHANGED] * times
    telling.cancel()


# -- administrators' tables ------------------------------------------------------------------------


def quota(**more: Any) -> dict[str, Any]:
    usual = {"gpus": 2, "memory": 8 * GIB, "weight": 1.0, "source": "group", "used_gpus": 1}
    return {**usual, "budget": None, **more}


def test_environments_are_those_with_a_quota_or_a_use() -> None:
    used = {"environment": "old", "gpu_seconds_held": 7200.0, "gpu_seconds_busy": 36.0, "leases": 1}
    used |= {"gpu_seconds_charged": 7200.0, "resident_gib_seconds": 0.0}
    listed = {"environment": "alice", **quota(source="override")}
    default = {"gpus": 1, "memory": None, "weight": 1.0}
    status = {"leases": [{"environment": "alice", "phase": p} for p in ("held", "queued", "ended")]}
    known = views.members({"quotas": [listed], "default": default}, {"rows": [used]}, status)
    alice, old = map(views.environment_view, known)
    assert (alice["of"].name, alice["of"].held, alice["of"].waiting) == ("alice", 1, 1)
    assert (old["of"].name, old["use"]["text"]) == ("old", "0 of 1")
    assert (old["of"].seconds, old["busy"], old["of"].held) == (7200.0, "0.01 busy", 0)
    used |= {"gpu_seconds_charged": 3600.0, "resident_gib_seconds": 4 * 3600.0}
    assert views._busy_text(used) == "0.01 busy, 1 charged, 4.0 GiB-hours"
    assert not alice["own"]
    assert alice["budget"] is None


def test_a_row_says_which_groups_and_what_the_quota_has_besides() -> None:
    budget = {"hours": 20.0, "spent": 21.0, "window": 3600.0, "per": "month", "when": "this month"}
    more = {"source": "group", "from_groups": ["staff"], "groups": ["staff", "all"], "seen": False}
    own = {"idle_timeout": 600.0, "own_burst_memory": 0.9, "budget": {**budget, "level": "spent"}}
    row = views.environment_view(Member("a", quota(**more, **own), 0, 0, None))
    assert (row["about"], row["own"]) == ("staff, all, was never here", "")
    mine = views.environment_view(Member("a", quota(source="override", **own), 0, 0, None))
    assert mine["own"] == "idle time-out: 10 min, limits lifted up to: 0.9 of a GPU"
    assert row["budget"] is not None
    assert row["budget"]["text"] == "21 of 20 this month"
    assert row["budget"]["tone"] == "bad"
    assert source_text(more) == "group staff"
    assert source_text({**more, "from_groups": ["a", "b"]}) == "groups a, b"


OWNS = ("idle time-out", "limits lifted up to", "reserves")
ANY = dict.fromkeys(EVENT_FILTERS, "")


def test_events_are_filtered() -> None:
    def event(at: float, what: str, who: str | None, text: str) -> dict[str, Any]:
        return {"at": at, "what": what, "environment": who, "text": text}

    events = [
        event(1, "lease ended", "alice", "ended: Released"),
        event(3, "got a GPU", "bob", "got 1 GPU"),
        event(2, "node manager started", None, "the node manager started"),
    ]
    for wanted, at in (
        ({}, [3, 2, 1]),
        ({"environment": "bob"}, [3]),
        ({"kind": "node manager started"}, [2]),
        ({"text": "RELEASED"}, [1]),
    ):
        found = views.events_shown(events, {**ANY, **wanted}, {})
        assert [event["at"] for event in found] == at


def test_gpus_in_events_are_called_by_their_number() -> None:
    uuid, other = (f"GPU-6e1dde2d-16ba-5aed-bf4e-5700532b275{last}" for last in "bc")
    text = f"got 2 GPUs, 8 GiB: {uuid}, {other}"
    event = {"at": 1.0, "what": "got a GPU", "environment": "a", "text": text}
    (shown,) = views.events_shown([event], ANY, {uuid: "GPU 0"})
    assert shown["text"] == f"got 2 GPUs, 8 GiB: GPU 0, {other}"


def a_day(held: float = 0.0, busy: float = 0.0, **more: float) -> dict[str, float]:
    leases = 1 if held else 0
    told = {"held": held, "busy": busy, "leases": leases, "charged": held}
    return {**told, "resident_gib_seconds": 0.0, **more}


def test_days_of_all_nodes_are_added_up() -> None:
    def document(held: float) -> dict[str, Any]:
        return {"days": [a_day(held, held / 2), a_day()]}

    names = ["2026-11-20", "2026-11-21"]
    view = views.days_view([document(3600.0), document(5400.0)], names, "UTC")
    first, second = view["columns"]
    assert (first["held"], first["busy"], first["leases"]) == ("2.5", "1.25", 2)
    heights = (first["held_height"], second["held_height"])
    assert (view["top"], *heights) == ("2.5 h", view["height"], 0)
    assert view["summary"] == "In the last 2 days: 2.5 GPU-hours held, 1.25 of them busy (50%)."
    assert not view["nothing"]
    assert (first["charged"], first["resident"]) == ("2.5", "0.0")
    told = {"charged": 1800.0, "resident_gib_seconds": 7200.0}
    turns = {"days": [a_day(3600.0, 3600.0, **told), a_day()]}
    view = views.days_view([turns, document(3600.0)], names, "UTC")
    assert (view["columns"][0]["charged"], view["columns"][0]["resident"]) == ("1.5", "2.0")
    assert view["summary"].endswith("; 1.5 count, the time of your turns.")
    assert views.days_view([{"days": [a_day()]}], ["2026-11-21"], "UTC")["nothing"]


@given(st.floats(1e-6, 1e9))
def test_the_axis_ends_at_or_above_the_most(most: float) -> None:
    assert most <= views.axis_top(most) <= most * 10.001


# -- forms -----------------------------------------------------------------------------------------


def quota_of(**more: Any) -> dict[str, Any]:
    return {"gpus": 1, "memory": None, "weight": 1, **more}


WHOLE = {"gpus": 1, "memory": 8 * GIB, "weight": 2.0}


@pytest.mark.parametrize(
    ("typed", "wish", "said"),
    [
        ({"gpus": "1"}, {"gpus": 1}, "GPUs: 1"),  # what the form lacks stays as it is
        (
            {"gpus": "1", "memory": "8", "weight": "2"},
            *(WHOLE, "GPUs: 1, memory on each GPU: 8 GiB, weight: 2"),
        ),
        ({"memory": ""}, {"memory": None}, "memory on each GPU: the whole GPU"),
        ({"memory": "0.5"}, {"memory": GIB // 2}, "memory on each GPU: 512 MiB"),
        ({"memory": "0,5"}, {"memory": GIB // 2}, "memory on each GPU: 512 MiB"),
        ({"memory": "16 GB"}, {"memory": 16 * 10**9}, "memory on each GPU: 14.9 GiB"),
        ({"memory": "512MiB"}, {"memory": 512 * 2**20}, "memory on each GPU: 512 MiB"),
        ({"gpu_hours": "2,5"}, {"gpu_hours": 2.5}, "GPU-hours: 2.5"),
        ({"gpu_hours": "0"}, {"gpu_hours": 0.0}, "GPU-hours: 0"),
        ({"gpu_hours": ""}, {"gpu_hours": None}, "GPU-hours: no budget"),
        ({"gpu_hours": "20", "per": ""}, {"gpu_hours": 20.0, "per": None}, "GPU-hours: 20"),
        (
            {"gpu_hours": "20", "per": "month"},
            *({"gpu_hours": 20.0, "per": "month"}, "GPU-hours: 20 this month"),
        ),
        (
            {"gpu_hours": "20", "per": "term", "first": "2026-10-01"},
            *({"gpu_hours": 20.0, "per": "2026-10-01"}, "GPU-hours: 20 since 2026-10-01"),
        ),
        (
            {"idle_timeout": "7,5", "burst_memory": "60GiB", "reserve": "Estimate"},
            {"idle_timeout": 450.0, "burst_memory": 60.0 * GIB, "reserve": "estimate"},
            "idle time-out: 8 min, limits lifted up to: 60 GiB, reserves: estimate",
        ),
        (
            {"idle_timeout": "", "burst_memory": "", "reserve": ""},
            {"idle_timeout": None, "burst_memory": None, "reserve": None},
            ", ".join(f"{what}: the node's own" for what in OWNS),
        ),
    ],
)
def test_what_is_typed_becomes_a_wish_and_is_shown_again(
    typed: dict[str, str], wish: dict[str, Any], said: str
) -> None:
    form, told = forms.read_quota(typed)
    assert not form.mistakes
    assert told == wish
    assert quota_text(told) == said
    listed = {**wish, "own_burst_memory": wish.get("burst_memory")}
    shown = {name: forms.filled(quota_of(**listed)).texts[name] for name in typed}
    assert forms.read_quota(shown)[1] == wish, "saved again it is the same"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("gpus", text) for text in ("", "-1", "1.5", "4097", "٣", "1e3", "all", "9" * 5000)),
        *(("memory", text) for text in ("0", "-1", "much", "8XB", "1e9", "nan", "9" * 30, "8B")),
        *(("weight", text) for text in ("", "0", "-1", "x", "inf", "1e3", "99999999")),
        *(("idle_timeout", text) for text in ("soon", "-1", "10x")),
        *(("burst_memory", text) for text in ("much", "-0.5", "1.5", "60")),
        *(("turn_offset", text) for text in ("much", "-1GiB")),
        *(("gpu_hours", text) for text in ("many", "-1", "1e3", "99999999999")),
        *(("reserve", "most"), ("per", "year"), ("first", "soon")),
    ],
)
def test_a_mistake_stands_beside_its_field_and_the_text_stays(field: str, text: str) -> None:
    usual = {"gpus": "1", "memory": "8", "weight": "2", "per": "term", "first": "2026-10-01"}
    form, _wish = forms.read_quota({**usual, field: text})
    assert list(form.mistakes) == [field]
    assert form.texts[field] == text


def test_the_form_has_every_field_of_a_quota() -> None:
    assert {part.name for part in forms.PARTS} == set(FIELDS)


@given(
    st.integers(0, 4096),
    st.one_of(st.none(), st.integers(2, 2**33).map((2**20).__mul__)),
)
def test_a_quota_survives_being_shown_and_saved(gpus: int, memory: int | None) -> None:
    quota = quota_of(gpus=gpus, memory=memory, weight=1.5, gpu_hours=1234567.5)
    shown = forms.filled(quota)
    form, wish = forms.read_quota(shown.texts)
    assert not form.mistakes
    assert quota.items() <= wish.items()
    assert forms.read_quota(shown.texts, now=shown)[1] == {}, "saved without a change"


def test_a_quota_is_shown_as_one_would_type_it() -> None:
    assert forms.filled(quota_of(memory=parse_size("16GB"))).texts["memory"] == "16GB", "not in GiB"
    assert forms.filled(quota_of(budget={"hours": 20.0})).texts["gpu_hours"] == "20"
    assert forms.filled(quota_of(idle_timeout=450.0)).texts["idle_timeout"] == "7.5"
    term = forms.filled(quota_of(gpu_hours=20.0, per="2026-10-01")).texts
    assert (term["per"], term["first"]) == ("term", "2026-10-01")


# -- CSV -------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"))))
@example([f"{first}1" for first in "=+-@\t\r\n"])
def test_names_come_out_of_a_csv_as_they_are_or_with_an_apostrophe(names: list[str]) -> None:
    text = to_csv(("name", "hours"), [(name, 1.5) for name in names])
    assert text.count("\r\n") > len(names)
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["name", "hours"]
    for name, (cell, figure) in zip(names, rows, strict=True):
        assert cell in (name, f"'{name}")
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert figure == "1.5"


@pytest.mark.parametrize(
    ("was", "now", "undo"),
    [
        ([], ["gpus"], {"action": "unset"}),
        (["gpus", "memory"], [], {"gpus": "1", "memory": "6GiB"}),
        (["gpus"], ["gpus", "memory"], {"memory": "", "follow": "memory"}),
        (["gpus", "gpu_hours"], ["gpus", "gpu_hours"], {"gpu_hours": "20"}),
    ],
)
def test_an_edit_of_a_quota_is_undone(was: list[str], now: list[str], undo: dict[str, str]) -> None:
    before = {"gpus": 1, "memory": 6 * GIB, "weight": 1.0, "gpu_hours": 20.0, "own": was}
    after = {**before, "gpu_hours": 5.0, "own": now}
    told = dict(forms.undone(before, after))
    assert told == undo
    follow = [told["follow"]] if "follow" in told else []
    _form, wish = forms.read_quota(told, now=forms.filled(after), follow=follow)
    assert wish.get("follow", []) == follow


def test_of_several_only_what_is_ticked_is_changed() -> None:
    fields = {"gpus": "2", "memory": "", "gpu_hours": "20", "per": "", "idle_timeout": "nonsense"}
    form, wish = forms.read_quota(fields, ["gpu_hours"])
    assert wish == {"gpu_hours": 20.0}, "what the hours are for stays as each has it"
    assert not form.mistakes
    assert forms.read_quota(fields, ["gpu_hours", "per"])[1] == {"gpu_hours": 20.0, "per": None}
    assert forms.read_quota(fields, [])[0].mistakes.keys() == {"ticked"}


def test_a_name_that_is_none() -> None:
    assert forms.checked_names([" alice ", "bob"]) == (["alice", "bob"], "")
    assert forms.checked_names(["x" * 256]) == (["x" * 256], "")
    for wrong in ("", "a\x00b", "x" * 257):
        assert forms.checked_names(["bob", wrong])[1]
