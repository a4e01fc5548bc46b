"""Short words for what stories do with a :class:`~support.policy_world.World`, and see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from types import ModuleType
from typing import Any

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words.model import Quota, Request
from support.policy_world import GIB, World, gpu, plain_config

ALICE = "alice"


def two_people_one_gpu(bobs: Request | None = None) -> World:
    """alice holds the only GPU and uses it; bob waits."""
    world = World().start([gpu(0)], Quota(1, 24 * GIB))
    world.request("alice", 1)
    world.uses(1, 20 * GIB)
    world.request("bob", 2, bobs)
    return world


def budgets(hours: float, **more: Quota) -> World:
    """One GPU for one task at a time; everybody has ``hours`` GPU-hours."""
    config = plain_config(max_tasks_per_gpu=1, overtake_interactive=2)
    return World(config).start([gpu(0)], Quota(1, None, gpu_hours=hours), **more)


def lazy(gpus: int = 1, **more: Any) -> World:
    """GPUs for one task each; a kernel may be idle for a minute."""
    parts = {"max_tasks_per_gpu": 1, "idle_timeout": 60.0, "heartbeat_timeout": 1e6, **more}
    return World(plain_config(**parts)).start([gpu(n) for n in range(gpus)], Quota(2, None))


def held_by(*people: str, **more: Any) -> World:
    """A GPU for each of these people, who compute there."""
    world = lazy(len(people), **more)
    for pid, who in enumerate(people, 1):
        world.request(who, pid)
    return world


def resting(gib: int = 0, **more: Any) -> World:
    """Alice's kernel is idle, and has so much of the only GPU."""
    world = held_by("alice", **more)
    if gib:
        world.uses(1, gib * GIB)
    world.idle("L1")
    return world


def come_and_go(world: World, pids: Iterable[int]) -> None:
    """Bob's processes are granted a GPU, one after the other: nobody bars them."""
    for pid in pids:
        decision = world.request("bob", pid)
        assert isinstance(decision, core.Grant)
        world.release(decision.lease, "bob", seen=True)


def gave_back_what_is_still_there(left: int = 3) -> World:
    """Alice's parked kernel said that CUDA never started; it has ``left`` GiB on the GPU."""
    world = resting()
    world.park("L1")
    world.memory[(1, gpu(0).uuid)] = left * GIB
    return world


def stories_of(*modules: ModuleType) -> Iterator[Callable[[], None]]:
    """The stories of test modules: tests without arguments. A planted bug must break one."""
    for module in modules:
        for name, test in vars(module).items():
            is_test = name.startswith("test_") and callable(test)
            if is_test and not hasattr(test, "hypothesis") and not signature(test).parameters:
                yield test
