"""Groups borrow what others leave unused, and give it back when its owners want it."""

from __future__ import annotations

import pytest
from support.pool_world import CONFIG, World

from jupyter_gpushare.policy.words.model import EnvironmentName, Quota
from jupyter_gpushare.pool.groups import unlikely
from jupyter_gpushare.pool.words import commands as cmd, events as ev
from jupyter_gpushare.pool.words.hosts import Group


def world(*groups: Group, quota: int = 4, **members: str) -> World:
    found = World("a", "b", quota=Quota(gpus=quota))
    for group in groups:
        found.deed(ev.GroupSet, group)
    for who, group in members.items():
        found.do(cmd.Introduce(found.time, EnvironmentName(who), (group,)))
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
