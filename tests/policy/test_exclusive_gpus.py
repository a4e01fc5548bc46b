"""A GPU on which the driver lets one process compute is never given to two tasks."""

from __future__ import annotations

from dataclasses import replace

from support.policy_world import GIB, World, gpu, plain_config, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words.model import Quota, Request

SMALL = Request(memory=GIB)
ONLY = gpu(0).uuid


def node(quota: int = 2) -> World:
    """GPU 0 in compute mode "exclusive process", and GPU 1."""
    return World(plain_config()).start([replace(gpu(0), exclusive=True), gpu(1)], Quota(quota))


def test_one_task_has_it_whatever_room_is_left() -> None:
    world = node()
    for pid in range(1, 5):
        assert isinstance(world.request(f"user-{pid}", pid, SMALL), core.Grant)
    assert sorted(world.gpus_of(f"L{pid}")[0] for pid in range(1, 5)) == [0, 1, 1, 1]


def test_nor_does_a_second_task_of_the_same_person_share_it() -> None:
    world = World(plain_config()).start([replace(gpu(0), exclusive=True)], Quota(1))
    assert isinstance(world.request("alice", 1, SMALL), core.Grant)
    assert "GPU 0 takes one task at a time" in why_waits(world.request("alice", 2, SMALL))
    world.release("L1", "alice", seen=True)
    assert world.gpus_of("L2") == [0]


def test_nor_does_anybody_beside_a_process_without_a_lease() -> None:
    world = World(plain_config()).start([replace(gpu(0), exclusive=True)], Quota(1))
    world.uses(99, GIB)
    assert isinstance(world.request("alice", 1, SMALL), core.Wait)
    del world.memory[(99, ONLY)]
    world.observe()
    assert world.gpus_of("L1") == [0]
