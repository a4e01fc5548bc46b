"""How many tasks a GPU takes: memory decides, unless somebody or the driver said how many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.policy_world import GIB, World, gpu, plain_config, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.say.texts import doubt_texts
from jupyter_gpushare.policy.words.model import Estimate, Quota, Request, Reserve

FOUR = 4 * GIB


def a_class(quota: Quota, request: Request | None = None, **config: int) -> World:
    """Twelve students ask on two GPUs of 24 GiB."""
    world = World(plain_config(**config)).start([gpu(0), gpu(1)], quota)
    for number in range(1, 13):
        world.request(f"student-{number}", number, request)
    return world


@pytest.mark.parametrize(
    ("quota", "request_"),
    [(Quota(1, FOUR), None), (Quota(1), Request(memory=FOUR)), (Quota(1, FOUR), Request(1, FOUR))],
)
def test_twelve_students_of_four_gib_fit_on_two_gpus(quota: Quota, request_: Request) -> None:
    world = a_class(quota, request_)
    assert [world.phase(f"L{number}") for number in range(1, 13)] == ["held"] * 12
    assert [books.free for books in world.state.gpus.values()] == [0, 0]


def test_what_the_administrator_set_binds_whatever_was_named() -> None:
    world = a_class(Quota(1, FOUR), Request(1, FOUR), max_tasks_per_gpu=4)
    assert [books.tasks for books in world.state.gpus.values()] == [4, 4]
    assert (
        "GPUs 0 and 1 have enough free memory, but already 4 tasks, the most that the "
        "administrator's setting max_tasks_per_gpu allows."
    ) in world.why("L9")


def test_a_request_for_which_no_size_is_known_goes_beside_three_others_at_most() -> None:
    """What it reserves follows what it uses; so memory alone would let any number in."""
    estimate = Estimate(GIB, 20)
    guess = Request(reserve=Reserve.ESTIMATE, estimate=estimate)
    world = World(plain_config()).start([gpu(0, 80)], Quota(1, 8 * GIB))
    for number in range(1, 6):
        world.request(f"student-{number}", number, guess)
    assert [world.phase(f"L{number}") for number in (4, 5)] == ["held", "queued"]
    assert (
        "GPU 0 has enough free memory, but already 4 tasks, the most beside which a request is "
        "placed that names no size: name one, and the memory decides."
    ) in world.why("L5")
    assert isinstance(world.request("bob", 9, Request(memory=FOUR)), core.Grant)


@pytest.mark.parametrize(
    ("most", "memory", "is_said"),
    [(4, FOUR, True), (5, FOUR, True), (6, FOUR, False), (1, 12 * GIB, True), (1, 13 * GIB, False)],
)
def test_a_setting_that_contradicts_a_quota_is_said(most: int, memory: int, is_said: bool) -> None:
    config = plain_config(max_tasks_per_gpu=most)
    said = doubt_texts("alice", Quota(1, memory), [24 * GIB], config)
    assert bool(said) is is_said
    assert not doubt_texts("alice", Quota(1, memory), [24 * GIB], plain_config())
    assert not doubt_texts("alice", Quota(1), [24 * GIB], config), "whole GPUs"


def test_what_is_said_of_it() -> None:
    config = plain_config(max_tasks_per_gpu=4, min_idle=60.0)
    assert doubt_texts("alice", Quota(1, FOUR, idle_timeout=10.0), [24 * GIB], config) == [
        "alice may have 4 GiB on each GPU, but max_tasks_per_gpu is 4: beside 4 tasks of that size "
        "8 GiB of a GPU are given to nobody else. Without that setting memory decides.",
        "alice may be idle for 10 s, but min_idle is 1 min: no idle time-out is shorter than that.",
    ]


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
    world.uses(99, 0)
    assert world.gpus_of("L1") == [0]
