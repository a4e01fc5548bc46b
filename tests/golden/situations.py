"""The situations of the golden documents: each a state that the policy's own commands made.

`PYTHONPATH=tests python -m golden.situations` writes the documents anew.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, Final

from golden.scene import (
    ALICE,
    BOB,
    DOCUMENTS,
    OTHER,
    PARTS,
    ROOT,
    SITUATIONS,
    Situation,
    ask,
    golden as golden,
    later,
    lend,
    loan,
    node,
    situation,
    started,
    text,
    uses,
    who,
)
from support.policy_locks import Room
from support.policy_loops import KIND, Loops
from support.policy_moving import Host, Slow, crowded
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import BOOT, GIB, World, gpu, plain_config, process

from jupyter_gpushare.compose import predictions
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Estimate,
    GpuReading,
    HolderAction,
    Movable,
    ParkWhen,
    Period,
    PriorityClass,
    Quota,
    Reserve,
    Rung,
    Vitals,
)
from jupyter_gpushare.policy.words.promises import Expected, Promise
from jupyter_gpushare.policy.words.turns import Figures, ShareMode

BATCH: Final = PriorityClass.BATCH
SILENT: Final = 10**9
FULL: Final = Quota(2, None, share=90)
MANY: Final = dataclasses.replace(CONFIG, max_tasks_per_gpu=8)
ADMIN: Final = "root"
CAROL, DAVE = who("carol"), who("dave")


# -- the node, and leases that are held --------------------------------------------------------


@situation
def nobody_is_there() -> Situation:
    """Two simulated GPUs, of which nobody holds one."""
    return Situation(node(2), facts={"simulated": True})


@situation
def no_gpu() -> Situation:
    why = "GPU 0 (NVIDIA GeForce GT 710) is not shared: its driver tells no memory of processes."
    return Situation(node(0), facts={"left_out": (why,)})


@situation
def busy_and_idle() -> Situation:
    """A whole GPU that computes, and a part of one that is idle; the host has problems."""
    world = node(2, users={"bob": Quota(1, 8 * GIB, weight=2.0)})
    uses(world, ask(world, "alice"), 10, work=0.87)
    uses(world, ask(world, "bob", "read.ipynb"), 3)
    later(world, 400, 100)
    world.idle("L2")
    later(world, 200, 100)
    facts = {"quotas_as_of": 1_700_000_000.0, "problem": "The driver does not answer."}
    return Situation(
        world, (ALICE, ROOT), facts=facts, util={0: 0.87}, parts="gpus leases", whole=True
    )


@situation
def one_persons_tasks_share_a_gpu() -> Situation:
    """Three of her tasks on one GPU; on another one somebody's script without a notebook."""
    world = node(2, Quota(1, 16 * GIB))
    for name in ("first.ipynb", "first.ipynb", "sweep.py"):
        uses(world, ask(world, "alice", name), 2)
    uses(world, ask(world, "bob", "serve.py"), 5)
    later(world, 90, 30)
    return Situation(world)


def silent(seconds: float) -> Situation:
    """A notebook and a script have fallen silent; carol and dave wait for their memory."""
    world = node(2, Quota(1), heartbeat_timeout=60.0)
    for name, what in (("alice", "a.ipynb"), ("bob", "b.py")):
        uses(world, ask(world, name, what), 20, work=0.0)
    world.vitals = {pid: Vitals(700.0, is_held=False) for pid in (1, 2)}
    for name in ("carol", "dave"):
        ask(world, name, gpus=1)
    beats(world, seconds, "L3", "L4")
    return Situation(world, parts="leases")


@situation
def suspended() -> Situation:
    """A batch system has stopped a notebook's process."""
    world = node(1, Quota(1), heartbeat_timeout=60.0)
    uses(world, ask(world, "alice", "a.ipynb"), 20, work=0.0)
    world.vitals = {1: Vitals(700.0, is_held=True)}
    world.at += 70.0
    world.run(cmd.Tick(world.at, world.at, frozenset({"L1"})))
    world.observe()
    return Situation(world, parts="leases")


SITUATIONS |= {"stalled": partial(silent, 1000), "stalled_for_long": partial(silent, 2100)}


@situation
def nobody_waits() -> Situation:
    """An idle kernel whose GPU is its own for a while yet, and a stalled one that bars nobody."""
    world = node(2, heartbeat_timeout=60.0, idle_timeout=1800.0, notify_before=30.0)
    for name in ("alice", "bob"):
        uses(world, ask(world, name), 20, work=0.0)
    world.vitals[2] = Vitals(700.0, is_held=False)
    world.idle("L1")
    world.says("L1", cmd.ReportAbility, Rung.RELEASE, "")
    world.says("L2", cmd.ReportAbility, Rung.TRIM, "The driver is older than 570.")
    beats(world, 700, "L1")
    return Situation(world, (ALICE, BOB), parts="leases")


def beats(world: World, seconds: float, *leases: str) -> None:
    """Signs of life of these only."""
    for _ in range(int(seconds / 20)):
        for lease in leases:
            world.says(lease, cmd.Heartbeat)
        later(world, 20, 20)


@situation
def over_its_limit() -> Situation:
    """Four tasks use 12 GiB of 8, and each has come further than the next."""
    config = {
        "over_limit_tolerance": GIB,
        "audit_grace": 5.0,
        "audit_action": HolderAction.INTERRUPT,
    }
    world = node(4, Quota(1, 8 * GIB), **config)
    names = ("alice", "bob", "carol", "dave")
    for name in names:
        uses(world, ask(world, name), 6)
    for lease, seconds in (("L4", 95.0), ("L3", 20.0), ("L2", 9.0), ("L1", 5.0)):
        uses(world, lease, 12)
        later(world, seconds)
    return Situation(world, (ALICE, ROOT), parts="leases", whole=True)


@situation
def draining() -> Situation:
    """One was released and its process ends; one lives on, has CUDA, and its lease has ended.

    Carol could have a whole GPU without that.
    """
    world = node(2, Quota(1))
    for name in ("alice", "bob"):
        uses(world, ask(world, name), 6)
    world.release("L2", "bob")
    later(world, 200, 2)
    world.release("L1", "alice")
    ask(world, "carol", gib=24)
    return Situation(world, (CAROL,), parts="queue")


@situation
def another_process_goes_on() -> Situation:
    """The notebook ended, and a program that it started goes on with its lease."""
    world = node(1, Quota(1))
    ask(world, "alice")
    world.run(cmd.Attach(world.at, "L1", "alice", process(7)))
    world.memory[(7, gpu(0).uuid)] = 4 * GIB
    later(world, 50, 10)
    world.die(1)
    later(world, 500, 100)
    return Situation(world, (ROOT,), parts="leases")


@situation
def processes_without_a_right() -> Situation:
    """One has no lease, another has one and uses too much."""
    world = node(2, Quota(1, 8 * GIB), over_limit_tolerance=GIB)
    uses(world, ask(world, "alice"), 11)
    world.memory[(4242, gpu(1).uuid)] = 3 * GIB
    later(world, 15)
    return Situation(world, (ALICE, ROOT), parts="gpus leases")


@situation
def jobs_of_several_workers() -> Situation:
    """An elastic training, one of whose workers drains, and a sweep, of which one waits."""
    world = node(5, Quota(6))
    for number in range(3):
        uses(world, ask(world, "alice", f"w{number}.py", job="digits", job_kind="elastic"), 4)
    for number in range(3):
        ask(world, "bob", f"trial{number}.py", gib=24, job="lr", job_kind="sweep")
    later(world, 90, 30)
    world.release("L3", "alice")
    later(world, 5)
    return Situation(world, (ALICE, ROOT), parts="jobs leases", whole=True)


# -- parking -------------------------------------------------------------------------------------


@situation
def parked_by_each_rung() -> Situation:
    """Host memory is bounded, and in use. One is parking, one resumes, and one would at once."""
    world = node(7, Quota(7), parked_memory=48 * GIB)
    rungs = ((Rung.RELEASE, 0), (Rung.TRIM, 0), (Rung.STORAGE, 11 * GIB), (Rung.DRIVER, 12 * GIB))
    for rung, memory in rungs:
        lease = ask(world, "alice", f"{rung.value}.ipynb", gib=16)
        world.idle(lease)
        world.gives(lease, rung, memory, Movable.ANY)
        if rung.stays:
            uses(world, lease, 0.5)
        later(world, 60, 30)
    for what in ("parking", "resuming", "again"):
        lease = ask(world, "alice", f"{what}.ipynb", gib=8)
        world.idle(lease)
    world.gives("L6", Rung.DRIVER, 5 * GIB, Movable.ANY)
    later(world, 10, 5)
    world.resume("L6")
    world.plan("L5", 6 * GIB)
    uses(world, "L7", 6)
    later(world, 3)
    world.gives("L7", Rung.DRIVER, 6 * GIB, Movable.ANY)
    world.resume("L7")
    return Situation(world, (ALICE, OTHER))


@situation
def servers_sleep_and_serve() -> Situation:
    """One was stopped and waits for a GPU; others sleep, wake, fall asleep, idle and serve."""
    world = node(4, Quota(6), parked_memory=48 * GIB)
    names = ("stopped", "asleep", "waking", "falls", "idle", "serving")
    for what in names[:3]:
        uses(world, lease := ask(world, "alice", f"{what}.gguf", gib=24), 12)
        world.idle(lease)
        world.memory.clear()
        rungs = {"stopped": Rung.RELEASE, "asleep": Rung.STORAGE}
        world.gives(lease, rungs.get(what, Rung.DRIVER), 12 * GIB, Movable.KIND)
        later(world, 30, 10)
    for what in names[3:]:
        uses(world, ask(world, "alice", f"{what}.gguf", gib=24), 12)
    later(world, 90, 30)
    for lease in ("L4", "L5"):
        world.idle(lease)
    world.resume("L3")
    later(world, 5)
    world.resume("L1")
    world.plan("L4", 12 * GIB)
    later(world, 2)

    def told(port: int, **figures: Any) -> dict[str, Any]:
        known = {"requests": 0, "held": 0, "sleeps": 0, "wake_seconds": None, "model": None}
        return {"address": f"http://127.0.0.1:{port}", **known, **figures}

    serving = {
        "L1": told(8001, held=1, sleeps=1),
        "L2": told(8002, sleeps=3, wake_seconds=4.2),
        "L3": told(8003, held=2, sleeps=1, wake_seconds=2.5),
        "L4": told(8004),
        "L5": told(8005),
        "L6": told(8006, requests=3, model="tiny-llama"),
    }
    return Situation(world, (ALICE, OTHER), serving=serving)


@situation
def waits_for_an_idle_server() -> Situation:
    """Hers is a server, which is asked at once when it is idle, and bob waits for it."""
    world = node(1, Quota(1), idle_timeout=600.0, notify_before=30.0)
    uses(world, ask(world, "alice", "model.gguf"), 12)
    world.idle("L1")
    ask(world, "bob")
    return Situation(world, (ALICE, BOB), parts="leases queue")


@situation
def warned_because_others_wait() -> Situation:
    """Her idle kernel keeps its GPU, bob's is next and can be moved, carol's is pinned."""
    world = node(3, Quota(1), idle_timeout=600.0, notify_before=30.0)
    for name in ("alice", "bob", "carol"):
        uses(world, ask(world, name), 6)
        world.idle(f"L{world.serial}")
    world.says("L1", cmd.ReportAbility, Rung.STORAGE, "The driver is older than 570.")
    world.says("L2", cmd.ReportAbility, Rung.DRIVER, "")
    world.says("L3", cmd.ReportAbility, Rung.NONE, "It shares memory with another process.")
    world.pin("L3", 5400.0)
    ask(world, "dave", gpus=1)
    later(world, 605, 5)
    world.says("L1", cmd.Keep, "A thread of this kernel runs CUDA.")
    later(world, 5)
    return Situation(world, (ALICE, BOB, CAROL), parts="leases")


@situation
def warned_by_time() -> Situation:
    """All idle GPUs are asked back here, whoever waits; bob's GPU-hours are spent."""
    hours = {"bob": Quota(1, gpu_hours=40.0)}
    parts = {"notify_before": 60.0, "spent_idle_timeout": 600.0, "park_when": ParkWhen.ALWAYS}
    world = node(2, users=hours, idle_timeout=600.0, **parts)
    for name in ("alice", "bob"):
        uses(world, ask(world, name), 6)
        world.idle(f"L{world.serial}")
    world.spent["bob"] = 40.004
    world.measure_budgets()
    later(world, 565, 10)
    return Situation(world, (ALICE, BOB), parts="leases", whole=True)


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
    return Situation(world, (ALICE, ROOT), parts="says waits queue")


@situation
def partly_free() -> Situation:
    """Of two GPUs one is free for her, and the other has 12 GiB left."""
    world = node(2, Quota(2))
    uses(world, ask(world, "bob", gib=12), 9)
    world.idle("L1")
    ask(world, "alice", gpus=2, gib=16)
    later(world, 30, 10)
    return Situation(world, parts="leases queue")


@situation
def waits_for_an_idle_kernel() -> Situation:
    """The first gets the GPU of her own other kernel, the second that of somebody's."""
    world = node(2, Quota(2), idle_timeout=600.0, notify_before=30.0)
    for name in ("carol", "bob"):
        uses(world, ask(world, name), 6)
        world.idle(f"L{world.serial}")
        later(world, 60, 30)
    ask(world, "carol", "second.ipynb", gpus=2)
    ask(world, "dave", gpus=1)
    later(world, 30, 10)
    return Situation(world, (DAVE, ROOT), parts="queue", whole=True)


@situation
def waits_for_ones_own_tasks() -> Situation:
    """Both of her tasks named their memory, and her quota allows no third."""
    world = node(1, Quota(1, 8 * GIB))
    uses(world, ask(world, "alice", gib=6), 3)
    ask(world, "alice", "second.ipynb", gib=6)
    later(world, 20, 10)
    return Situation(world, parts="queue")


@situation
def behind_one_that_is_urgent() -> Situation:
    world = node(1, Quota(1), overtake_interactive=0)
    uses(world, ask(world, "bob", gib=12), 3)
    ask(world, "carol", gib=24)
    ask(world, "alice", gib=8)
    later(world, 20, 10)
    return Situation(world, parts="queue")


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
    return Situation(world, (ROOT, ALICE), patches=patches, parts="leases queue", whole=True)


@situation
def gpu_hours_are_spent() -> Situation:
    """In a rolling window, a week, a month and a term; erin's are nearly spent."""
    periods = {"alice": None, "bob": "week", "carol": "month", "dave": "2026-10-01", "erin": None}
    users = {
        name: Quota(1, gpu_hours=12.5, per=None if per is None else Period(per))
        for name, per in periods.items()
    }
    world = node(1, users=users)
    ask(world, "erin", gib=4)
    spent = tuple((name, 12.503 - 1.5 * (name == "erin")) for name in users)
    free = (("alice", world.at + 9000.0),)
    world.run(cmd.MeasureBudgets(world.at, spent, free))
    world.spent = {str(name): held for name, held in spent}
    for name in ("alice", "bob", "carol", "dave"):
        ask(world, name)
    later(world, 60, 20)
    return Situation(world, tuple(who(name) for name in users), parts="quota leases queue")


@situation
def most_tasks() -> Situation:
    """The administrator lets a GPU have one task."""
    world = node(1, Quota(1, 8 * GIB), max_tasks_per_gpu=1)
    uses(world, ask(world, "bob"), 2)
    ask(world, "alice")
    later(world, 5)
    return Situation(world, parts="queue")


@situation
def most_tasks_without_a_size() -> Situation:
    """Four that follow what they use are there, and a fifth request names no size either."""
    world = node(1, Quota(1, 2 * GIB), reserve=Reserve.QUOTA)
    for name in ("bob", "carol", "dave", "erin"):
        uses(world, ask(world, name), 1)
    ask(world, "alice")
    later(world, 5)
    return Situation(world, parts="gpus queue")


@situation
def out_of_service() -> Situation:
    """Two GPUs; one empties, and who needs both, or had memory there, waits for it."""
    world = node(3, Quota(3))
    uses(world, ask(world, "bob"), 6)
    lease = ask(world, "carol")
    world.idle(lease)
    world.gives(lease, Rung.DRIVER, 9 * GIB, Movable.SAME)
    later(world, 2)
    world.drain(0, "fan replaced", within=7200.0)
    world.drain(1, "the board is tested!", within=7200.0)
    world.resume(lease)
    ask(world, "alice", gpus=3)
    later(world, 20, 10)
    return Situation(world, (BOB, ROOT), parts="gpus queue")


@situation
def a_gpu_is_lost() -> Situation:
    """The driver says so; who needs all waits for it."""
    world = node(2, Quota(2))
    uses(world, ask(world, "bob"), 6)
    lost = GpuReading(gpu(1).uuid, "GPU is lost: it fell off the bus.", None)
    world.run(cmd.Observe(world.at, (*world.readings()[:0], lost)))
    ask(world, "alice", gpus=2)
    return Situation(world)


@situation
def a_batch_request_would_delay_a_person() -> Situation:
    world = node(2, Quota(4, None), max_tasks_per_gpu=1)
    ask(world, "bob", lasts=100.0)
    ask(world, "carol", gpus=2)
    ask(world, "alice", "night.py", priority_class=BATCH, lasts=200.0)
    later(world, 10)
    return Situation(world, parts="queue")


@situation
def a_batch_program_makes_way() -> Situation:
    """Bob's was asked to save its state for dave, and erin's will be asked for alice."""
    world = node(2, Quota(1), stop_after=300.0, stop_grace=60.0)
    ask(world, "bob", "night.py", priority_class=BATCH, stops=True)
    later(world, 200, 50)
    ask(world, "erin", "day.py", priority_class=BATCH, stops=True)
    ask(world, "dave", gpus=1)
    ask(world, "alice", gpus=1)
    later(world, 120, 10)
    return Situation(world, (ALICE, ROOT), parts="says queue gpus")


@situation
def what_a_parked_task_left_is_in_the_way() -> Situation:
    """She needs the whole GPU, and a parked kernel's context is still there."""
    world = node(1, Quota(1))
    lease = ask(world, "bob")
    world.idle(lease)
    world.gives(lease, Rung.STORAGE, 8 * GIB, Movable.SAME)
    uses(world, lease, 0.5)
    ask(world, "alice", gib=24)
    later(world, 20, 10)
    return Situation(world, parts="queue")


@situation
def the_link_is_busy() -> Situation:
    """Another task's memory moves over it."""
    world = node(1, Quota(1, 2 * GIB), 80)
    for name in ("bob", "alice"):
        lease = ask(world, name)
        world.idle(lease)
        world.gives(lease, Rung.DRIVER, GIB, Movable.KIND)
        world.observe()
    ask(world, "carol")
    world.resume("L1")
    world.resume("L2")
    later(world, 3)
    return Situation(world, parts="says gpus leases queue")


@situation
def odd_gpus() -> Situation:
    """One draws a screen, one takes one process at a time, and one is cut in two."""
    world = World(plain_config(heartbeat_timeout=1e6))
    parts = [dataclasses.replace(gpu(n, 4 * n), index=2, instance=n) for n in (4, 5)]
    world.start([gpu(0), dataclasses.replace(gpu(1, 20), exclusive=True), *parts], Quota(2))
    world.system.add(99)
    world.memory[(99, gpu(0).uuid)] = GIB // 4
    world.observe()
    for name, gib in (("carol", 22), ("bob", 19), ("dave", 19)):
        uses(world, ask(world, name, gib=gib), 2)
    ask(world, "alice", gib=24)
    later(world, 5)
    return Situation(world, (ALICE, DAVE), parts="quota gpus leases queue")


@situation
def nothing_is_granted() -> Situation:
    """The ledger's disk is full."""
    world = node(1)
    uses(world, ask(world, "alice"), 6)
    ask(world, "bob")
    world.run(cmd.SetGranting(world.at, "The disk of the ledger is full."))
    return Situation(world, (BOB,), parts="node says queue")


@situation
def the_ledger_is_new() -> Situation:
    """Leases are presented again."""
    world = World(plain_config(restart_grace=30.0))
    world.run(cmd.Start(world.at, BOOT, (gpu(0),), True))
    world.run(cmd.ConfigureQuotas(world.at, Quota(1)))
    ask(world, "alice")
    return Situation(world, parts="node says queue")


# -- turns -------------------------------------------------------------------------------------


def join(world: TurnWorld, name: str, gib: int = 12, kept: int = 2, step: int = 4) -> Actor:
    """A notebook with a training loop; sizes in GiB."""
    lease = ask(world, name, f"{name}.ipynb", gib=gib)
    pid = world.state.leases[lease].task.process.pid
    actor = Actor(pid, name, lease, kept * GIB, step * GIB, gated=True)
    world.actors[actor.lease] = actor
    if world.holds(actor):
        world.train(actor, 3)
        world.observe()
    return actor


def train(world: TurnWorld, seconds: int, *actors: Actor) -> None:
    """A step a second of each that may."""
    for _ in range(seconds):
        for actor in actors:
            world.train(actor, 1)
        world.second()
    world.observe()


def turns(*names: str, gib: int = 80, **parts: Any) -> tuple[Any, ...]:
    """A node with turns, and people on its only GPU."""
    world = TurnWorld(dataclasses.replace(MANY, **parts))
    started(world, 1, Quota(1), gib)
    return world, *(join(world, name) for name in names)


@situation
def taking_turns() -> Situation:
    """Alice comes next, four are there besides, and one reads."""
    names = ("alice", "bob", "carol", "dave", "erin", "frank")
    world, *actors = turns(*names)
    train(world, 40, *actors)
    world.cell_ends(actors[5])
    train(world, 33, *actors[:5])
    return Situation(world, (BOB, who("frank")), util={0: 0.96}, parts="leases", whole=True)


@situation
def a_turn_is_asked_back() -> Situation:
    """Memory is used by turns. Alice's step ends before bob's cell begins, whose cells are short.

    Carol's cell began, and she waits for his.
    """
    world, alice, bob = turns("alice", "bob", gib=20)
    for _ in range(4):
        world.cell_ends(bob)
        train(world, 4, alice)
        train(world, 2, alice, bob)
    world.cell_ends(bob)
    train(world, 50, alice)
    world.begin_step(alice)
    world.begin_step(bob)
    world.second()
    return Situation(world, (ALICE, BOB), parts="gpus leases")


@situation
def a_pin_keeps_a_turn() -> Situation:
    """And a request that would not fit is told of it."""
    world, bob, alice = turns("bob", "alice", pin_turn_limit=600.0)
    world.cell_ends(bob)
    train(world, 50, alice)
    world.pin(alice.lease, 600.0)
    train(world, 5, alice, bob)
    ask(world, "carol", gib=79)
    return Situation(world, (ALICE, CAROL), parts="gpus leases queue")


@situation
def it_overran_its_turn() -> Situation:
    world, alice, bob = turns("alice", "bob")
    train(world, 40, alice, bob)
    world.begin_step(alice)
    train(world, 200, bob)
    return Situation(world, parts="leases")


@situation
def the_driver_locks_it() -> Situation:
    """Alice's loop has no gate, and bob's short cell has the turn."""
    room = Room()
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    room.come("alice", 1, gated=False)
    room.steps(60)
    room.cell_begins(bob)
    room.steps(3)
    return Situation(room, parts="leases")


@situation
def it_moves_to_another_gpu() -> Situation:
    """Alice was asked at her gate; carol computes where she waited."""
    host = Slow()
    _alice, bob, _carol = crowded(host)
    host.ends(bob)
    host.seconds(2)
    return Situation(host.world)


@situation
def it_was_moved_in_its_cell() -> Situation:
    host = Host()
    alice, bob, _carol = crowded(host)
    host.ends(bob)
    host.seconds(2)
    host.world.says(alice.lease, cmd.Restored, 1.0)
    host.seconds(5)
    return Situation(host.world, parts="gpus leases")


@situation
def it_makes_way_for_a_request() -> Situation:
    """Alice had much, and was asked for her memory; bob waits for it."""
    host = Slow(gpus=1)
    host.come("alice", 1, 70)
    host.seconds(20)
    host.come("bob", 2, 40)
    host.seconds(300)
    return Situation(host.world, (ALICE, BOB), parts="leases queue")


def cache(what: str) -> Situation:
    """Alice needs 2 + 4 GiB and has 20 of 24 in a step; bob waits for 12.

    She comes to no end of it, or says that her cache is empty, and still uses as much.
    """
    world = TurnWorld(CONFIG)
    started(world, 1)
    alice = join(world, "alice", 20)
    alice.cache = 14 * GIB
    world.train(alice, 1)
    world.observe()
    world.begin_step(alice)
    join(world, "bob", 12)
    for _ in range({"asked_for": 1, "late": 30, "kept": 1}[what]):
        world.second()
    if what == "kept":
        alice.persistent, alice.in_step = 18 * GIB, False
        world.ask(alice)
        world.at += 2
        world.observe()
    return Situation(world, (BOB,), parts="queue")


SITUATIONS |= {f"a_cache_is_{what}": partial(cache, what) for what in ("asked_for", "late", "kept")}


# -- promises and predictions ------------------------------------------------------------------


def promised(allowed: int, seconds: float) -> Situation:
    """Alice's loop of 40 steps, beside two others, after so many seconds of a promise of 70.

    Before, dave's was kept and erin's was missed.
    """
    loops = Loops(alice=Quota(2, None, share=allowed))
    for name, deadline in (("dave", 100.0), ("erin", 4.0)):
        loops.promise(loops.come(name, 6, 1.0), deadline=deadline)
        loops.run(8)
    alice = loops.come("alice", 40, 1.0, share=30, slows=15, times=1.5)
    for name in ("bob", "carol"):
        loops.come(name, 10**6, 1.0, tells=SILENT)
    loops.run(10)
    loops.promise(alice, deadline=70.0)
    loops.run(seconds)
    return Situation(loops.world, parts="promises says leases")


for state, numbers in {"on_time": (90, 25), "late": (30, 40), "missed": (30, 75)}.items():
    SITUATIONS[f"a_promise_is_{state}"] = partial(promised, *numbers)


@situation
def a_promise_is_late_as_others_have_the_rest() -> Situation:
    """Bob was promised so much that she can have no more."""
    loops = Loops(alice=FULL, bob=FULL)
    bob = loops.come("bob", 10**6, 1.0, share=60, tells=SILENT)
    loops.promise(bob, rate=0.5)
    alice = loops.come("alice", 40, 1.0, share=20, slows=5, times=3.0)
    loops.come("carol", 10**6, 1.0, tells=SILENT)
    loops.run(10)
    loops.promise(alice, deadline=220.0)
    loops.run(60)
    return Situation(loops.world, parts="leases")


def beside_batch(stops: bool) -> Situation:
    """It did not say how it is stopped, or saves its state; it has less than was predicted."""
    config = dataclasses.replace(CONFIG, batch_share_least=30, max_tasks_per_gpu=9)
    loops = Loops(config, alice=FULL)
    alice = loops.come("alice", 50, 1.0, share=30, slows=5, times=1.5)
    loops.come("bob", 10**6, 1.0, share=70, batch=True, stops=stops, tells=SILENT)
    for name in ("carol", "dave"):
        loops.come(name, 10**6, 1.0, tells=SILENT)
    loops.run(10)
    loops.promise(alice, deadline=84.0)
    loops.run(15 if stops else 50)
    return Situation(loops.world, (ALICE, BOB), parts="gpus leases")


SITUATIONS["a_promise_is_late_because_of_batch"] = partial(beside_batch, stops=False)
SITUATIONS["batch_stops_for_a_promise"] = partial(beside_batch, stops=True)


@situation
def a_promise_without_turns() -> Situation:
    """Nobody can share the GPU's time out."""
    loops = Loops(dataclasses.replace(CONFIG, share_mode=ShareMode.SPACE))
    alice = loops.come("alice", 60, 1.0, share=30, tells=SILENT).actor
    made = cmd.MakePromise(loops.world.at, *loops.world.who(alice), Promise(deadline=5.0))
    loops.world.run(made)
    loops.run(10)
    return Situation(loops.world, parts="gpus leases")


@situation
def a_promised_rate_is_too_slow() -> Situation:
    loops = Loops(alice=FULL)
    alice = loops.come("alice", 10**6, 1.0, share=10)
    loops.promise(alice, rate=1.2)
    loops.come("bob", 10**6, 1.0, tells=SILENT)
    loops.run(100)
    return Situation(loops.world, parts="gpus leases")


@situation
def a_predicted_time() -> Situation:
    """Nobody named it; a dry run told it, and what kinds of GPUs need."""
    loops = Loops()
    loops.come("alice", 60, 1.0, share=30, predicted=60.0)
    loops.come("bob", 10**6, 1.0, tells=SILENT)
    loops.run(20)
    sizes = {"memory": 6 * GIB, "memory_p90": 7 * GIB, "seconds": 512.0, "seconds_p90": 700.0}
    known = {"kind": KIND, "gpus": 1, **sizes, "utilisation": 64, "error": 0.18}
    wait = {"low": 60.0, "high": 600.0, "basis": "waits"}
    kinds = [
        {**known, "basis": "predicted", "starts": "waits", "wait": wait},
        {**known, "kind": "Other GPU", "basis": "measured", "starts": "now", "wait": None},
    ]
    kinds = [{**kind, "says": predictions.kind_says(kind)} for kind in kinds]
    whose = {"kernel_id": "k1", "path": "work/train.ipynb", "at": 1_700_000_110.0}
    predicted: Any = {**whose, "batch": 32, "iterations": 1000, "kinds": kinds}
    predicted["says"] = predictions.says(predicted)
    return Situation(loops.world, predictions=[predicted], parts="leases predictions")


@situation
def no_compute_is_left() -> Situation:
    """Both are predicted; the GPU has less left than she needs."""
    world = node(1, Quota(1))
    ask(world, "bob", gib=4, expected=(Expected(KIND, 80, GIB),))
    ask(world, "alice", gib=4, expected=(Expected(KIND, 40, GIB),))
    return Situation(world, parts="queue")


@situation
def promises_claim_all() -> Situation:
    """A request that names a promise waits, because others have named theirs."""
    loops = Loops(alice=FULL, bob=FULL)
    loops.promise(loops.come("bob", 60, 1.0, share=30, predicted=60.0), deadline=100.0)
    known = (Expected(KIND, 30, GIB, 40.0),)
    ask(loops.world, "alice", gib=1, expected=known, promise=Promise(deadline=100.0))
    return Situation(loops.world, parts="queue")


# -- memory that follows, lifts and ranges -------------------------------------------------------


@situation
def why_so_much_is_reserved() -> Situation:
    """Each reason, on a GPU of its own."""
    world = node(6, Quota(6), reserve=Reserve.QUOTA, reserve_doubt=0.0)
    ask(world, "alice", "named.ipynb", gib=6)
    ask(world, "alice", "quota.ipynb")
    for what, runs in (("estimate", 3), ("predicted", 0)):
        parts = {"estimate": Estimate(4 * GIB, runs), "reserve": Reserve.ESTIMATE}
        uses(world, ask(world, "alice", f"{what}.ipynb", live=True, **parts), 3)
    uses(world, ask(world, "alice", "measured.ipynb", live=True), 8)
    ask(world, "alice", "fixed.ipynb")
    world.says("L6", cmd.ConfirmLimit, (), live=False)
    world.idle("L5")
    later(world, 10, 2)
    return Situation(world, parts="node quota leases")


@situation
def limits_are_lifted() -> Situation:
    """On a nearly empty GPU; on another one tasks asked for ranges of memory."""
    world = node(2, Quota(1, 8 * GIB), 40, burst_memory=0.9)
    uses(world, ask(world, "alice", live=True), 6)
    world.says("L1", cmd.ConfirmLimit, (), live=True)
    later(world, 40, 2)
    for name in ("bob", "carol"):
        uses(world, ask(world, name, gib=4, memory_most=30 * GIB), 3)
    later(world, 20, 2)
    return Situation(world, (ALICE, BOB), parts="gpus leases", whole=True)


@situation
def what_tasks_say_of_their_memory() -> Situation:
    """Persistent, temporary and cached; one has GPUs of two kinds, and one all that it may."""
    world = World(plain_config(heartbeat_timeout=1e6))
    world.start([gpu(0), gpu(1, 80), gpu(2)], Quota(2))
    uses(world, ask(world, "alice", "both.py", gpus=2), 9, 11)
    sizes = (2 * GIB, 5 * GIB, GIB)
    told = tuple(Figures(gpu(index).uuid, *sizes) for index in (0, 1))
    world.says("L1", cmd.ReportMemory, told, 40)
    world.says("L1", cmd.ReportProgress, 40, 100, 0.5)
    uses(world, ask(world, "bob", gib=4), 4)
    world.says("L2", cmd.ReportProgress, 7, None, 0.5)
    later(world, 5)
    return Situation(world, (ALICE, BOB), parts="leases")


# -- quotas ------------------------------------------------------------------------------------


@situation
def quotas_of_each_source() -> Situation:
    """By a group, by two, by the configuration (erin may hold none), by an administrator."""
    world = World(plain_config(heartbeat_timeout=1e6)).start([gpu(0), gpu(1)], Quota(1))
    eight, sixteen = 8 * GIB, 16 * GIB
    groups = (("ml", Quota(2, eight)), ("lab", Quota(1, sixteen, idle_timeout=0.0)))
    users = (("carol", Quota(2, GIB // 2, weight=2.5)), ("erin", Quota(0)))
    named = tuple((name, quota) for name, quota in users)
    world.run(cmd.ConfigureQuotas(world.at, Quota(1), groups, named))
    for name, some in (("alice", ("ml",)), ("bob", ("ml", "lab"))):
        world.run(cmd.Introduce(world.at, name, some))
    world.run(cmd.SetQuota(world.at, "dave", Quota(1, gpu_hours=100.0), ADMIN))
    uses(world, ask(world, "alice", gib=6), 4)
    return Situation(
        world, tuple(map(who, ("alice", "bob", "carol", "dave", "erin"))), parts="quota"
    )


@situation
def more_than_the_quota_allows() -> Situation:
    """It was lowered while she held two."""
    world = node(2, Quota(2))
    uses(world, ask(world, "alice", gpus=2), 4)
    world.run(cmd.SetQuota(world.at, "alice", Quota(1, 8 * GIB), ADMIN))
    later(world, 5)
    return Situation(world, parts="quota leases")


@situation
def named_servers_have_their_own() -> Situation:
    """One runs and holds a GPU, another only talks."""
    small = Quota(1, 4 * GIB)
    world = node(2, Quota(2), users={"alice/gpu": small, "alice/cpu": Quota(0)})
    uses(world, ask(world, "alice/gpu"), 3)
    connected = ("alice", "alice/cpu")
    return Situation(world, (who("alice", servers=True),), connected=connected)


@situation
def the_pool_lent_nothing_yet() -> Situation:
    """Bob knows nothing of his quota; alice's is in use elsewhere, and a GPU is free on host c."""
    world = node(2)
    lend(world, alice=loan("alice", 0, 1, why="Your GPU is in use on host b."))
    ask(world, "alice")
    ask(world, "bob")
    hint = {"host": "c", "gpus": 1, "kind": KIND, "text": "Host c has 1 Pretend GPU free now."}
    hints = {"bob": [hint]}
    return Situation(world, (ALICE, BOB), facts={"hints": hints}, parts="quota queue")


@situation
def the_pool_lends_too_little() -> Situation:
    """She has one and waits for two; one of bob's is borrowed and asked back."""
    world = node(4)
    lend(world, alice=loan("alice", 1, 4), bob=loan("bob", 2, 2, borrowed=2))
    uses(world, ask(world, "alice"), 4)
    uses(world, ask(world, "bob", gpus=2), 4)
    ask(world, "alice", "second.ipynb", gpus=2)
    world.at += 5
    bobs = loan("bob", 1, 2, borrowed=1, reclaim=True)
    lend(world, alice=loan("alice", 1, 4), bob=bobs)
    return Situation(world, (ALICE, BOB), parts="quota queue")


@situation
def the_pool_is_away() -> Situation:
    """What runs goes on, and nothing new begins."""
    world = node(2)
    lend(world, 60.0, alice=loan("alice", 2, 4))
    uses(world, ask(world, "alice"), 4)
    later(world, 200, 20)
    ask(world, "alice", "second.ipynb")
    return Situation(world, parts="quota queue")


WALLS = {
    "stand": True,
    "level": "memory",
    "groups": 3,
    "shared": [["alice", "bob"]],
    "outside": [f"user-{number:02}" for number in range(10)],
    "several": ["dave", "erin"],
}


@situation
def walls_stand() -> Situation:
    """People learn that there are some, and administrators where there are none."""
    return Situation(node(1), (ALICE, ROOT), facts={"walls": WALLS})


@situation
def walls_do_not_stand() -> Situation:
    return Situation(node(1), facts={"walls": {**WALLS, "stand": False}})


def write() -> None:
    """Write all documents as the product makes them now."""
    parts = {}
    for name in sorted(SITUATIONS):
        whole, rows = SITUATIONS[name]().kept()
        if whole:
            (DOCUMENTS / f"{name}.json").write_text(text(whole), "utf-8")
        if rows:
            parts[name] = rows
    PARTS.write_text(text(parts), "utf-8")


if __name__ == "__main__":
    write()
