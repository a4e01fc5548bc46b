"""A quota is divided among hosts as they need it, and people read what they wait for."""

from __future__ import annotations

from support.pool_world import CONFIG, World

from jupyter_gpushare.policy.words.model import EnvironmentName, Quota
from jupyter_gpushare.pool.words import commands as cmd


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


def test_hosts_hear_of_what_else_changed_in_a_quota() -> None:
    world = World("a")
    world.ask("a", "ada")
    edit = cmd.SetQuota(world.time, EnvironmentName("ada"), Quota(gpus=1, weight=2.0), "root")
    world.do(edit)
    (lend,) = world.nodes["a"].down
    assert [(one.gpus, one.quota.weight) for one in lend.budgets] == [(1, 2.0)]
