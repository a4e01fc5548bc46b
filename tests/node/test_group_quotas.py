"""A group's and the default quota hold as they were last set while the node manager runs."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, RemoteError, RunningNode, until

from jupyter_gpushare.daemon.clock import bounds
from jupyter_gpushare.ledger.ledger import Ledger, Record
from jupyter_gpushare.policy.words.model import Bytes, Period, Quota
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.periods import first_day, next_first_day, parse_period
from jupyter_gpushare.quota import best

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.Quotas.default = {"gpus": 1, "memory": "4GiB"}
c.Quotas.groups = {"team": {"gpus": 2, "memory": "8GiB"}}
c.Quotas.users = {"configured": {"gpus": 3}}
c.Policy.budget_interval = 0.2
"""


PEOPLE = {"guest": [], "member": ["team", "club"], "configured": ["team"], "root": []}


def start(directory: Path) -> RunningNode:
    return RunningNode(directory, simulate="4x24GiB", config=CONFIG, people=PEOPLE)


def own(client: NodeClient) -> tuple[Any, ...]:
    quota = client.call(Method.STATUS)["quota"]
    return (quota["gpus"], quota["memory"], quota["source"], quota["from_groups"])


def test_a_groups_and_the_default_quota_are_set_and_taken_back(tmp_path: Path) -> None:
    with start(tmp_path) as node:
        with (
            node.client("guest") as guest,
            node.client("member") as member,
            node.client("configured") as configured,
            node.client("root") as root,
        ):
            assert own(member) == (2, 8 * GIB, "group", ["team"])
            told = root.call(Method.QUOTA_SET, group="team", gpus=3)
            assert (told["gpus"], told["memory"], told["source"]) == (3, 8 * GIB, "override")
            assert own(member) == (3, 8 * GIB, "group", ["team"])
            assert own(configured) == (3, None, "user", []), "a user's entry goes before groups"
            root.call(Method.QUOTA_SET, group="club", gpus=1, memory=16 * GIB)
            assert own(member) == (3, 16 * GIB, "group", ["team", "club"]), "the best, by part"
            root.call(Method.QUOTA_SET, default=True, gpus=2)
            assert own(guest) == (2, 4 * GIB, "default", [])
            root.call(Method.QUOTA_SET, environment="member", gpus=0)
            assert own(member) == (0, 16 * GIB, "override", []), "set for oneself, before all"
            root.call(Method.QUOTA_SET, group="club", memory=20 * GIB)
            assert own(member) == (0, 20 * GIB, "override", []), "the rest follows the groups"
            told = root.call(Method.QUOTA_SET, environment="member", weight=2.0)
            assert (told["own"], told["rest"]) == (["gpus", "weight"], "the groups team, club")
            root.call(Method.QUOTA_SET, group="club", memory=16 * GIB)
            root.call(Method.QUOTA_UNSET, environment="member")
            with pytest.raises(RemoteError) as refused:
                member.call(Method.QUOTA_SET, group="team", gpus=9)
            assert refused.value.reason is Reason.NOT_ALLOWED
            texts = [event["text"] for event in root.call(Method.HISTORY)["events"]]
            assert any(t.startswith("quota of group team set to GPUs: 3, by") for t in texts)
            assert any(t.startswith("default quota set to GPUs: 2, by") for t in texts)
        for again in (node.restart, lambda: (node.kill9(), node.start())):
            again()
            with node.client("member") as member, node.client("guest") as guest:
                assert own(member) == (3, 16 * GIB, "group", ["team", "club"])
                assert own(guest) == (2, 4 * GIB, "default", [])
        with node.client("root") as root, node.client("member") as member:
            back = root.call(Method.QUOTA_UNSET, group="team")
            assert (back["gpus"], back["source"]) == (2, "configuration")
            assert own(member) == (2, 16 * GIB, "group", ["team", "club"])
            root.call(Method.QUOTA_UNSET, group="club")
            assert own(member) == (2, 8 * GIB, "group", ["team"])
            assert root.call(Method.QUOTA_UNSET, default=True)["gpus"] == 1
            listed = root.call(Method.QUOTA_LIST)
            assert [one["group"] for one in listed["groups"]] == ["team"]
            assert listed["groups"][0]["members"] == 2
            root.call(Method.QUOTA_SET, group="team", gpus=2, gpu_hours=0.0)
            waiting = member.ask()
            until(lambda: member.call(Method.STATUS)["queue"], "the request waits for GPU-hours")
            assert not member.answered(waiting)
            root.call(Method.QUOTA_UNSET, group="team")
            assert member.wait(waiting)["state"] == "held", "a new quota serves those who wait"


def _plant(node: RunningNode, held: dict[int, float]) -> None:
    """What ``guest`` held at noon so many days ago, in hours."""
    ledger = Ledger.open(node.ledger, history=1e7, wall=time.time())
    wall, at = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    granted = {"gpus": [{"gpu": "GPU-1", "memory": 1}], "activity": "busy"}
    ended = {"reason": "released", "detail": "", "v": 1}
    for days, hours in held.items():
        day = datetime.fromtimestamp(wall).astimezone().date() - timedelta(days=days)
        noon = datetime.combine(day, datetime.min.time()).astimezone().timestamp() + 43200
        back = wall - noon
        name = f"old-{days}"
        begin = Record("LeaseGranted", at - back, noon, "guest", name, granted)
        end = Record(
            "LeaseEnded", at - back + 3600 * hours, noon + 3600 * hours, "guest", name, ended
        )
        ledger.append([begin, end])
    snapshot, after = ledger.load()
    ledger.write_snapshot([*snapshot, *(r for r in after if not (r.lease or "").startswith("old"))])
    ledger.close()


def test_a_budget_by_calendar_counts_from_its_first_day(tmp_path: Path) -> None:
    with start(tmp_path) as node:
        with node.client("guest") as guest:  # so that the node manager knows somebody
            guest.call(Method.STATUS)
        node.kill9()
        _plant(node, {40: 4.0, 3: 1.5, 1: 1.0})
        node.start()
        with node.client("guest") as guest, node.client("root") as root:

            def spent() -> float:
                return round(guest.call(Method.STATUS)["quota"]["budget"]["spent"], 2)

            def level() -> str:
                return str(guest.call(Method.STATUS)["quota"]["budget"]["level"])

            today = datetime.now().astimezone().date()
            days = [today - timedelta(days) for days in (2, 30, 50, 0)]
            terms = zip(days, (1.0, 2.5, 6.5, 0.0), strict=True)
            for first, hours in (*terms, (date.min, 6.5), (date.max, 0.0)):
                told = root.call(Method.QUOTA_SET, default=True, gpu_hours=5.0, per=f"{first}")
                assert (told["per"], told["when"]) == (f"{first}", f"since {first}")
                until(lambda hours=hours: spent() == hours, f"what was held since {first}")
                over = "spent" if hours > 5 else "ok"
                until(lambda over=over: level() == over, "what that means")
            for per in ("week", "month", None):
                since = (
                    time.time() - 7 * 86400 if per is None else bounds(Period(per), time.time())[0]
                )
                planted = ((40, 4.0), (3, 1.5), (1, 1.0))
                days_in = (time.time() - since) / 86400
                # Noon so many days ago, and today began at midnight.
                hours = sum(h for days, h in planted if _noon(today, days) >= since)
                root.call(Method.QUOTA_SET, default=True, per=per)
                until(
                    lambda hours=hours: spent() == hours, f"{per}, which began {days_in} days ago"
                )
            root.call(Method.QUOTA_SET, default=True, gpu_hours=2.0, per=f"{today - timedelta(30)}")
            until(lambda: level() == "spent", "2.5 of 2 GPU-hours")
            with pytest.raises(RemoteError) as refused:
                guest.request(wait=False)
            assert "2.5 of 2 GPU-hours since" in refused.value.message
            assert "begins the next term" in refused.value.message
            root.call(Method.QUOTA_SET, default=True, per="month", gpu_hours=0.0)
            until(lambda: level() == "spent", "none may be used this month")
            guest.ask()
            until(lambda: "the next month begins" in _why(guest), "why it waits")
            root.call(
                Method.QUOTA_SET, default=True, per=f"{today + timedelta(days=1)}", gpu_hours=1.0
            )
            until(lambda: guest.call(Method.STATUS)["leases"][0]["state"] != "queued", "a new term")


def _noon(today: date, days: int) -> float:
    day = datetime.combine(today - timedelta(days=days), datetime.min.time()).astimezone()
    return day.timestamp() + 43200


def _why(client: NodeClient) -> str:
    queue = client.call(Method.STATUS)["queue"]
    return str(queue[0]["message"]) if queue else ""


@pytest.mark.parametrize(
    ("per", "today", "first", "then"),
    [
        ("week", "2026-11-22", "2026-11-16", "2026-11-23"),  # a Sunday
        ("week", "2026-11-23", "2026-11-23", "2026-11-30"),
        ("month", "2026-12-31", "2026-12-01", "2027-01-01"),
        ("month", "2028-02-29", "2028-02-01", "2028-03-01"),
        ("2026-10-01", "2026-11-22", "2026-10-01", None),
        ("2026-12-01", "2026-11-22", "2026-12-01", None),
    ],
)
def test_when_a_period_begins_and_the_next_one(
    per: str, today: str, first: str, then: str | None
) -> None:
    now = date.fromisoformat(today)
    assert first_day(per, now).isoformat() == first
    coming = next_first_day(per, now)
    assert (coming and coming.isoformat()) == then


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Europe/Berlin"])
def test_days_begin_at_the_nodes_own_midnight(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        # Berlin's clocks went back on the 25th: that month has an hour more.
        since, until_ = bounds(Period("month"), 1792454400.0)  # 2026-10-20 00:00 UTC
        assert until_ is not None
        for moment, day in ((since, 1), (until_, 1)):
            local = datetime.fromtimestamp(moment)
            assert (local.day, local.hour, local.minute) == (day, 0, 0)
        assert until_ - since == 31 * 86400 + (3600 if zone == "Europe/Berlin" else 0)
        everything, nothing = (
            bounds(Period(day), since)[0] for day in ("0001-01-01", "9999-12-31")
        )
        assert everything < 3 * 86400 < since < nothing, "a term may begin on any day there is"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("wrong", ["year", "", "2026-13-01", "2026-1-1", 7, None, "٢٠٢٦-01-01"])
def test_what_is_no_period_is_told(wrong: object) -> None:
    with pytest.raises(ValueError, match="first day of a term"):
        parse_period(wrong)


def test_the_best_of_several_budgets_keeps_its_own_period() -> None:
    week = Quota(1, Bytes(1), gpu_hours=10.0, per=Period("week"))
    month = Quota(1, Bytes(1), gpu_hours=30.0, per=Period("month"))
    assert (best([week, month]).gpu_hours, best([month, week]).per) == (30.0, "month")
    assert best([week, Quota(1)]) == Quota(1), "one without a budget is not limited"


def test_two_partial_edits_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each names one part; what it leaves out is as the edit before it left it."""
    edits: tuple[dict[str, Any], ...] = ({"gpus": 4}, {"memory": 6 * GIB}, {"weight": 2.0})
    with start(tmp_path) as node, node.client("root") as root:
        for whose in ({"environment": "guest"}, {"group": "team"}, {"default": True}):
            # Sent without waiting for the answers: they are decided together.
            for call in [root.send(Method.QUOTA_SET, **whose, **edit) for edit in edits]:
                told = root.wait(call)
            assert (told["gpus"], told["memory"], told["weight"]) == (4, 6 * GIB, 2.0), whose
        root.send(Method.QUOTA_SET, environment="guest", gpu_hours=5.0, per="week")
        root.send(Method.QUOTA_SET, environment="guest", gpu_hours=None)
        again = root.send(Method.QUOTA_SET, environment="guest", gpu_hours=6.0)
        assert root.wait(again)["budget"]["per"] is None, "a budget that ended left nothing behind"
