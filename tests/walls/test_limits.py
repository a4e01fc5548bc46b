"""How much memory a wall lets an environment have: never more in all than there is."""

from __future__ import annotations

import pytest
from support.policy_world import GIB, World, gpu, plain_config

from jupyter_gpushare.node.host.walls import Limits, limits
from jupyter_gpushare.policy.words.model import LeasePhase, Quota, Request, Rung

CONFIG = plain_config(driver_tolerance=GIB, over_limit_tolerance=2 * GIB)
GPU = gpu(0).uuid


def shared(*sizes: int) -> World:
    """A GPU of 24 GiB on which ann, bob and so on have leases of so many."""
    world = World(CONFIG).start([gpu(0)], Quota(2, None))
    for pid, (who, size) in enumerate(zip(("ann", "bob", "cid"), sizes, strict=False), 1):
        world.request(who, pid, Request(1, size * GIB))
    return world


def in_gib(found: Limits) -> dict[str, tuple[float, float]]:
    return {name: (soft / GIB, most / GIB) for (name, _gpu), (soft, most) in found.items()}


@pytest.mark.parametrize(
    ("sizes", "used_by_others", "headroom"),
    [
        ((4, 4), 0, 2.0),
        ((10, 10), 0, 1.5),
        ((10, 10), 1, 1.0),
        ((6, 7, 7), 0, 1.0),
        ((11, 12), 0, 0.0),
        ((12, 12), 2, 0.0),
    ],
)
def test_head_room_is_an_equal_part_of_what_is_free(
    sizes: tuple[int, ...], used_by_others: int, headroom: float
) -> None:
    """What the driver may take is left free, and nothing is where a stranger took too much."""
    world = shared(*sizes)
    if used_by_others:
        world.memory[(9, GPU)] = used_by_others * GIB
        world.observe()
    given = {
        who: (size, size + headroom)
        for who, size in zip(("ann", "bob", "cid"), sizes, strict=False)
    }
    assert in_gib(limits(CONFIG, world.state)) == given


def test_what_comes_back_may_be_there_beside_what_its_person_uses() -> None:
    """As far as that is free: a restore that is refused loses the process."""
    world = shared(4)
    world.memory[(1, GPU)] = 10 * GIB
    world.observe()
    world.idle("L1")
    world.plan("L1", 10 * GIB)
    world.gives("L1", Rung.DRIVER, 10 * GIB)
    world.memory.pop((1, GPU))
    world.observe()
    world.request("ann", 2, Request(1, 5 * GIB))
    world.resume("L1")
    assert world.state.leases["L1"].is_resuming
    assert in_gib(limits(CONFIG, world.state)) == {"ann": (9, 9 + 10 + 2)}
    world.request("bob", 3, Request(1, 12 * GIB))
    assert world.state.leases["L3"].phase is LeasePhase.HELD
    assert in_gib(limits(CONFIG, world.state)) == {"ann": (9, 12), "bob": (12, 12)}
    world.memory[(1, GPU)] = 10 * GIB
    world.restored("L1")
    assert world.walled.wall("ann", GPU) == [9 * GIB, 9.5 * GIB], "and then as for all others"


def test_while_a_grant_is_written_both_who_had_and_who_gets_have_theirs() -> None:
    """Where the GPU is too small for both, what was given back counts no more."""
    world = shared(4)
    before = world.state
    world.request("bob", 2, Request(1, 18 * GIB))
    both = world.state
    assert in_gib(limits(CONFIG, before, both)) == {"ann": (4, 4.5), "bob": (18, 18.5)}
    world.release("L1", "ann", seen=True)
    assert in_gib(limits(CONFIG, both, world.state)) == {"ann": (4, 4.5), "bob": (18, 18.5)}
    gone = world.state
    world.request("cid", 3, Request(1, 6 * GIB))
    assert in_gib(limits(CONFIG, both, world.state)) == {"bob": (18, 18), "cid": (6, 6)}
    assert in_gib(limits(CONFIG, gone)) == {"bob": (18, 20)}


def test_who_uses_more_than_its_allowance_is_counted_with_it_and_new_grants_wait() -> None:
    """No limit goes below what is used; so nobody else may be promised that."""
    world = shared(8, 4)
    world.memory[(1, GPU)] = 15 * GIB
    world.observe()
    assert in_gib(limits(CONFIG, world.state)) == {"ann": (8, 10), "bob": (4, 6)}
    world.request("cid", 3, Request(1, 5 * GIB))
    assert world.phase("L3") == "held", "of 12 GiB beside her 8 she has 7"
    assert in_gib(limits(CONFIG, world.state))["bob"] == (4, 4), "and nothing is left over"
    world.request("dan", 4, Request(1, GIB))
    assert world.phase("L4") == "queued"
    world.memory[(1, GPU)] = 8 * GIB
    world.observe()
    assert world.phase("L4") == "held"
