"""The pool's rules divide quotas and groups' GPUs among hosts, and a lie changes nothing."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import pytest
from support.pool_world import CONFIG, World, gpu, report

from jupyter_gpushare.policy.say.telling import Telling
from jupyter_gpushare.policy.words.events import QuotaChanged
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.pool import decide
from jupyter_gpushare.pool.decide import ANSWERS, step
from jupyter_gpushare.pool.evolve import CHANGES
from jupyter_gpushare.pool.groups import unlikely
from jupyter_gpushare.pool.state import State
from jupyter_gpushare.pool.words import commands as cmd, effects as eff, events as ev
from jupyter_gpushare.pool.words.hosts import (
    Accepted,
    Group,
    Holding,
    HostEnvironment,
    Loan,
    Want,
)
from jupyter_gpushare.protocol.calls import HintParams, named_of

ADA = "ada"


def test_every_command_and_event_has_its_function() -> None:
    commands = {one for one in vars(cmd).values() if isinstance(one, type)}
    kinds = {one for one in commands if issubclass(one, cmd.Command)} - {cmd.Command}
    assert kinds == set(ANSWERS)
    assert set(ev.EVENTS.values()) == set(CHANGES)


def test_whatever_somebody_does_has_a_sentence() -> None:
    for kind in ev.EVENTS.values():
        by_people = any(field.name == "by" for field in fields(kind))
        assert bool(kind.ABOUT.deed) == by_people, kind
    lent = ev.GpusLent(1.0, Loan("1", ADA, "a", 2, 9.0), "carol")
    assert Telling().of(lent, lent.ABOUT.deed) == "lent ada GPUs of the host a: 2"
    unset = QuotaChanged(1.0, None, None, None, "carol")
    said = Telling().of(unset, unset.ABOUT.deed)
    assert said == "made the configured default quota hold again"


def test_drain_is_told_again_until_it_is_done() -> None:
    world = World("a")
    world.cut("a")
    assert world.deed(ev.HostServiceChanged, "a", "new disks") is None
    world.heal("a")
    world.settle()
    assert world.drains == [eff.TellService("a", "new disks")]
    world.do(cmd.Tick(world.time))
    assert world.drains == [eff.TellService("a", "new disks")] * 2
    told = replace(world.nodes["a"].report(), draining="new disks")
    world.do(cmd.HostReported(world.time, "a", told))
    world.do(cmd.Tick(world.time))
    assert len(world.drains) == 2
    world.deed(ev.HostServiceChanged, "a", None)
    assert world.drains[2:] == [eff.TellService("a", None)]


def wanting(number: int, *, groups: tuple[str, ...] = ()) -> Want:
    return Want(f"nobody-{number}", 1, None, "interactive", 1.0, groups)


def test_a_host_that_invents_people_is_lent_to_so_many_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "MOST_HERE", 20)
    world = World("a")
    at = world.nodes["a"].clock
    for batch in range(4):
        names = tuple(wanting(10 * batch + n, groups=("x",)) for n in range(10))
        told = report("a", at + batch + 1.0, wants=names)
        world.do(cmd.HostReported(world.time, "a", told))  # and it answers nothing
        host = world.state.hosts["a"]
        assert len(host.out) == min(10 * (batch + 1), 20)
        assert len(host.told) <= 20
    # Whom it was lent to stays served, also in a report that names others first.
    others = tuple(wanting(90 + n) for n in range(10))
    told = report("a", at + 9.0, wants=(*others[:5], wanting(7), *others[5:]))
    world.do(cmd.HostReported(world.time, "a", told))
    assert set(world.state.hosts["a"].here) == {"nobody-7"}


def test_those_who_have_nothing_on_a_host_any_more_make_room_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With them go the groups that the host named for them."""
    monkeypatch.setattr(decide, "MOST_HERE", 8)
    world = World("a")
    at = world.nodes["a"].clock
    for number in range(20):
        for again in range(3):  # reports come all the time
            told = report("a", at + number + again / 4, wants=(wanting(number, groups=("x",)),))
            world.do(cmd.HostReported(world.time, "a", told))
            for one, out in tuple(world.state.hosts["a"].out.items()):
                accepted = (Accepted(one, out.asked, 0),)
                world.do(cmd.LendAnswered(world.time, "a", out.number, accepted))
        host = world.state.hosts["a"]
        assert host.out[f"nobody-{number}"].gpus == 1, "each newcomer is served"
        assert len(host.out) <= 8
        assert set(host.told) <= set(host.out)


def test_drained_host_is_lent_nothing_new() -> None:
    world = World("a", quota=Quota(gpus=2))
    world.ask("a", "ada")
    world.release("a", "ada")
    world.deed(ev.HostServiceChanged, "a", "new disks")
    world.ask("a", "bob")
    assert world.nodes["a"].held.get("bob", 0) == 0
    assert "new disks" in world.nodes["a"].whys["bob"]


def test_own_administrator_may_end_a_drain() -> None:
    world = World("a")
    world.deed(ev.HostServiceChanged, "a", "new disks")
    told = replace(world.nodes["a"].report(), draining="new disks")
    world.do(cmd.HostReported(world.time, "a", told))
    assert world.state.hosts["a"].drain is not None
    world.do(cmd.HostReported(world.time, "a", world.nodes["a"].report()))
    assert world.state.hosts["a"].drain is None


def ends_in(world: World, host: str, seconds: float) -> None:
    """A job has the host for so long."""
    ends = world.time + world.state.unix + seconds
    event = ev.HostHeld(world.time, host, Holding("Slurm", "job 7", ends))
    world.do(cmd.Deed(world.time, event))


def test_nobody_is_lent_gpus_of_a_host_that_ends_before_nor_sent_to_it() -> None:
    """While another host has some."""
    world = World("a", "b", "c")
    ends_in(world, "b", 3600.0)
    for number, (seconds, host) in enumerate({3599.0: "a", 3601.0: "c"}.items()):
        world.do(cmd.LendGpus(world.time, f"{number}", ADA, 1, seconds, "root"))
        ends_in(world, "a", 3600.0)
        assert world.state.loans[f"{number}"].host == host
    for host, hint in (("b", "c"), ("c", "b")):
        ends_in(world, host, 1799.0)
        ends_in(world, hint, 1801.0)
        told = world.nodes["a"].report()
        full, waits = (gpu("a", 0, free=False),), (waiting("bob"),)
        told = replace(told, gpus=full, environments=waits, wants=())
        world.do(cmd.HostReported(world.time, "a", told))
        world.do(cmd.Tick(world.time))
        assert [one.host for one in world.hints["a"]] == [hint]


def test_a_lost_host_is_forgotten_a_day_after_what_held_it_has_ended() -> None:
    """One of which nobody knows when it ends is not, nor one that answers."""
    world = World("a", "b", "c", quota=Quota(gpus=2))
    for host in "ac":
        ends_in(world, host, 60.0)
    world.ask("a", "ada")
    world.do(cmd.LendGpus(world.time, "l", "bob", 1, 1e6, "root", "a"))
    for host in "ab":
        world.cut(host)
    world.passes(200.0)  # they are given up
    for given_up in (world.given_up, world.given_up_of_groups):
        given_up.clear()
    for seconds, left in ((86_000.0, {"a", "b", "c"}), (500.0, {"b", "c"})):
        world.time += seconds
        world.do(cmd.Tick(world.time))
        assert set(world.state.hosts) == left
    assert not world.state.loans
    world.ask("c", "ada", 2)
    assert world.nodes["c"].held["ada"] == 2


def waiting(who: str, *, short: bool = True) -> HostEnvironment:
    """Somebody with a request that waits; ``short``: only because no GPU is free."""
    return HostEnvironment(who, 0, 0, 0, 1, 0.0, 1, short)


def test_each_free_gpu_is_hinted_to_one_person_and_to_none_who_waits_for_a_quota() -> None:
    world = World("a", "b")
    for who in ("ada", "bob"):
        world.request("a", who)
    world.settle()
    full = (gpu("a", 0, free=False),)
    waits = (waiting("abe", short=False), waiting("ada"), waiting("bob"))
    told = replace(world.nodes["a"].report(), gpus=full, environments=waits, wants=())
    world.do(cmd.HostReported(world.time, "a", told))
    world.do(cmd.Tick(world.time))
    text = "Host b has a free GPU now (H100): start your kernel there."
    assert world.hints["a"] == (HintParams(ADA, "b", 1, "H100", text),)
    world.do(cmd.HostReported(world.time, "a", world.nodes["a"].report()))
    world.do(cmd.Tick(world.time))
    assert world.hints["a"] == ()


def test_whole_gpus_are_lent_for_a_time() -> None:
    world = World("a", quota=Quota(gpus=1))
    assert world.do(cmd.LendGpus(world.time, "l", ADA, 1, 60.0, "root")) is None
    world.settle()
    assert world.nodes["a"].lent["ada"][0] == 1
    world.nodes["a"].wants.append(("ada", 1, world.nodes["a"].clock))
    world.nodes["a"].serve()
    assert world.nodes["a"].held["ada"] == 1  # without asking the pool
    world.passes(61.0)
    assert not world.state.loans
    assert world.deed(ev.GpusReturned, "l")
    assert world.do(cmd.LendGpus(world.time, "l", ADA, 9, 60.0, "root"))


def test_forgotten_host_counts_no_more() -> None:
    world = World("a", "b")
    world.ask("a", "ada")
    world.cut("a")
    world.ask("b", "ada")
    world.deed(ev.HostsChanged, "a", False)
    world.settle()
    assert world.nodes["b"].held["ada"] == 1


def test_answer_of_a_lie_changes_nothing() -> None:
    """A host can neither claim more than it was lent, nor an answer to another message."""
    world = World("a", "b")
    world.ask("a", "ada")
    number = world.state.hosts["a"].out[ADA].number
    world.do(cmd.LendAnswered(world.time, "a", number, (Accepted(ADA, 9, 0),)))
    assert world.state.hosts["a"].out[ADA].gpus == 1
    world.do(cmd.LendAnswered(world.time, "a", number - 1, (Accepted(ADA, 0, 0),)))
    assert world.state.hosts["a"].out[ADA].gpus == 1


def test_steps_are_fast_with_a_hundred_hosts() -> None:
    """Each report of 100 hosts with 5,000 leases is worked on in a few milliseconds."""
    state = State()

    def do(command: cmd.Command) -> None:
        nonlocal state
        state = step(state, command, CONFIG).state

    do(cmd.Start(0.0, 0.0))
    do(cmd.ConfigureQuotas(0.0, Quota(gpus=8)))
    names = [f"h{at}" for at in range(100)]

    def tell(place: int, at: float, wants: int) -> cmd.HostReported:
        people = [f"e{(place * 50 + one) % 2500}" for one in range(50)]
        there = tuple(HostEnvironment(who, 1, 0, 0, 0, 0.5, 1) for who in people)
        asked = tuple(Want(who, 1, None, "batch", at) for who in people[:wants])
        gpus = tuple(gpu(names[place], one) for one in range(8))
        news = {"gpus": gpus, "environments": there, "wants": asked, "seconds": 99.0}
        return cmd.HostReported(at, names[place], report(names[place], at, **news))

    for place, name in enumerate(names):
        do(cmd.Deed(0.0, ev.HostsChanged(0.0, name, True, "root")))
        do(tell(place, 1.0, 0))
    assert sum(state.total(one) for one in state.places) >= 5000
    commands = [tell(place, 2.0, 3) for place in range(100)]
    began = time.process_time()
    for command in commands:
        do(command)
    # Measured: 0.4 ms each.
    assert (time.process_time() - began) / len(commands) < 0.02


# -- groups ----------------------------------------------------------------------------------------


def world(*groups: Group, quota: int = 4, **members: str) -> World:
    found = World("a", "b", quota=Quota(gpus=quota))
    for group in groups:
        found.deed(ev.GroupSet, group)
    for who, group in members.items():
        found.do(cmd.Introduce(found.time, who, (group,)))
    return found


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (
            Group("x", 1, borrowing=1),
            Group("y", 2),
            "Group x uses all of its 1 GPU and the 1 that it may borrow.",
        ),
        (
            Group("x", 1),
            Group("y", 2, lending=1),
            "Group x has none of its own 1 GPU left for this, and no other group has one to lend "
            "now.",
        ),
    ],
)
def test_borrowing_and_lending_have_limits(x: Group, y: Group, why: str) -> None:
    found = world(x, y, ada="x")
    found.ask("a", "ada", 2)
    found.ask("b", "ada")
    assert found.held("ada") == 2
    assert found.nodes["b"].whys["ada"] == why


def test_newest_borrower_gives_back_first() -> None:
    found = world(Group("x", 0), Group("y", 2), ada="x", bob="x", eve="y")
    found.ask("a", "ada")
    found.ask("b", "bob")
    found.request("a", "eve")
    while found.deliver_up("a") or found.deliver_down("a"):
        pass
    assert found.nodes["a"].whys["eve"] == (
        "Other groups have borrowed GPUs of group y. They are asked to give them back."
    )
    found.settle()
    assert (found.held("ada"), found.held("bob"), found.held("eve")) == (1, 0, 1)
    found.ask("b", "eve")
    assert (found.held("ada"), found.held("eve")) == (0, 2)


def test_what_is_owed_is_not_lent_again() -> None:
    """A request for two GPUs gets both, though others ask for each that becomes free."""
    found = world(Group("x", 0), Group("y", 2), ada="x", bob="x", eve="y")
    found.ask("a", "ada")
    found.ask("b", "bob")
    found.request("a", "eve", 2)
    found.request("b", "ada")
    found.ask("a", "bob")
    assert found.held("eve") == 2


def test_smaller_share_borrows_first() -> None:
    found = world(Group("x", 1), Group("y", 1), Group("z", 3), ada="x", bob="y", eve="z")
    found.ask("a", "eve", 3)
    found.ask("a", "ada", 1)
    found.ask("b", "ada", 1)  # waits: nothing is left to borrow but y's own
    assert found.held("ada") == 2
    found.ask("a", "bob", 1)  # takes back its own
    assert (found.held("ada"), found.held("bob")) == (1, 1)
    found.request("a", "ada")
    found.ask("b", "bob")
    found.give("a", "eve")
    held = found.held("ada"), found.held("bob")
    assert sorted(held) == [1, 2]
    found.give("a", "eve")
    assert (found.held("ada"), found.held("bob")) == (2, 2)


def test_what_is_lent_at_once_is_lent_in_turn() -> None:
    who = {"ada": "x", "ann": "x", "bob": "y", "ben": "y"}
    found = world(Group("x", 0), Group("y", 0), Group("z", 2), eve="z", **who)
    found.ask("a", "eve", 2)
    for one in who:
        found.ask("b", one)
    found.nodes["a"].held["eve"] = 0
    found.nodes["a"].say()  # of both at once
    found.settle()
    assert [sum(found.held(one) for one in who if who[one] == group) for group in "xy"] == [1, 1]


def test_people_are_told_what_they_borrow() -> None:
    found = world(Group("x", 1), Group("y", 2), ada="x")
    found.request("a", "ada", 3)
    found.deliver_up("a")
    (lend,) = found.nodes["a"].down
    assert [(one.gpus, one.borrowed) for one in lend.budgets] == [(3, 2)]


def beyond(*groups: Group, **members: str) -> World:
    """Ada's GPU on the host a is beyond what her group x may have.

    The host was given up, bob went on elsewhere, and now it is back.
    """
    found = world(*groups, **members)
    found.ask("a", "ada")
    found.cut("a")
    found.passes(CONFIG.validity * 1.02)
    found.ask("b", "bob")
    found.heal("a")
    found.settle()
    assert (found.held("ada"), found.held("bob")) == (1, 1)
    return found


def test_a_group_that_is_beyond_what_others_lend_begins_nothing() -> None:
    found = beyond(Group("x", 0), Group("y", 1), ada="x", bob="x", eve="y")
    found.release("a", "ada")
    found.request("a", "ada")
    assert found.held("ada") == 0
    found.settle()
    assert (found.held("ada"), found.held("bob")) == (0, 1)


def test_who_is_within_the_own_gpus_goes_on_while_others_are_beyond() -> None:
    found = beyond(Group("x", 1), Group("y", 1, lending=0), ada="x", bob="x", eve="y")
    found.ask("b", "eve")
    assert found.nodes["b"].lent["eve"][0] == found.held("eve") == 1


def test_all_of_a_group_that_was_beyond_are_lent_what_they_hold_again() -> None:
    found = beyond(Group("x", 1, borrowing=0), ada="x", bob="x")
    assert found.nodes["a"].lent["ada"][0] == found.nodes["b"].lent["bob"][0] == 0
    found.give("b", "bob")
    assert found.nodes["a"].lent["ada"][0] == 1


def test_administrators_are_told_what_they_may_not_have_meant() -> None:
    lends = Group("x", 1, lending=2)
    found = world(lends, Group("y", 1))  # two hosts have one GPU each
    assert (
        unlikely(found.state)
        == unlikely(found.state, lends)
        == ["Group x may lend 2, but has only 1 GPU of its own: it never lends more than these."]
    )
    more = Group("y", 4)
    found.deed(ev.GroupSet, more)
    assert unlikely(found.state, more) == [
        "All groups together have 5 GPUs of their own, and the pool's hosts have 2: a group may "
        "have to wait for its own. Lower --nominal of a group, or let more hosts join."
    ]
    assert unlikely(World().state) == []


def test_who_waits_for_a_group_is_served_when_it_is_removed() -> None:
    found = world(Group("x", 1, borrowing=0), ada="x")
    found.ask("a", "ada", 2)
    assert found.held("ada") == 0
    found.deed(ev.GroupRemoved, "x")
    found.settle()
    assert found.held("ada") == 2


def test_a_group_that_is_not_there_cannot_be_removed() -> None:
    found = world()
    assert found.deed(ev.GroupRemoved, "x")


# -- a quota among hosts ---------------------------------------------------------------------------


def test_one_gpu_in_use_elsewhere_is_named() -> None:
    world = World("a", "b")
    world.ask("a", "ada")
    world.ask("b", "ada")
    assert world.nodes["b"].whys["ada"] == "Your 1 GPU in the pool is in use on host a."
    world.give("a", "ada")
    assert world.nodes["b"].held["ada"] == 1
    assert world.nodes["b"].whys["ada"] == ""


def test_lost_host_is_named_with_the_time() -> None:
    world = World("a", "b")
    world.ask("a", "ada")
    world.cut("a")
    world.ask("b", "ada")
    why = world.nodes["b"].whys["ada"]
    assert why == (
        "Host a cannot be reached. It may still give you 1 GPU of your quota, which you can have "
        "on another host from 22:15:23 UTC on."
    )
    world.passes(CONFIG.validity * 1.02)
    world.settle()
    assert world.nodes["b"].held["ada"] == 1
    # The host comes back with what runs: nobody's work is touched, and nothing new starts.
    world.heal("a")
    world.settle()
    assert world.held("ada") == 2
    world.give("b", "ada")
    world.ask("b", "ada")
    assert world.nodes["b"].held["ada"] == 0


def test_larger_quota_serves_all_hosts() -> None:
    world = World("a", "b", "c", quota=Quota(gpus=4))
    world.ask("a", "ada", 2)
    assert world.nodes["a"].lent["ada"][0] == 4  # what is left goes where it was wanted
    world.request("b", "ada")
    world.ask("c", "ada")
    assert [world.nodes[name].held["ada"] for name in "abc"] == [2, 1, 1]
    world.ask("c", "ada", 5)
    assert world.nodes["c"].whys["ada"] == (
        "You asked for 5 GPUs; your quota in the whole pool is 4 GPUs."
    )


def test_renewal_keeps_what_is_lent() -> None:
    world = World("a", quota=Quota(gpus=2))
    world.ask("a", "ada")
    for _ in range(40):
        world.passes(20.0)
        world.settle()
    world.request("a", "ada")
    assert world.nodes["a"].held["ada"] == 2


def test_hours_are_divided_and_never_exceeded() -> None:
    world = World("a", "b", quota=Quota(gpus=4, gpu_hours=1.0))
    world.request("a", "ada", 2)
    world.ask("b", "ada", 2)
    assert world.nodes["a"].held["ada"] == world.nodes["b"].held["ada"] == 2
    for _ in range(120):
        world.passes(20.0)
        world.settle()
        world.check()
    spent = sum(node.spent["ada"] for node in world.nodes.values())
    assert 0.97 < spent <= 1.0


@pytest.mark.parametrize("gpus", [0, 1])
def test_hosts_hear_of_what_else_changed_in_a_quota(gpus: int) -> None:
    world = World("a")
    world.ask("a", "ada")
    edit = cmd.SetQuota(world.time, "ada", Quota(gpus, weight=2.0), "root")
    world.do(edit)
    (lend,) = world.nodes["a"].down
    (budget,) = lend.budgets
    # What a quota does not say is left out, but for the number of its GPUs.
    assert (budget.gpus, named_of(budget.quota)) == (gpus, {"gpus": gpus, "weight": 2.0})
