"""An environment that has spent its GPU-hours waits or gives way, and stops nobody else."""

from __future__ import annotations

import pytest
from support.policy_moves import ALICE, budgets, come_and_go
from support.policy_world import World, gpu, plain_config

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    BudgetLevel,
    Quota,
    RefusalReason,
)


def test_who_has_spent_the_budget_waits_and_bars_nobody() -> None:
    """The request waits with its reason, others pass it, and it goes on when the window rolls."""
    world = budgets(10.0)
    world.spends("alice", 10.0)
    assert world.state.budget(ALICE).level is BudgetLevel.SPENT
    waits = world.request("alice", 1)
    assert isinstance(waits, core.Wait)
    assert "10 of 10 GPU-hours in the last 7 days" in waits.message
    assert "in about" not in waits.message
    told = ((ALICE, 10.0),), ((ALICE, world.at + 2.6 * 3600),)
    world.run(cmd.MeasureBudgets(world.at, *told))
    assert "again in about 2 h 30 min, when" in world.why(waits.lease, at=world.at)
    why = core.why_waiting(world.state, waits.lease, 0, world.config)
    assert why.reason is RefusalReason.BUDGET_SPENT
    now = world.request("alice", 2, wait=False)
    assert isinstance(now, core.Refuse)
    assert now.reason is RefusalReason.NO_RESOURCES
    assert "10 of 10" in now.message
    come_and_go(world, range(3, 12))  # far more than the bound of 2
    world.request("carol", 20)
    world.request("dave", 21)
    world.spends("alice", 7.9)
    assert world.state.budget(ALICE).level is BudgetLevel.OK
    assert world.state.queue.service_order()[0].lease == "L1"
    assert world.state.queue.first_urgent() is None, "it was in no line so far"


def test_a_raised_budget_serves_who_waits() -> None:
    """An administrator's override counts at once, and so does taking it back."""
    world = budgets(10.0)
    world.spends("alice", 11.0)
    world.request("alice", 1)
    root = "root"
    world.set_quota(ALICE, Quota(1, None, gpu_hours=12.0))
    assert world.phase("L1") == "held"
    assert world.state.budget(ALICE).level is BudgetLevel.WARNED
    world.run(cmd.UnsetQuota(world.at, ALICE, root))
    assert world.state.budget(ALICE).level is BudgetLevel.SPENT
    assert world.phase("L1") == "held", "what runs goes on"
    assert isinstance(world.request("alice", 2), core.Wait), "even on the GPU that is held"


@pytest.mark.parametrize("usual", [0.0, 1800.0])
def test_an_idle_gpu_of_a_spent_budget_is_taken_back(usual: float) -> None:
    """Though nobody waits and the usual time-out is long, or none; what computes is left alone."""
    config = plain_config(idle_timeout=usual, spent_idle_timeout=20.0, heartbeat_timeout=1e6)
    world = World(config).start([gpu(0), gpu(1)], Quota(2, None, gpu_hours=5.0))
    world.request("alice", 1)
    world.request("alice", 2)
    world.idle("L1")
    world.tick(10)
    world.spends("alice", 5.0)
    world.tick(9)
    assert world.asked_back() == []
    world.tick(2)
    assert world.asked_back() == ["L1"]
    world.park("L1")
    world.observe()
    assert isinstance(world.resume("L1"), core.Wait)
    why = core.why_waiting(world.state, "L1", 0, world.config)
    assert why.reason is RefusalReason.BUDGET_SPENT
    world.spends("alice", 1.0)
    assert world.phase("L1") == "held"
