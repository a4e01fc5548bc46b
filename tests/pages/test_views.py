"""The pages say in words what is so, and keep a form's text when something is wrong with it.

From documents: no Hub, no browser.
"""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.pages import forms, live, views, words
from jupyter_gpushare.pages.admin import RevokeFormHandler
from jupyter_gpushare.pages.csvfile import to_csv
from jupyter_gpushare.pages.listing import Member
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.quota import quota_text
from jupyter_gpushare.protocol.sizes import parse_size
from jupyter_gpushare.quota import FIELDS

GIB = 2**30


def gpu(**more: Any) -> dict[str, Any]:
    return {
        **{"uuid": "GPU-0", "index": 0, "name": "A card", "memory": 24 * GIB, "reserved": 0},
        **{"unleased": 0, "free": 24 * GIB, "used": None, "mine": 0, "utilisation": None},
        **{"tasks": 0, "health": "ok", "problem": None, "squatters": []},
        **more,
    }


def lease(**more: Any) -> dict[str, Any]:
    part = {"uuid": "GPU-0", "index": 0, "memory": 8 * GIB, "measured": 2 * GIB}
    return {
        **{"id": "l1", "environment": "alice", "mine": True, "state": "active", "phase": "held"},
        **{"activity": "busy", "name": "kernel", "kind": "kernel", "kernel_id": "k"},
        **{"path": "course/a.ipynb", "pid": 1, "gpus": [part]},
        **{"asked": {"gpus": 1, "memory": None}, "priority_class": "interactive"},
        **{"requested": 100.0, "granted": 101.0, "since": 940.0, "age": 899.0},
        **{"position": None, "reason": None, "kept": None, "rung": None, "parked_memory": None},
        **{"warning": None, "pinned_until": None, "ability": None},
        **more,
    }


def shown_lease(**more: Any) -> views.LeaseView:
    (one,) = views.lease_views(status(leases=[lease(**more)]))
    return one


def test_an_open_page_is_told_of_one_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_AT_MOST_EVERY", 0.0)
    listener, told = object.__new__(live.LiveHandler), list[str]()

    async def write(message: str) -> None:
        told.append(message)

    async def story() -> None:
        listener._changed = asyncio.Event()
        monkeypatch.setattr(listener, "write_message", write)
        telling = asyncio.create_task(listener._tell())
        for times in (1, 2):
            listener._changed.set()
            for _ in range(20):  # turns of the loop: it would tell more often if it did
                await asyncio.sleep(0)
            assert told == [live.CHANGED] * times
        telling.cancel()

    asyncio.run(story())


@pytest.mark.parametrize("reason", sorted(words.WARNINGS))
def test_a_warning_says_when_and_why(reason: str) -> None:
    shown = shown_lease(state="idle", warning={"reason": reason, "at": 1024.3})
    assert shown.warning.startswith("The GPU is taken back in at most 25 s: it ")
    assert shown.warning.endswith(". Variables are kept.")
    assert shown.can_keep
    assert not shown.is_kept
    assert "at most 1 s" in shown_lease(warning={"reason": reason, "at": 900.0}).warning
    assert shown_lease().warning == ""


def test_until_when_a_gpu_is_kept() -> None:
    assert shown_lease(pinned_until=1600.0).parking == "Kept for 10 min more."
    assert shown_lease(pinned_until=1600.0).is_kept
    over = shown_lease(pinned_until=1000.0)
    assert (over.parking, over.is_kept) == ("", False)


def test_whose_turn_it_is_and_which_limits_are_in_force() -> None:
    assert shown_lease().sharing == ""
    assert shown_lease(turn=None, overran=False, over_limit=None).sharing == ""
    assert shown_lease(turn="waits", overran=False).sharing == "Waits for its turn."
    paused = shown_lease(turn="waits", turn_since=980.0, pauses={"times": 3, "seconds": 41.0})
    assert paused.sharing == "Paused for somebody's turn, so far 20 s, 3 times in this cell."
    soon = shown_lease(turn="waits", turn_since=980.0, turn_expected=1018.0)
    assert soon.sharing == "Paused for somebody's turn, so far 20 s, about 20 s more."
    overdue = shown_lease(turn="waits", turn_since=980.0, turn_expected=999.0)
    assert overdue.sharing == "Paused for somebody's turn, so far 20 s."
    locked = shown_lease(turn="waits", interrupted={"what": "locked", "until": 1005.0}).sharing
    assert locked == "Paused by the driver's lock, for 5 s more at most. Waits for its turn."
    stops = shown_lease(interrupted={"what": "stops", "until": 1060.0}).sharing
    assert stops == "Saves its state and stops, within 1 min."
    moved = shown_lease(pauses={"times": 0, "seconds": 0.0, "moved": 1}).sharing
    assert moved == "Moved to another GPU once in this cell."
    late = shown_lease(turn=None, overran=True).sharing
    assert late == "Did not give its turn back in time."
    part = {"uuid": "GPU-0", "index": 0, "memory": 8 * GIB, "measured": 2 * GIB}
    lifted = shown_lease(gpus=[{**part, "limit": 12 * GIB}]).sharing
    assert lifted == "Its limit on GPU 0 is lifted to 12 GiB."
    lowered = shown_lease(gpus=[{**part, "limit": 6 * GIB}]).sharing
    assert lowered == "Its limit on GPU 0 is lowered to 6 GiB."
    ranged = shown_lease(gpus=[{**part, "limit": 12 * GIB}], memory_most=40 * GIB).sharing
    assert ranged == "May use 12 GiB of 8 GiB to 40 GiB on GPU 0."
    over = {"gpu": "GPU-0", "used": 9 * GIB, "limit": 8 * GIB, "since": 900.0, "stage": "warned"}
    text = shown_lease(over_limit={**over, "next": "trim", "next_at": 1004.2}).sharing
    assert text == "Uses 9 GiB and may use 8 GiB. Its caches are emptied in at most 5 s."
    last = shown_lease(over_limit={**over, "next": None, "next_at": None}).sharing
    assert last == "Uses 9 GiB and may use 8 GiB."


def test_what_was_promised_and_whether_promises_were_kept() -> None:
    promise = {"deadline": 1600.0, "rate": None, "named": True, "state": "late", "why": "full"}
    told = shown_lease(
        promise={**promise, "expected_end": 2200.0, "share": 40},
        progress={"done": 4, "total": 10, "seconds": 1.0},
    )
    assert told.sharing == (
        "Promised to be ready in 10 min, will not be kept: others have the rest of the GPU, ready "
        "in about 20 min, 40 % of the GPU's time is its own. Step 4 of 10."
    )
    verdicts = {"window": 86400.0, "kept": 12, "missed": 1, "ended": 2}
    verdicts["why"] = [{"why": "slow", "missed": 1}]
    assert views.queue_view(status(promises=verdicts)).lately == (
        "Deadlines and rates, in the last 1 d: 12 promises kept, 1 missed (1 because all of the "
        "GPU would not be enough).",
    )
    none = {**verdicts, "kept": 0, "missed": 0, "why": []}
    assert views.queue_view(status(promises=none)).lately == ()
    assert views.fingerprint(status(leases=[lease(progress={"done": 4})])) == views.fingerprint(
        status(leases=[lease(progress={"done": 5})])
    ), "a page does not fetch for each step"


def test_a_page_does_not_fetch_for_the_clocks_last_digits() -> None:
    before, now = lease(requested=1795637244.2025392), lease(requested=1795637244.2025387)
    later = lease(requested=1795637246.0)
    first = views.fingerprint(status(leases=[before]))
    assert views.fingerprint(status(leases=[now])) == first
    assert views.fingerprint(status(leases=[later])) != first


def test_what_is_done_next_about_a_stalled_task() -> None:
    stall = {"next": "interrupt", "after": 1800.0, "at": None}
    text = shown_lease(stall=stall).sharing
    assert text == (
        "It is interrupted after 30 min without progress, if somebody waits for its memory."
    )
    text = shown_lease(stall={**stall, "next": "kill", "at": 1600.0}).sharing
    assert text == "Somebody waits for its memory: it is ended in 10 min unless it goes on."


def test_a_gpu_says_whose_turn_it_is_and_what_is_used_by_turns() -> None:
    shared = gpu(reserved=6 * GIB, mine=2 * GIB, shared=4 * GIB, lifted=0)
    taking = [
        lease(turn="holds"),
        lease(turn="waits", environment=None, mine=False, id=None),
        lease(turn="rest"),
    ]
    (shown,) = views.gpu_views(status(gpus=[shared], leases=taking))
    assert shown.time == (
        "by turns; your a.ipynb computes; next is someone else's notebook, paused"
    )
    assert shown.memory.startswith("your a.ipynb 2 GiB of 8 GiB; ")
    labels = [part.label for part in shown.parts]
    assert labels == ["2 GiB mine", "4 GiB others'", "4 GiB used by turns", "14 GiB free"]
    (alone,) = views.gpu_views(status(gpus=[shared], leases=[lease(turn=None)]))
    assert alone.time == "no turns; your a.ipynb computes now"
    (lifted,) = views.gpu_views(status(gpus=[gpu(lifted=3 * GIB)], leases=[]))
    assert lifted.facts.endswith(" · limits lifted by 3 GiB")


@pytest.mark.parametrize(
    "more",
    [{"kind": "process"}, {"mine": False, "id": None}, {"phase": "parked"}, {"phase": "queued"}],
)
def test_only_what_a_notebook_of_ones_own_holds_can_be_kept(more: dict[str, Any]) -> None:
    (one,) = views.lease_views(status(leases=[lease(**more)]), everybody=True)
    assert not one.can_keep


@pytest.mark.parametrize(
    ("rung", "said"),
    [
        ("release", "Released: nothing was on the GPU."),
        ("trim", "Caches emptied"),
        ("storage", "Tensors moved to host memory: 2 GiB."),
        ("driver", "Moved to host memory by the driver: 2 GiB."),
    ],
)
def test_how_a_lease_was_parked(rung: str, said: str) -> None:
    parked = {"state": "parked", "phase": "parked", "gpus": []}
    shown = shown_lease(rung=rung, parked_memory=2 * GIB, **parked)
    assert said in shown.parking
    assert (shown.word, shown.can_release) == ("Parked", True)


def test_host_memory_of_parked_tasks() -> None:
    node = {"parked_memory": 3 * GIB, "parked_memory_limit": 4 * GIB}
    assert views.host_memory_text(node) == "parked tasks take 3 GiB of 4 GiB of host memory"
    node = {"parked_memory": 3 * GIB, "parked_memory_limit": None}
    assert views.host_memory_text(node) == "parked tasks take 3 GiB of host memory"
    assert views.host_memory_text({**node, "parked_memory": 0}) == ""


def test_every_state_has_words() -> None:
    from jupyter_gpushare.node.views.status import DisplayState

    assert {state.value for state in DisplayState} == set(words.STATES)


def waiting(**more: Any) -> dict[str, Any]:
    return {
        **{"position": 2, "lease": "l2", "mine": True, "environment": "alice"},
        **{"priority_class": "interactive", "gpus": 1, "memory": 8 * GIB, "waiting": 75.0},
        **{"ahead": {"interactive": 1, "batch": 0}, "reason": "no_resources"},
        **{"message": "All are taken."},
        **more,
    }


def status(**more: Any) -> dict[str, Any]:
    return {
        "node": {
            **{"name": "n", "version": "1", "simulated": False, "problem": None, "time": 1000.0},
            **{"started": 0.0, "max_tasks_per_gpu": 4, "heartbeat_timeout": 15.0},
            **{"parked_memory": 0, "parked_memory_limit": None, "notify_before": 30.0},
            **{"pin_limit": 7200.0, "keep_for": 900.0},
        },
        **{"environment": "alice", "admin": False},
        "quota": {
            **{"gpus": 2, "memory": 8 * GIB, "weight": 1.0, "source": "group", "used_gpus": 1},
            "budget": None,
        },
        **{"gpus": [gpu(mine=8 * GIB, reserved=12 * GIB)], "leases": [], "queue": []},
        **more,
    }


def quota(**more: Any) -> dict[str, Any]:
    return {**status()["quota"], **more}


def test_a_quota_in_bars_and_words() -> None:
    view = views.quota_view(status())
    assert [(one.label, one.text, one.share) for one in view.bars] == [
        ("GPUs", "1 of 2", 0.5),
        ("Memory on GPU 0", "8 GiB of 8 GiB", 1.0),
    ]
    facts = {"Memory on each GPU": "8 GiB", "Weight": "1", "Set by": "group"}
    assert dict(view.facts) == facts, "an older node manager does not say what is left"
    assert view.advice == ""
    memory = [{"uuid": "GPU-0", "index": 0, "bytes": 0}, {"uuid": "G", "index": 1, "bytes": GIB}]
    for gpus, text in ((0, "1 GiB on GPU 1"), (2, "2 GPUs, 1 GiB on GPU 1")):
        left = quota(remaining={"gpus": gpus, "memory": memory})
        assert dict(views.quota_view(status(quota=left)).facts) == {"Left": text, **facts}
    full = quota(remaining={"gpus": 0, "memory": memory[:1]})
    assert dict(views.quota_view(status(quota=full)).facts)["Left"] == "nothing"


def test_each_named_server_shows_its_own_quota() -> None:
    row = {**quota(gpus=4, used_gpus=1), "environment": "alice/gpu", "mine": [6 * GIB]}
    own, named = views.quota_views(status(servers=[row], gpus=[gpu(mine=0)]))
    assert (own.server, own.bars[0].text) == ("", "1 of 2")
    assert named.server == "gpu"
    assert [(one.label, one.text) for one in named.bars] == [
        ("GPUs", "1 of 4"),
        ("Memory on GPU 0", "6 GiB of 8 GiB"),
    ]


def test_without_named_servers_there_is_one_quota() -> None:
    assert views.quota_views(status()) == (views.quota_view(status()),)


@pytest.mark.parametrize(
    ("given_quota", "said"),
    [
        (None, "knows no quota"),
        (quota(gpus=0, used_gpus=0), "Your quota is 0 GPUs"),
        (quota(gpus=0, used_gpus=1), "lowered"),
        (quota(gpus=1, used_gpus=2), "lowered"),
    ],
)
def test_what_is_wrong_with_a_quota_is_said(given_quota: Any, said: str) -> None:
    assert said in views.quota_view(status(quota=given_quota)).advice


@pytest.mark.parametrize(
    ("level", "said"), [("ok", ""), ("warned", "Most of"), ("spent", "are spent. You get")]
)
def test_a_budget_has_a_bar(level: str, said: str) -> None:
    budget = {"hours": 10.0, "spent": 4.0, "window": 7 * 86400.0, "level": level}
    view = views.quota_view(status(quota=quota(budget=budget)))
    assert (view.bars[-1].label, view.bars[-1].text) == ("GPU-hours in the last 7 d", "4.00 of 10")
    assert said in view.advice


def test_ones_own_leases_those_who_wait_first() -> None:
    shown = views.lease_views(
        status(
            leases=[
                lease(),
                lease(id=None, environment=None, mine=False, name=None, path=None),
                lease(
                    id="l2", state="queued", gpus=[], requested=990.0, path=None, name="train.py"
                ),
                lease(id="l3", state="ended"),
            ],
            queue=[waiting()],
        )
    )
    queued, held = shown
    assert (queued.title, queued.word, queued.lasts) == ("train.py", "Queued", "10 s")
    assert (queued.why, queued.can_cancel, queued.can_release) == ("All are taken.", True, False)
    assert queued.memory == "1 GPU asked"
    assert (held.title, held.where, held.lasts) == ("a.ipynb", "GPU 0", "1 min")
    assert (held.memory, held.can_release, held.can_cancel) == ("2 GiB of 8 GiB", True, False)


def test_what_is_not_measured_is_not_shown_as_nothing() -> None:
    part = {"uuid": "GPU-0", "index": 0, "memory": 8 * GIB, "measured": None}
    (shown,) = views.lease_views(status(leases=[lease(gpus=[part])]))
    assert shown.memory == "may use 8 GiB"
    assert shown.use is None


@pytest.mark.parametrize("state", ["stalled", "over_limit", "draining"])
def test_trouble_says_what_to_do(state: str) -> None:
    (shown,) = views.lease_views(status(leases=[lease(state=state)]))
    assert shown.why == words.STATES[state][1] != ""
    assert shown.can_release == (state != "draining")


def test_why_an_idle_gpu_is_kept_is_told() -> None:
    (shown,) = views.lease_views(status(leases=[lease(state="idle", kept="It computes.")]))
    assert shown.why == "It computes."


def test_what_a_revoked_lease_costs_its_person() -> None:
    assert shown_lease(state="active").loses.startswith("GPU ")
    assert shown_lease(state="queued", gpus=[]).loses == "the place in the queue"
    assert shown_lease(state="parked", gpus=[]).loses == "the parked lease, but no variables,"


def test_a_state_that_is_newer_than_the_page_is_shown_as_it_is() -> None:
    (shown,) = views.lease_views(status(leases=[lease(state="being_moved")]))
    assert shown.word == "Being moved"


def test_the_queue_says_ones_place_and_why() -> None:
    others = waiting(
        position=1, lease=None, mine=False, environment=None, message=None, priority_class="batch"
    )
    view = views.queue_view(status(queue=[others, waiting()]))
    (place,) = view.places
    assert (place.headline, place.waited, place.why) == (
        "You are number 2 in line",
        "1 min",
        "All are taken.",
    )
    assert place.ahead == "1 interactive request is ahead of you."
    assert view.summary == "2 waiting: 1 interactive, 1 batch."
    assert [row.who for row in view.rows] == ["Someone", "You"]


def test_who_waits_for_gpu_hours_stands_in_no_line() -> None:
    estimate = {"low": 7200.0, "high": 7200.0, "basis": "budget"}
    row = waiting(
        reason="budget_spent",
        message="Your GPU-hour budget is spent.",
        outlook={"estimate": estimate, "idle": None, "idle_after": 0.0},
    )
    (place,) = views.queue_view(status(queue=[row])).places
    assert place.headline == "Your GPU-hours are spent"
    assert place.ahead == ""
    assert place.why == "Your GPU-hour budget is spent."
    (shown,) = views.queue_view(status(queue=[row])).rows
    assert shown.waited.endswith(", GPU-hours spent")


def test_how_long_it_takes_is_told_beside_the_place() -> None:
    outlook = {
        "estimate": {"low": 600.0, "high": 1800.0, "basis": "waits"},
        "idle": None,
        "idle_after": 1800.0,
    }
    view = views.queue_view(status(queue=[waiting(outlook=outlook)]))
    assert view.places[0].why == (
        "All are taken. It takes about 10 to 30 min, as it did for others in the last hour. "
        "Idle GPUs are asked back after 30 min."
    )
    assert view.rows[0].waited.endswith(", about 10 to 30 min more")


def test_memory_is_told_for_each_gpu_and_who_shares_it() -> None:
    parts = [
        {"uuid": f"GPU-{n}", "index": n, "memory": 24 * GIB, "measured": None} for n in range(2)
    ]
    two = lease(id="l2", path="first.ipynb", gpus=parts)
    one, other = views.lease_views(status(leases=[lease(gpus=parts[:1]), two]))
    assert (one.memory, one.where) == ("may use 24 GiB", "GPU 0")
    assert (other.memory, other.where) == ("may use 24 GiB each", "GPU 0, GPU 1")
    assert one.sharing == "Shared with your first.ipynb."
    assert other.sharing == "Shared with your a.ipynb."


@pytest.mark.parametrize(
    ("interactive", "batch", "said"),
    [(0, 0, "Nobody"), (2, 0, "2 interactive requests are"), (0, 1, "1 batch request is")],
)
def test_who_is_ahead(interactive: int, batch: int, said: str) -> None:
    assert views.ahead_text({"interactive": interactive, "batch": batch}).startswith(said)


def test_a_long_queue_is_cut_and_says_so() -> None:
    view = views.queue_view(status(queue=[waiting(position=n) for n in range(1, 80)]))
    assert (len(view.rows), view.more) == (50, 29)
    cut = status(queue=[waiting(position=n) for n in range(1, 80)], more={"leases": 0, "queue": 7})
    view = views.queue_view(cut)
    assert (view.more, view.summary) == (36, "86 waiting.")


@given(
    mine=st.integers(0, 40 * GIB),
    reserved=st.integers(0, 40 * GIB),
    loose=st.integers(0, 40 * GIB),
    system=st.integers(0, 40 * GIB),
)
def test_the_parts_of_a_gpu_are_all_of_it(
    mine: int, reserved: int, loose: int, system: int
) -> None:
    told = gpu(mine=mine, reserved=reserved, unleased=loose, system=system)
    (view,) = views.gpu_views(status(gpus=[told]))
    assert all(part.share > 0 and part.start >= 0 for part in view.parts)
    assert sum(part.share for part in view.parts) == pytest.approx(1)


def test_a_lost_gpu_and_its_squatters_are_told() -> None:
    squatters = [
        {"pid": 7, "memory": GIB, "kind": "squatter"},
        {"pid": None, "memory": None, "kind": "over_limit"},
    ]
    (view,) = views.gpu_views(
        status(gpus=[gpu(health="lost", problem="XID 79", squatters=squatters)])
    )
    assert (view.healthy, view.problem) == (False, "XID 79")
    assert view.squatters == (
        "Process 7 uses 1 GiB without a lease.",
        "A process uses memory: more than its lease reserves.",
    )


def test_environments_are_those_with_a_quota_or_a_use() -> None:
    used = {"environment": "old", "gpu_seconds_held": 7200.0, "gpu_seconds_busy": 36.0, "leases": 1}
    leases = [
        lease(),
        lease(id="l2", state="queued", phase="queued"),
        lease(id="l3", state="ended", phase="ended"),
    ]
    known = views.members(
        {
            "quotas": [{"environment": "alice", **quota(source="override")}],
            "default": {"gpus": 1, "memory": None, "weight": 1.0},
        },
        {"rows": [used]},
        status(leases=leases),
    )
    alice, old = map(views.environment_view, known)
    assert (alice.name, alice.leases) == ("alice", "1, 1 waiting")
    assert (alice.held, alice.source) == ("0", "administrator")
    assert (old.name, old.use.text, old.memory) == ("old", "0 of 1", "the whole GPU")
    assert (old.held, old.busy, old.leases) == ("2.00", "0.01 busy", "0")
    used |= {"gpu_seconds_charged": 3600.0, "resident_gib_seconds": 4 * 3600.0}
    (old,) = views.members({"quotas": [], "default": {"gpus": 1}}, {"rows": [used]}, status())
    by_turns = views._busy_text(old.usage or {})
    assert by_turns == "0.01 busy, 1.00 charged, 4.0 GiB-hours"
    assert not alice.own
    assert alice.budget is None


def test_a_row_says_which_groups_and_what_the_quota_has_besides() -> None:
    budget = {"hours": 20.0, "spent": 21.0, "window": 3600.0, "per": "month", "when": "this month"}
    more = {"source": "group", "from_groups": ["staff"], "groups": ["staff", "all"], "seen": False}
    own = {"idle_timeout": 600.0, "own_burst_memory": 0.9, "budget": {**budget, "level": "spent"}}
    row = views.environment_view(Member("a", quota(**more, **own), 0, 0, None))
    assert (row.source, row.about, row.own) == ("group staff", "staff, all, was never here", "")
    mine = views.environment_view(Member("a", quota(source="override", **own), 0, 0, None))
    assert mine.own == "idle time-out: 10 min, limits lifted up to: 0.9 of a GPU"
    assert row.budget is not None
    assert row.budget.text == "21.0 of 20 this month"
    assert row.budget.level is views.Level.OVER
    both = views.environment_view(
        Member("a", quota(**{**more, "from_groups": ["a", "b"]}), 0, 0, None)
    )
    assert both.source == "groups a, b"
    # Of an older node manager, which says less.
    assert views.environment_view(Member("a", quota(source="group"), 0, 0, None)).source == "group"


def test_leases_of_those_who_are_looked_for() -> None:
    known = status(leases=[lease(), lease(id="b", environment="bob", mine=False)])
    (shown,) = views.lease_views(known, everybody=True, takes=lambda name: name == "bob")
    assert shown.lease == "b"


def test_events_are_filtered() -> None:
    def event(at: float, kind: str, who: str | None, text: str) -> dict[str, Any]:
        return {"at": at, "kind": kind, "environment": who, "text": text}

    events = [
        event(1, "LeaseEnded", "alice", "ended: Released"),
        event(3, "LeaseGranted", "bob", "got 1 GPU"),
        event(2, "BootSeen", None, "the node manager started"),
    ]
    assert [view.at for view in views.event_views(events, views.EventFilter(), {})] == [3, 2, 1]
    for wanted, at in (
        (views.EventFilter(environment="bob"), 3),
        (views.EventFilter(kind="BootSeen"), 2),
        (views.EventFilter(text="RELEASED"), 1),
    ):
        assert [view.at for view in views.event_views(events, wanted, {})] == [at]


def test_gpus_in_events_are_called_by_their_number() -> None:
    uuid, other = (f"GPU-6e1dde2d-16ba-5aed-bf4e-5700532b275{last}" for last in "bc")
    text = f"got 2 GPUs, 8 GiB: {uuid}, {other}"
    event = {"at": 1.0, "kind": "LeaseGranted", "environment": "a", "text": text}
    (view,) = views.event_views([event], views.EventFilter(), {uuid: "GPU 0"})
    assert view.text == f"got 2 GPUs, 8 GiB: GPU 0, {other}"


def test_days_of_all_nodes_are_added_up() -> None:
    def document(held: float) -> dict[str, Any]:
        return {"days": [{"held": held, "busy": held / 2, "leases": 1}, {**EMPTY_DAY}]}

    names = ["2026-11-20", "2026-11-21"]
    view = views.days_view([document(3600.0), document(5400.0)], names, "UTC")
    first, second = view.columns
    assert (first.held, first.busy, first.leases) == ("2.50", "1.25", 2)
    assert (view.top, first.held_height, second.held_height) == ("2.5 h", view.height, 0)
    assert view.summary == "2.50 GPU-hours held in 2 days; code ran in 1.25 of them (50 %)."
    assert not view.nothing
    assert (first.charged, first.resident) == ("2.50", "0.0"), "older node managers charge all"
    told = {"charged": 1800.0, "resident_gib_seconds": 7200.0}
    turns = {"days": [{"held": 3600.0, "busy": 3600.0, "leases": 1, **told}, EMPTY_DAY]}
    view = views.days_view([turns, document(3600.0)], names, "UTC")
    assert (view.columns[0].charged, view.columns[0].resident) == ("1.50", "2.0")
    assert view.summary.endswith("; 1.50 count, the time of your turns.")
    assert views.days_view([{"days": [EMPTY_DAY]}], ["2026-11-21"], "UTC").nothing


EMPTY_DAY = {"held": 0.0, "busy": 0.0, "leases": 0}


@given(st.floats(1e-6, 1e9))
def test_the_axis_ends_at_or_above_the_most(most: float) -> None:
    assert most <= views.axis_top(most) <= most * 10.001


def test_measurements_alone_are_no_news() -> None:
    before = views.fingerprint(status(leases=[lease()], queue=[waiting()]))
    later = status(leases=[lease(age=1.0)], queue=[waiting(waiting=1.0)])
    later["node"]["time"] += 5
    assert views.fingerprint(later) == before
    assert views.fingerprint(status(leases=[lease(state="idle")], queue=[waiting()])) != before
    assert views.fingerprint(None) != before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (273600, "3 d 4 h"),
    ],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


# -- forms -----------------------------------------------------------------------------------------


def typed(**fields: str) -> dict[str, str]:
    usual = {"gpus": "1", "memory": "8", "weight": "2"}
    return {**usual, **fields}


def test_a_form_becomes_a_wish() -> None:
    form, wish = forms.read_quota(typed())
    assert not form.mistakes
    assert wish == {"gpus": 1, "memory": 8 * GIB, "weight": 2.0}
    assert quota_text(wish) == "GPUs: 1, memory on each GPU: 8 GiB, weight: 2"


@pytest.mark.parametrize(
    ("fields", "memory"),
    [
        ({"memory": ""}, None),
        ({"memory": "0.5"}, GIB // 2),
        ({"memory": "0,5"}, GIB // 2),
        ({"memory": "16 GB"}, 16 * 10**9),
        ({"memory": "512MiB"}, 512 * 2**20),
    ],
)
def test_memory_with_its_unit(fields: dict[str, str], memory: int | None) -> None:
    form, wish = forms.read_quota(typed(**fields))
    assert not form.mistakes
    assert wish["memory"] == memory


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("gpus", text) for text in ("", "-1", "1.5", "4097", "٣", "1e3", "all", "9" * 5000)),
        *(("memory", text) for text in ("0", "-1", "much", "8XB", "1e9", "nan", "9" * 30, "8B")),
        *(("weight", text) for text in ("", "0", "-1", "x", "inf", "1e3", "99999999")),
        *(("idle_timeout", text) for text in ("soon", "-1", "10x")),
        *(("burst_memory", text) for text in ("much", "-0.5", "1.5", "60")),
        *(("turn_offset", text) for text in ("much", "-1GiB")),
    ],
)
def test_a_mistake_stands_beside_its_field_and_the_text_stays(field: str, text: str) -> None:
    form, _wish = forms.read_quota(typed(**{field: text}))
    assert list(form.mistakes) == [field]
    assert form.texts[field] == text


def test_the_form_has_every_field_of_a_quota() -> None:
    assert {part.name for part in forms.PARTS} == set(FIELDS)


@given(
    st.integers(0, 4096),
    st.one_of(st.none(), st.integers(2, 2**33).map((2**20).__mul__)),
)
def test_a_quota_survives_being_shown_and_saved(gpus: int, memory: int | None) -> None:
    shown = forms.filled({"gpus": gpus, "memory": memory, "weight": 1.5})
    fields = shown.texts
    form, wish = forms.read_quota(fields)
    assert not form.mistakes
    assert (wish["gpus"], wish["memory"], wish["weight"]) == (gpus, memory, 1.5)
    assert forms.read_quota(fields, now=shown)[1] == {}, "saved without a change"


def test_sizes_in_gb_are_shown_in_gb() -> None:
    shown = forms.filled({"gpus": 1, "memory": parse_size("16GB"), "weight": 1})
    assert shown.texts["memory"] == "16GB"


# -- CSV -------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"))))
def test_names_come_out_of_a_csv_as_they_are_or_with_an_apostrophe(names: list[str]) -> None:
    text = to_csv(("name", "hours"), [(name, 1.5) for name in names])
    assert text.count("\r\n") > len(names)
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["name", "hours"]
    for name, (cell, figure) in zip(names, rows, strict=True):
        assert cell in (name, f"'{name}")
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert figure == "1.5"


@pytest.mark.parametrize(("typed", "hours"), [("20", 20.0), ("2,5", 2.5), ("0", 0.0), ("", None)])
def test_a_budget_is_set_or_lifted(typed: str, hours: float | None) -> None:
    form, wish = forms.read_quota({"gpus": "1", "gpu_hours": typed})
    assert not form.mistakes
    assert wish["gpu_hours"] == hours
    assert quota_text(wish) == f"GPUs: 1, GPU-hours: {f'{hours:g}' if typed else 'no budget'}"


def test_a_form_without_the_field_leaves_the_budget_as_it_is() -> None:
    _, wish = forms.read_quota({"gpus": "1"})
    assert "gpu_hours" not in wish
    assert wish == {"gpus": 1}, "nor anything else that it lacks"
    _, wish = forms.read_quota({"gpus": "1", "memory": ""})
    assert wish == {"gpus": 1, "memory": None}, "no memory is the whole GPU"


@pytest.mark.parametrize("typed", ["many", "-1", "1e3", "99999999999"])
def test_a_budget_that_makes_no_sense_stays_in_its_field(typed: str) -> None:
    form, _ = forms.read_quota({"gpus": "1", "gpu_hours": typed})
    assert form.mistakes.keys() == {"gpu_hours"}
    assert form.texts["gpu_hours"] == typed


def test_a_budget_that_is_there_is_shown() -> None:
    quota = {"gpus": 1, "memory": None, "weight": 1, "budget": {"hours": 20.0}}
    assert forms.filled(quota).texts["gpu_hours"] == "20"
    default = {"gpus": 1, "memory": None, "weight": 1, "gpu_hours": 1234567.5}
    assert forms.filled(default).texts["gpu_hours"] == "1234567.5"
    assert forms.filled({**default, "gpu_hours": None}).texts["gpu_hours"] == ""


@pytest.mark.parametrize(
    ("fields", "wish", "said"),
    [
        ({"per": ""}, None, ""),
        ({"per": "month"}, "month", " this month"),
        ({"per": "term", "first": "2026-10-01"}, "2026-10-01", " since 2026-10-01"),
    ],
)
def test_what_a_budget_is_for(fields: dict[str, str], wish: str | None, said: str) -> None:
    form, told = forms.read_quota({"gpu_hours": "20", **fields})
    assert told == {"gpu_hours": 20.0, "per": wish}
    assert quota_text(told) == f"GPU-hours: 20{said}"
    shown = forms.filled({"gpus": 1, "memory": None, "weight": 1, "gpu_hours": 20.0, "per": wish})
    assert (shown.texts["per"], shown.texts["first"]) == (form.texts["per"], form.texts["first"])


@pytest.mark.parametrize(
    ("fields", "where"), [({"per": "year"}, "per"), ({"per": "term", "first": "soon"}, "first")]
)
def test_a_period_that_makes_no_sense(fields: dict[str, str], where: str) -> None:
    assert forms.read_quota({"gpu_hours": "20", **fields})[0].mistakes.keys() == {where}


def test_idle_time_lifted_limits_and_what_is_reserved() -> None:
    fields = {"idle_timeout": "7,5", "burst_memory": "60GiB", "reserve": "Estimate"}
    _form, wish = forms.read_quota(fields)
    assert wish == {"idle_timeout": 450.0, "burst_memory": 60.0 * GIB, "reserve": "estimate"}
    said = "idle time-out: 8 min, limits lifted up to: 60 GiB, reserves: estimate"
    assert quota_text(wish) == said
    own = {"idle_timeout": 450.0, "own_burst_memory": 60.0 * GIB, "reserve": "estimate"}
    shown = forms.filled({"gpus": 1, "memory": None, "weight": 1, **own})
    texts = tuple(shown.texts[name] for name in fields)
    assert texts == ("7.5", "60GiB", "estimate")
    assert forms.read_quota(dict.fromkeys(fields, ""))[1] == dict.fromkeys(fields)
    assert forms.read_quota({"reserve": "most"})[0].mistakes.keys() == {"reserve"}


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


class _Revoking(RevokeFormHandler):
    """Of the form only what finds the lease, in front of a node of two pages."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def ask(self, node: str, method: Method, **params: Any) -> Any:
        page = params.get("page", 0)
        left = {"leases": 1 - page, "queue": 0}
        return status(admin=True, leases=[lease(id=f"on-page-{page}")], more=left)

    def page(self, template: str, **more: Any) -> None:
        self.shown.append(more["lease"].lease)


@pytest.mark.parametrize("name", ["on-page-0", "on-page-1"])
def test_a_lease_of_any_page_can_be_revoked(name: str) -> None:
    form = _Revoking()
    asyncio.run(form._form("node", name, "", ""))
    assert form.shown == [name]
