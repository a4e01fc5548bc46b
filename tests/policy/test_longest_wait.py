"""A request waits as long as its quota lets it, and is then refused in a sentence that says so."""

from __future__ import annotations

from support.policy_world import World, gpu, plain_config

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.quota import best


def test_a_request_that_has_waited_long_enough_is_refused() -> None:
    world = World(plain_config()).start([gpu(0)], Quota(1, max_wait=10.0))
    world.request("alice", 1)
    world.request("bob", 2)
    state, at = world.state, world.state.leases["L2"].requested_at
    for seconds, ended in ((9.0, False), (10.0, True)):
        step = core.step(state, cmd.Tick(at + seconds, at + seconds), world.config)
        over = [event for event in step.events if isinstance(event, ev.LeaseEnded)]
        assert bool(over) is ended
    assert over[0].lease == "L2", "who holds a GPU is not ended"
    assert over[0].detail.startswith("No GPU became free within 10 seconds, and your quota lets")
    core.check(step.state)
    assert world.phase("L1") == "held"


def test_of_several_groups_the_one_without_a_bound_is_best() -> None:
    assert best([Quota(1, max_wait=60.0), Quota(1)]).max_wait is None
    assert best([Quota(1, max_wait=60.0), Quota(1, max_wait=90.0)]).max_wait == 90.0
