"""The situations of the golden documents: each a state that the policy's own commands made.

`PYTHONPATH=tests python -m golden.situations` writes the documents anew, or those it is told.
"""

from __future__ import annotations

import sys
from typing import Final

from golden.scene import (
    ALICE,
    BOB,
    DOCUMENTS,
    OTHER,
    ROOT,
    SITUATIONS,
    Situation,
    ask,
    later,
    node,
    situation,
    tell,
    text,
    uses,
    who,
)
from support.policy_moves import drain, given, idle, pin, plan, resume
from support.policy_world import GIB, World, gpu, process

from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Bytes,
    EnvironmentName,
    GpuReading,
    LeaseId,
    Movable,
    ParkWhen,
    Period,
    PriorityClass,
    Quota,
    Reserve,
    Rung,
    Vitals,
)

BATCH: Final = PriorityClass.BATCH
SILENT: Final = 10**9
SIX: Final = Quota(6, None)
ADMIN: Final = EnvironmentName("root")


# -- the node, and leases that are held --------------------------------------------------------


@situation
def nobody_is_there() -> Situation:
    """Two simulated GPUs, of which nobody holds one."""
    return Situation(node(2), (ALICE, ROOT), facts={"simulated": True})


@situation
def no_gpu() -> Situation:
    why = "GPU 0 (NVIDIA GeForce GT 710) is not shared: its driver tells no memory of processes."
    return Situation(node(0), facts={"left_out": (why,)})


@situation
def busy_and_idle() -> Situation:
    """A whole GPU that computes, and a part of one that is idle; the host has problems."""
    world = node(2, users={"bob": Quota(1, Bytes(8 * GIB), weight=2.0)})
    uses(world, ask(world, "alice"), 10, work=0.87)
    uses(world, ask(world, "bob", "read.ipynb"), 3)
    later(world, 400, 100)
    idle(world, "L2")
    later(world, 200, 100)
    facts = {"quotas_as_of": 1_700_000_000.0, "problem": "The driver does not answer."}
    return Situation(world, (ALICE, BOB, OTHER, ROOT), facts=facts, util={0: 0.87})


@situation
def one_persons_tasks_share_a_gpu() -> Situation:
    """Three of her tasks on one GPU; on another one somebody's script without a notebook."""
    world = node(2, Quota(1, Bytes(16 * GIB)))
    for name in ("first.ipynb", "second.ipynb", "sweep.py"):
        uses(world, ask(world, "alice", name), 2)
    uses(world, ask(world, "bob", "serve.py"), 5)
    later(world, 90, 30)
    return Situation(world, (ALICE, OTHER))


@situation
def stalled() -> Situation:
    """Four have fallen silent, one of them not long ago; carol waits for the memory of each."""
    world = node(4, Quota(2, None), heartbeat_timeout=60.0)
    for name, what in (("alice", "a.ipynb"), ("bob", "b.py"), ("alice", "c.ipynb"), ("dave", "d")):
        uses(world, ask(world, name, what), 20, work=0.0)
    world.vitals = {pid: Vitals(700.0, is_held=False) for pid in range(1, 5)}
    ask(world, "carol", gpus=1)
    beats(world, 1500, "L3", "L5")
    beats(world, 660, "L5")
    return Situation(world, (ALICE, ROOT, who("carol")))


@situation
def stalled_and_nobody_waits() -> Situation:
    world = node(1, heartbeat_timeout=60.0)
    uses(world, ask(world, "alice"), 20, work=0.0)
    world.vitals[1] = Vitals(700.0, is_held=False)
    later(world, 120, 30)
    return Situation(world, (ALICE, OTHER))


def beats(world: World, seconds: float, *leases: str) -> None:
    """Signs of life of these only."""
    for _ in range(int(seconds / 20)):
        for lease in leases:
            tell(world, cmd.Heartbeat, lease)
        later(world, 20, 20)


@situation
def over_its_limit() -> Situation:
    """Four tasks use 12 GiB of 8, and each has come further than the next."""
    config = {"over_limit_tolerance": GIB, "audit_grace": 5.0}
    world = node(4, Quota(1, Bytes(8 * GIB)), **config)
    names = ("alice", "bob", "carol", "dave")
    for name in names:
        uses(world, ask(world, name), 6)
    for lease, seconds in (("L4", 95.0), ("L3", 20.0), ("L2", 9.0), ("L1", 5.0)):
        uses(world, lease, 12)
        later(world, seconds)
    return Situation(world, (ALICE, ROOT))


@situation
def draining() -> Situation:
    """One was released and its process ends; one lives on, has CUDA, and its lease has ended."""
    world = node(2, Quota(1))
    for name in ("alice", "bob"):
        uses(world, ask(world, name), 6)
    world.release("L2", "bob")
    later(world, 200, 2)
    world.release("L1", "alice")
    ask(world, "carol", gpus=1)
    return Situation(world, (ALICE, BOB, who("carol")))


@situation
def another_process_goes_on() -> Situation:
    """The notebook ended, and a program that it started goes on with its lease."""
    world = node(1, Quota(1))
    ask(world, "alice")
    world.run(cmd.Attach(world.at, LeaseId("L1"), EnvironmentName("alice"), process(7)))
    world.memory[(7, gpu(0).uuid)] = 4 * GIB
    later(world, 50, 10)
    world.die(1)
    later(world, 500, 100)
    return Situation(world, (ALICE, ROOT))


# -- parking -------------------------------------------------------------------------------------


@situation
def parked_by_each_rung() -> Situation:
    """Host memory is bounded, and in use; one is parking, and one resumes."""
    world = node(6, SIX, parked_memory=40 * GIB)
    rungs = ((Rung.RELEASE, 0), (Rung.TRIM, 0), (Rung.STORAGE, 11 * GIB), (Rung.DRIVER, 12 * GIB))
    for rung, memory in rungs:
        lease = ask(world, "alice", f"{rung.value}.ipynb", gib=16)
        idle(world, lease)
        given(world, lease, rung, memory, Movable.ANY)
        if rung.stays:
            uses(world, lease, 0.5)
        later(world, 60, 30)
    uses(world, ask(world, "alice", "parking.ipynb"), 6)
    lease = ask(world, "alice", "resuming.ipynb", gib=8)
    for name in ("L5", "L6"):
        idle(world, name)
    given(world, lease, Rung.DRIVER, 5 * GIB, Movable.ANY)
    later(world, 10, 5)
    resume(world, lease)
    plan(world, "L5", 6 * GIB)
    later(world, 3)
    return Situation(world, (ALICE, OTHER, ROOT))


@situation
def warned_because_others_wait() -> Situation:
    """Her idle kernel can be moved by the driver; bob's keeps its GPU, carol's is pinned."""
    world = node(3, Quota(1), idle_timeout=600.0, notify_before=30.0)
    for name in ("alice", "bob", "carol"):
        uses(world, ask(world, name), 6)
        idle(world, f"L{world.serial}")
    tell(world, cmd.ReportAbility, "L1", Rung.DRIVER, "")
    tell(world, cmd.ReportAbility, "L2", Rung.STORAGE, "The driver is older than 570.")
    pin(world, "L3", 5400.0)
    ask(world, "dave", gpus=1)
    later(world, 580, 10)
    tell(world, cmd.Keep, "L2", "A thread of this kernel runs CUDA.")
    later(world, 5)
    return Situation(world, (ALICE, BOB, who("carol"), who("dave")))


@situation
def warned_by_time() -> Situation:
    """All idle GPUs are asked back here, whoever waits."""
    world = node(1, idle_timeout=600.0, notify_before=60.0, park_when=ParkWhen.ALWAYS)
    uses(world, ask(world, "alice"), 6)
    idle(world, "L1")
    later(world, 565, 10)
    return Situation(world, (ALICE, OTHER))


@situation
def warned_because_gpu_hours_are_spent() -> Situation:
    world = node(1, Quota(1, gpu_hours=40.0), notify_before=30.0, budget_window=7 * 86400.0)
    uses(world, ask(world, "alice"), 6)
    idle(world, "L1")
    world.spent["alice"] = 40.004
    world.measure_budgets()
    later(world, 45, 5)
    return Situation(world)


@situation
def idle_and_may_be_asked() -> Situation:
    """Nobody waits, so nothing is told of it but until when it is safe."""
    world = node(1, idle_timeout=1800.0, notify_before=30.0)
    uses(world, ask(world, "alice"), 6)
    idle(world, "L1")
    later(world, 700, 100)
    return Situation(world)


# -- the queue ---------------------------------------------------------------------------------


@situation
def no_room() -> Situation:
    """All is in use; one of those who wait is batch, and others waited before and were granted."""
    world = node(1, Quota(1), idle_timeout=1800.0)
    ask(world, "dave", "quick.py")
    ask(world, "erin")
    later(world, 240, 60)
    world.release("L1", "dave")
    world.die(1)
    later(world, 1)
    uses(world, "L2", 20, work=0.4)
    ask(world, "carol", "night.py", priority_class=BATCH)
    later(world, 30, 10)
    ask(world, "alice", gib=8)
    later(world, 90, 30)
    ask(world, "bob", gib=8)
    later(world, 5)
    return Situation(world, (ALICE, BOB, OTHER, ROOT))


@situation
def partly_free() -> Situation:
    """Of two GPUs one is free for her, and the other has 12 GiB left."""
    world = node(2, Quota(2))
    uses(world, ask(world, "bob", gib=12), 9)
    idle(world, "L1")
    ask(world, "alice", gpus=2, gib=16)
    later(world, 30, 10)
    return Situation(world)


@situation
def waits_for_an_idle_kernel() -> Situation:
    """The first gets the GPU of her own other kernel, the second that of somebody's."""
    world = node(2, Quota(2), idle_timeout=600.0, notify_before=30.0)
    for name in ("alice", "bob"):
        uses(world, ask(world, name), 6)
        idle(world, f"L{world.serial}")
        later(world, 60, 30)
    ask(world, "carol", gpus=1)
    ask(world, "dave", gpus=1)
    later(world, 30, 10)
    return Situation(world, (who("carol"), who("dave"), ROOT))


@situation
def waits_for_ones_own_tasks() -> Situation:
    """Both of her tasks named their memory, and her quota allows no third."""
    world = node(1, Quota(1, Bytes(8 * GIB)))
    uses(world, ask(world, "alice", gib=6), 3)
    ask(world, "alice", "second.ipynb", gib=6)
    later(world, 20, 10)
    return Situation(world)


@situation
def behind_one_that_is_urgent() -> Situation:
    world = node(1, Quota(1), overtake_interactive=0)
    uses(world, ask(world, "bob", gib=12), 3)
    ask(world, "carol", gib=24)
    ask(world, "dave", gib=2)
    ask(world, "alice", gib=8)
    later(world, 20, 10)
    return Situation(world)


@situation
def far_back_in_a_long_queue() -> Situation:
    """Of others only a page is shown, and nobody works out what would be free."""
    world = node(1, Quota(1), max_tasks_per_gpu=1)
    for number in range(5):
        ask(world, f"person{number}")
    ask(world, "alice", gpus=1)
    later(world, 20, 10)
    pages = {"node.views.status.PAGE": 2, "node.views.status.PAGE_OF_ADMIN": 2}
    patches = {**pages, "policy.decide.waiting.MOST_EXPLAINED": 2}
    return Situation(world, (ALICE, ROOT), patches=patches)


@situation
def gpu_hours_are_spent() -> Situation:
    """In a rolling window, a week, a month and a term; erin's are nearly spent."""
    periods = {"alice": None, "bob": "week", "carol": "month", "dave": "2026-10-01", "erin": None}
    users = {
        name: Quota(1, gpu_hours=12.5, per=None if per is None else Period(per))
        for name, per in periods.items()
    }
    world = node(2, users=users)
    ask(world, "erin", gib=4)
    world.spent = {name: 12.503 for name in users} | {"erin": 11.0}
    spent = tuple((EnvironmentName(name), held) for name, held in sorted(world.spent.items()))
    free = ((EnvironmentName("alice"), world.at + 9000.0),)
    world.run(cmd.MeasureBudgets(world.at, spent, free))
    for name in ("alice", "bob", "carol", "dave"):
        ask(world, name)
    later(world, 60, 20)
    return Situation(world, tuple(who(name) for name in users))


@situation
def most_tasks() -> Situation:
    """The administrator lets a GPU have one task."""
    world = node(1, Quota(1, Bytes(8 * GIB)), max_tasks_per_gpu=1)
    uses(world, ask(world, "bob"), 2)
    ask(world, "alice")
    later(world, 5)
    return Situation(world)


@situation
def most_tasks_without_a_size() -> Situation:
    """Four that follow what they use are there, and a fifth request names no size either."""
    world = node(1, Quota(1, Bytes(2 * GIB)), reserve=Reserve.QUOTA)
    for name in ("bob", "carol", "dave", "erin"):
        uses(world, ask(world, name), 1)
    ask(world, "alice")
    later(world, 5)
    return Situation(world)


@situation
def out_of_service() -> Situation:
    """Two GPUs; one empties, and who needs both, or had memory there, waits for it."""
    world = node(3, Quota(3))
    uses(world, ask(world, "bob"), 6)
    lease = ask(world, "carol")
    idle(world, lease)
    given(world, lease, Rung.DRIVER, 9 * GIB, Movable.SAME)
    later(world, 2)
    drain(world, 0, "fan replaced")
    drain(world, 1, "the board is tested!")
    resume(world, lease)
    ask(world, "alice", gpus=3)
    later(world, 20, 10)
    return Situation(world, (ALICE, BOB, who("carol"), ROOT))


@situation
def a_gpu_is_lost() -> Situation:
    """The driver says so; who needs all waits for it."""
    world = node(2, Quota(2))
    uses(world, ask(world, "bob"), 6)
    lost = GpuReading(gpu(1).uuid, "GPU is lost: it fell off the bus.", None)
    world.run(cmd.Observe(world.at, (world.readings()[0], lost)))
    ask(world, "alice", gpus=2)
    return Situation(world, (ALICE, ROOT))


def write(names: list[str]) -> None:
    """Write the documents of these situations, or of all, as the product makes them now."""
    DOCUMENTS.mkdir(exist_ok=True)
    for name in names or SITUATIONS:
        (DOCUMENTS / f"{name}.json").write_text(text(SITUATIONS[name]().documents()), "utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
