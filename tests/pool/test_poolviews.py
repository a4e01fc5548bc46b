"""The pages say of a pool's hosts, groups and people what its state says, in sentences."""

from __future__ import annotations

from dataclasses import replace

from support.pool_world import CONFIG, gpu, report

from jupyter_gpushare.pages.hosts import HostState, Own
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.pool import hubviews
from jupyter_gpushare.pool.answers import own_quota
from jupyter_gpushare.pool.decide import step
from jupyter_gpushare.pool.state import Drained, Here, Host, Out, State, Used
from jupyter_gpushare.pool.words import commands as cmd
from jupyter_gpushare.pool.words.hosts import Environment, Group
from jupyter_gpushare.protocol.said import text_of

ALICE, GPU_SERVER, BOB = (Environment(name) for name in ("alice", "alice/gpu", "bob"))
A100 = {"kind": "A100", "memory": 80}
REPORT = report(
    "a",
    gpus=(
        gpu("a", 0, free_memory=80, **A100),
        gpu("a", 1, free=False, share=0, out="its fan", **A100),
    ),
    **{"queue": 2, "expected_wait": 90.0, "talking": ("alice/gpu", "bob")},
)
HOST = Host(
    name="a",
    connected=True,
    report=REPORT,
    here={ALICE: Here(held=1), GPU_SERVER: Here(waiting=1)},
    out=Map({ALICE: Out(gpus=1, why="not said: nothing waits"), GPU_SERVER: Out(why="a has it")}),
)


def test_a_host_is_as_its_report_says() -> None:
    shown = hubviews.host_of(HOST, "")
    assert (shown.state, shown.waiting, shown.expected) == (HostState.PARTLY, 2, (90.0, 90.0))
    assert shown.free == (1, 80)
    assert shown.own == Own(lent=0), "what is one person's is told to that person only"


def test_a_host_that_is_away_keeps_its_kind_and_says_why() -> None:
    away = hubviews.host_of(replace(HOST, connected=False), "no answer")
    assert (away.state, away.problem, away.waiting) == (HostState.AWAY, "no answer", 0)
    assert away.kinds == {"A100"}
    assert hubviews.host_of(Host("a"), "").problem, "also without a reason it is away"


def test_a_drain_of_the_pool_counts_before_the_host_has_heard_of_it() -> None:
    drained = replace(HOST, drain=Drained("new fans", "carol"))
    assert hubviews.host_of(drained, "").state is HostState.OUT
    assert hubviews.host_of(drained, "").drained == "new fans"
    told = replace(HOST, report=replace(REPORT, draining="old driver"))
    assert hubviews.host_of(told, "").drained == "old driver"


def test_a_person_has_what_all_their_servers_have() -> None:
    found = hubviews.owners(HOST)
    assert found["alice"] == Own(held=1, waiting=1, lent=1, talks=True, why="a has it")
    assert found["bob"] == Own(lent=0, talks=True)
    away = hubviews.owners(replace(HOST, connected=False))
    assert "bob" not in away, "nobody knows who talks to a host that is away"
    assert not away["alice"].talks


def test_groups_say_what_they_own_use_borrow_and_leave() -> None:
    state = State(
        groups=Map(
            {
                "a": Group("a", nominal=4, lending=2),
                "b": Group("b", nominal=1, borrowing=3),
                "c": Group("c", nominal=2),
            }
        ),
        used=Map({"a": Used(1), "b": Used(2)}),
    )
    shown = hubviews.pool_groups(state)
    rows = [(one.name, one.own, one.used, one.borrowed, one.unused) for one in shown.rows]
    assert rows == [("a", 4, 1, 0, 2), ("b", 1, 2, 1, 0), ("c", 2, 0, 0, 2)]
    assert shown.text == ("1 GPU of groups' own is lent to other groups. 3 GPUs more may be lent.")
    assert [one.may_borrow for one in shown.rows[:2]] == ["what others lend", "up to 3"]
    said = hubviews.group_text(shown.rows, ("b", "nobody"))
    assert said == "Your group b has 1 GPU of its own and uses 2: 1 is borrowed."
    assert hubviews.group_text(shown.rows, ()) == ""


def test_a_quota_of_all_hosts_is_said_as_one_of_a_host() -> None:
    configured = cmd.ConfigureQuotas(0.0, Quota(gpus=2, gpu_hours=5.0))
    told = own_quota(step(State(), configured, CONFIG).state, ALICE)
    words = {one["about"]: text_of(one, 0.0) for one in told["says"]}
    assert (words["held"], words["budget"]) == ("0 of 2", "0 of 5 lately")
    assert "advice" not in words, "it is of no node, so it does not say that the node has no GPU"
