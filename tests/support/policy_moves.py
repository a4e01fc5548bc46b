"""Short words for what stories do with a :class:`~support.policy_world.World`, and see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from types import ModuleType
from typing import Any

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import lifts as book
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.recall import lifts
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Movable,
    Quota,
    Request,
    Rung,
)
from support.policy_world import (
    BOOT,
    GIB,
    World,
    gpu,
    is_asked_back,
    limits_of,
    plain_config,
    replayed,
)

ALICE = "alice"


def phase(world: World, lease: str) -> str:
    found = world.state.leases.get(lease)
    return "forgotten" if found is None else found.phase.value


def two_people_one_gpu(bobs: Request | None = None) -> World:
    """alice holds the only GPU and uses it; bob waits."""
    world = World().start([gpu(0)], Quota(1, 24 * GIB))
    world.request("alice", 1)
    world.memory[(1, gpu(0).uuid)] = 20 * GIB
    world.observe()
    world.request("bob", 2, bobs)
    return world


def budgets(hours: float, **more: Quota) -> World:
    """One GPU for one task at a time; everybody has ``hours`` GPU-hours."""
    config = plain_config(max_tasks_per_gpu=1, overtake_interactive=2)
    return World(config).start([gpu(0)], Quota(1, None, gpu_hours=hours), **more)


def idle(world: World, lease: str) -> None:
    """The lease's cell has ended."""
    world.says(lease, cmd.SetActivity, Activity.IDLE)


def park(world: World, lease: str) -> core.Decision:
    return world.says(lease, cmd.Park)


def resume(world: World, lease: str, *, wait: bool = True) -> core.Decision:
    return world.says(lease, cmd.Resume, wait)


def asked(world: World) -> list[str]:
    """The leases that were asked for their GPUs so far, in order."""
    return [event.lease for event in world.history if is_asked_back(event)]


def lazy(gpus: int = 1, **more: Any) -> World:
    """GPUs for one task each; a kernel may be idle for a minute."""
    parts = {"max_tasks_per_gpu": 1, "idle_timeout": 60.0, "heartbeat_timeout": 1e6, **more}
    return World(plain_config(**parts)).start([gpu(n) for n in range(gpus)], Quota(2, None))


def given(
    world: World,
    lease: str,
    rung: Rung,
    memory: int = 0,
    movable: Movable = Movable.SAME,
) -> core.Decision:
    """The task gives its GPUs back by this rung."""
    who = world.caller(lease)
    return world.run(cmd.Park(world.at, *who, rung, memory, movable, 1.0))


def plan(world: World, lease: str, memory: int) -> core.Decision:
    return world.says(lease, cmd.PlanParking, memory)


def restored(world: World, lease: str) -> core.Decision:
    return world.says(lease, cmd.Restored, 1.0)


def pin(world: World, lease: str, seconds: float | None = None) -> core.Decision:
    found = world.state.leases[lease]
    return world.run(cmd.Pin(world.at, found.id, found.environment, seconds))


def stays(world: World) -> list[tuple[str, int]]:
    """The leases asked so far, with the bytes that may stay on their first GPU."""
    return [(event.lease, event.keep[0].memory) for event in world.history if is_asked_back(event)]


def gave_back_what_is_still_there(left: int = 3) -> World:
    """Alice's parked kernel said that CUDA never started; it has ``left`` GiB on the GPU."""
    world = lazy()
    world.request("alice", 1)
    idle(world, "L1")
    park(world, "L1")
    world.memory[(1, gpu(0).uuid)] = left * GIB
    return world


def restarted(world: World) -> State:
    """The state that a node manager has which was killed and started again."""
    state = replayed(world.state)
    return core.step(state, cmd.Start(world.at, BOOT, (gpu(0),)), world.config).state


def look(world: World, seconds: float = 2.0) -> None:
    world.at += seconds
    world.observe()


def limit(world: World, lease: str = "L1") -> float:
    """GiB that a task was last told that it may use."""
    found = world.state.leases[lease]
    return lifts.limit(world.state, found, found.allocations[0]) / GIB


def answers(world: World, lease: str, *, live: bool = True) -> None:
    """The client says that its frameworks have the limit that it was told last."""
    world.at += 0.1
    uuid = gpu(0).uuid
    gpus = (Allocation(uuid, limits_of(world.state)[(lease, uuid)].memory),) if live else ()
    world.says(lease, cmd.ConfirmLimit, gpus, live)


def books(world: World, who: str = "alice") -> tuple[float, float]:
    """GiB that an environment is entitled to, and that are reserved for it."""
    key = (who, gpu(0).uuid)
    return book.entitled(world.state, key) / GIB, world.state.reservations[key].memory / GIB


def named(world: World, who: str = "alice") -> tuple[int, int]:
    """GiB that an environment has reserved on GPU 0, and that its tasks there named."""
    held = world.state.reservations[(who, gpu(0).uuid)]
    return held.memory // GIB, held.named // GIB


ADMIN = "root"


def drain(world: World, index: int = 0, reason: str = "fan replaced") -> core.Decision:
    return world.run(cmd.TakeOut(world.at, gpu(index).uuid, reason, ADMIN))


def put_back(world: World, index: int = 0) -> core.Decision:
    return world.run(cmd.PutBack(world.at, gpu(index).uuid, ADMIN))


def stories_of(*modules: ModuleType) -> Iterator[Callable[[], None]]:
    """The stories of test modules: tests without arguments. A planted bug must break one."""
    for module in modules:
        for name, test in vars(module).items():
            is_test = name.startswith("test_") and callable(test)
            if is_test and not hasattr(test, "hypothesis") and not signature(test).parameters:
                yield test
