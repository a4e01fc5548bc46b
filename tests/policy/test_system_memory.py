"""A GPU that also drives a screen: the rest of it is the whole. The screen is nobody's fault."""

from __future__ import annotations

import pytest
from support.policy_world import GIB, World, gpu, plain_config, process, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import MIB
from jupyter_gpushare.policy.words.model import (
    GpuReading,
    ProcessReading,
    Quota,
    Request,
    Reserve,
)

ZERO = gpu(0).uuid
SCREEN = 99


def workstation(quota: Quota | None = None, size: int = 160 * MIB, **config: object) -> World:
    """A GPU of 24 GiB, of which something of the host's uses ``size`` bytes."""
    world = World(plain_config(**config)).start([gpu(0)], quota or Quota(gpus=1))
    world.system.add(SCREEN)
    world.uses(SCREEN, size)
    return world


@pytest.mark.parametrize("quota", [Quota(1), Quota(1, 24 * GIB), Quota(1, 80 * GIB)])
def test_who_names_no_size_gets_all_that_the_screen_leaves(quota: Quota) -> None:
    world = workstation(quota)
    assert isinstance(world.request("alice", 1), core.Grant)
    held = world.state.leases["L1"].allocations
    assert [part.memory for part in held] == [24 * GIB - 160 * MIB]
    assert world.state.gpus[ZERO].free == 0


def test_nothing_is_granted_on_a_gpu_of_which_the_screen_leaves_nothing() -> None:
    world = workstation(size=24 * GIB)
    assert isinstance(world.request("alice", 1), core.Wait)
    world.uses(SCREEN, GIB)
    assert world.state.leases["L1"].allocations[0].memory == 23 * GIB


def test_who_names_more_than_the_screen_leaves_is_told_what_can_be_had() -> None:
    world = workstation()
    assert "leave at most 23.84 GiB on a GPU" in why_waits(
        world.request("alice", 1, Request(memory=24 * GIB))
    )
    assert isinstance(world.request("bob", 2, Request(memory=23 * GIB)), core.Grant)


def test_what_a_task_draws_belongs_to_its_lease() -> None:
    """Whoever has a lease is asked for what it uses, whether it computes or draws."""
    world = workstation()
    world.request("alice", 1, Request(memory=8 * GIB))
    world.system.add(1)
    world.uses(1, 4 * GIB)
    assert world.state.gpus[ZERO].system == 160 * MIB
    assert world.state.gpus[ZERO].unleased == 160 * MIB


def test_the_size_of_a_screen_that_the_driver_does_not_tell_is_what_nobody_else_has() -> None:
    world = workstation()
    screen = ProcessReading((process(SCREEN),), None, None, system=True)
    world.run(cmd.Observe(world.at, (GpuReading(ZERO, None, 480 * MIB, (screen,)),)))
    assert world.state.gpus[ZERO].system == 480 * MIB
    stranger = ProcessReading((process(98),), None)
    both = (screen, stranger)
    world.run(cmd.Observe(world.at, (GpuReading(ZERO, None, 480 * MIB, both),)))
    assert (world.state.gpus[ZERO].system, world.state.gpus[ZERO].unleased) == (0, 480 * MIB)


def test_nobody_is_told_to_use_less_than_is_in_use_whatever_the_host_takes() -> None:
    world = workstation()
    world.request("alice", 1, Request(1, reserve=Reserve.QUOTA, live=True))
    world.uses(1, 2 * GIB)
    world.uses(SCREEN, 24 * GIB)
    (followed,) = world.of(ev.ReservationFollowed)
    assert followed.memory >= 2 * GIB
