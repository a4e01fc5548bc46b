"""A GPU that an administrator took out of service, or a lost one, takes nobody and bars nobody."""

from __future__ import annotations

from support.policy_moves import come_and_go, lazy
from support.policy_world import BOOT, GIB, World, gpu, is_asked, plain_config, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import GpuReading, Quota, Request, Rung


def test_a_gpu_out_of_service_takes_nothing_new_and_empties() -> None:
    """A busy kernel goes on; an idle one is asked for all, though it may be idle for ever."""
    world = lazy(2, idle_timeout=0.0, max_tasks_per_gpu=4)
    world.request("alice", 1, Request(1, 4 * GIB))
    world.request("bob", 2, Request(1, 4 * GIB))
    assert world.gpus_of("L1") == [0]
    world.pin("L1", 3600.0)
    world.idle("L1")
    world.drain()
    assert not isinstance(world.pin("L1"), core.Done), "it cannot be kept there"
    world.request("carol", 3, Request(1, 4 * GIB))
    assert world.gpus_of("L3") == [1]
    world.request("alice", 4, Request(1, 4 * GIB))
    assert world.gpus_of("L4") == [1], "not beside her own task either"
    assert world.asked_back() == []
    assert core.next_deadline(world.state, world.config) <= world.at + 10
    world.tick(10)
    assert world.stays() == [("L1", 0)]
    world.park("L1")
    world.observe()
    assert world.state.gpus[gpu(0).uuid].tasks == 0
    world.resume("L1")
    assert world.gpus_of("L1") == [1], "its memory was nowhere, so it goes on elsewhere"
    world.put_back()
    world.request("dave", 5, Request(1, 20 * GIB))
    assert world.gpus_of("L5") == [0]


def test_who_computes_on_a_gpu_out_of_service_goes_on() -> None:
    """Nobody is asked in a cell; a kernel that cannot give is asked more and more seldom."""
    world = lazy(1)
    world.request("alice", 1)
    world.drain()
    world.tick(3600)
    assert world.asked_back() == []
    assert world.phase("L1") == "held"
    world.idle("L1")
    world.tick(10)
    for _ in range(3600):
        if is_asked(world.state, "L1"):
            world.says("L1", cmd.Keep, "CUDA runs")
        world.tick(1)
    assert 3 <= len(world.asked_back()) <= 7
    assert world.phase("L1") == "held"


def test_who_needs_a_gpu_out_of_service_waits_and_bars_nobody() -> None:
    """It comes back, so nothing is refused; the reason is said, and others pass."""
    for restart in (False, True):
        world = lazy(2, overtake_interactive=2)
        world.drain(1)
        waits = world.request("alice", 1, Request(2))
        assert isinstance(waits, core.Wait)
        assert waits.message.startswith("GPU 1 is out of service: fan replaced. ")
        refused = world.request("alice", 2, Request(2), wait=False)
        assert isinstance(refused, core.Refuse)
        assert "GPU 1 is out of service" in refused.message
        come_and_go(world, range(3, 12))  # far more than the bound of 2
        if restart:
            world.state = world.restarted()
            world.run(cmd.Start(world.at, BOOT, (gpu(0), gpu(1))))
            world.run(cmd.ConfigureQuotas(world.at, Quota(2, None)))
        world.drain(1, "a new driver!")
        assert world.why("L1").startswith("GPU 1 is out of service: a new driver! ")
        world.request("bob", 20)
        world.request("carol", 21)
        assert world.phase("L13") == "queued"
        world.put_back(1)
        assert world.phase("L13") == "held", "it fits, and the other has been passed by nobody"
        for name in ("L12", "L13"):
            world.release(name, world.state.leases[name].environment)
        world.observe()
        assert world.phase("L1") == "held"


def test_who_is_bound_to_a_gpu_out_of_service_is_told() -> None:
    """A context that stayed there binds the kernel; it goes on when the GPU is back."""
    world = lazy(2)
    world.request("alice", 1)
    world.idle("L1")
    world.uses(1, GIB)
    world.gives("L1", Rung.STORAGE, 4 * GIB)
    world.drain(0)
    waits = world.resume("L1")
    assert isinstance(waits, core.Wait)
    assert "fan replaced" in waits.message
    assert "Restarting the kernel" in waits.message
    world.request("bob", 2, Request(2))
    world.request("carol", 3)
    assert world.phase("L3") == "held"
    world.put_back(0)
    assert world.phase("L1") == "held"


def test_ones_own_tasks_on_a_gpu_out_of_service_count() -> None:
    """The quota is used up there, so the next kernel waits; it bars nobody meanwhile."""
    world = World(plain_config(overtake_interactive=1)).start([gpu(0), gpu(1)], Quota(1, None))
    world.request("alice", 1)
    world.drain(0)
    assert "count towards your quota" in why_waits(world.request("alice", 2))
    come_and_go(world, range(3, 9))
    world.release("L1", "alice", seen=True)
    assert world.gpus_of("L2") == [1]


def test_a_lost_gpu_bars_nobody() -> None:
    """A request that needs a GPU that does not work waits for it, and others pass."""
    world = World(plain_config(overtake_interactive=1)).start([gpu(0), gpu(1)], Quota(2, None))
    world.run(cmd.Observe(world.at, (GpuReading(gpu(1).uuid, "it fell off the bus", None),)))
    waits = world.request("alice", 1, Request(2))
    assert isinstance(waits, core.Wait)
    assert waits.message.startswith("GPU 1 cannot be used: it fell off the bus. ")
    for pid in range(3, 9):
        decision = world.request("bob", pid)
        assert isinstance(decision, core.Grant)
        world.release(decision.lease, "bob")
        heard = tuple(one for one in world.readings() if one.uuid == gpu(0).uuid)
        world.run(cmd.Observe(world.at, heard))  # nothing is heard of the other
    world.observe()
    assert world.phase("L1") == "held"


def test_a_gpu_out_of_service_stays_so() -> None:
    """Over restarts, a reboot, and while it is not in the node at all; only an admin ends it."""
    world = lazy(2)
    world.drain(1)
    world.run(cmd.Discover(world.at, (gpu(0),)))
    world.state = world.restarted()
    world.run(cmd.Start(3.0, "boot-2", (gpu(0), gpu(1))))
    world.at = 4.0
    assert world.state.out[gpu(1).uuid].reason == "fan replaced"
    world.run(cmd.ConfigureQuotas(world.at, Quota(2, None)))
    for pid in (1, 2):
        world.request(f"p{pid}", pid)
    assert (world.gpus_of("L1"), world.phase("L2")) == ([0], "queued")
    nobodys = world.run(cmd.TakeOut(world.at, gpu(7).uuid, "it smells", "root"))
    assert isinstance(nobodys, core.Refuse)
    assert isinstance(world.put_back(7), core.Refuse)
    again = world.run(cmd.TakeOut(world.at, gpu(1).uuid, "fan replaced", "root"))
    assert isinstance(again, core.Done)
    assert again.count == 0, "nothing has changed"
    world.put_back(1)
    assert world.phase("L2") == "held"
