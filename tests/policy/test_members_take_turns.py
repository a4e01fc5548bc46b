"""A process that has joined a lease may take turns for it, where turns share no memory."""

from __future__ import annotations

from support.policy_turns import CONFIG
from support.policy_world import GIB, World, gpu, process, why_refused

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.table import Map, replace
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    LeaseId,
    Quota,
    RefusalReason,
    Request,
)
from jupyter_gpushare.policy.words.turns import Figures, Share

AGENT, RANK, STRANGER, BOB, OTHER = 1, 2, 3, 4, 5
ALICE = "alice"


def scene() -> tuple[World, LeaseId, LeaseId]:
    """Alice's lease, which a rank has joined, and Bob's, who can take turns."""
    world = World(CONFIG)
    world.start([gpu(0)], Quota(1, None))
    leases = []
    for pid, who in ((AGENT, "alice"), (BOB, "bob")):
        decision = world.request(who, pid, Request(1, 8 * GIB), wait=False)
        assert isinstance(decision, core.Grant), decision
        leases.append(decision.lease)
    hers, his = leases
    world.run(cmd.Attach(world.at, hers, ALICE, process(RANK)))
    world.run(cmd.ReportMemory(world.at, his, "bob", process(BOB), (), 0, True))
    return world, hers, his


def tells(world: World, lease: LeaseId, pid: int, kept: int = 0) -> core.Decision:
    figures = (Figures(gpu(0).uuid, kept * GIB, 0, 0),) if kept else ()
    return world.run(cmd.ReportMemory(world.at, lease, ALICE, process(pid), figures, 9, True))


def asks(world: World, lease: LeaseId, pid: int) -> core.Decision:
    return world.run(cmd.AskTurn(world.at, lease, ALICE, process(pid)))


def phase(world: World, lease: LeaseId) -> str | None:
    turn = world.state.turn_phase(lease)
    return turn and turn.value


def test_a_rank_takes_turns_for_the_lease_that_it_has_joined() -> None:
    world, hers, his = scene()
    tells(world, hers, RANK)
    assert {hers, his} == set(world.state.takers)
    assert phase(world, hers) == "holds", "it computed before Bob could"
    world.says(his, cmd.AskTurn)
    world.run(cmd.EndTurn(world.at, hers, ALICE, process(RANK)))
    assert phase(world, his) == "holds"
    asks(world, hers, RANK)
    assert phase(world, hers) == "waits"


def test_what_a_rank_says_of_memory_is_not_believed() -> None:
    world, hers, _his = scene()
    tells(world, hers, RANK, kept=5)
    assert not any(one.figures for key, one in world.state.claims.items() if key[0] == hers)
    assert world.state.leases[hers].steps is None


def test_who_has_not_joined_may_say_nothing() -> None:
    world, hers, _his = scene()
    for says in (tells, asks):
        assert why_refused(says(world, hers, STRANGER)) is RefusalReason.UNKNOWN_LEASE
    assert hers not in world.state.takers


def test_where_turns_share_memory_only_the_task_itself_takes_them() -> None:
    world, hers, _his = scene()
    before, uuid = world.state, gpu(0).uuid
    books = replace(before.gpus[uuid], shares=Map({hers: Share(hers, GIB, GIB)}))
    told = cmd.AskTurn(world.at, hers, ALICE, process(RANK))
    shared = replace(before, gpus=before.gpus.set(uuid, books))
    assert isinstance(core.step(shared, told, CONFIG).decision, core.Refuse)


def overran(world: World) -> dict[LeaseId, bool]:
    return {name: taker.overran for name, taker in world.state.takers.items()}


def leads(world: World, lease: LeaseId, pid: int) -> core.Decision:
    who = (world.at, lease, ALICE, process(pid))
    return world.run(cmd.ReportMemory(*who, (), 0, True, alone=True))


def test_the_first_program_that_comes_to_a_gate_leads() -> None:
    world, hers, his = scene()
    leads(world, hers, RANK)
    assert world.state.takers[hers].leader == process(RANK)
    world.says(his, cmd.AskTurn)
    world.says(hers, cmd.EndTurn)
    assert phase(world, hers) == "holds", "the agent does not stop for it"
    world.run(cmd.EndTurn(world.at, hers, ALICE, process(RANK)))
    assert phase(world, his) == "holds"


def test_where_a_second_program_comes_to_a_gate_nobody_is_stopped_any_more() -> None:
    for asked in (leads, tells, asks):
        world, hers, his = scene()
        leads(world, hers, RANK)
        world.run(cmd.Attach(world.at, hers, ALICE, process(OTHER)))
        asked(world, hers, OTHER)
        assert world.state.taker(hers).overran
        assert not world.state.turns, "nobody waits for anybody"
        leads(world, hers, RANK)
        asks(world, hers, RANK)
        assert overran(world) == {hers: True, his: False}, "and so it stays"


def test_the_next_program_leads_when_the_first_has_ended() -> None:
    world, hers, his = scene()
    leads(world, hers, RANK)
    world.run(cmd.Attach(world.at, hers, ALICE, process(OTHER)))
    world.says(his, cmd.AskTurn)
    world.run(cmd.ProcessGone(world.at, process(RANK)))
    assert hers not in world.state.takers, "the turn is nobody's who could give it back"
    leads(world, hers, OTHER)
    assert world.state.takers[hers].leader == process(OTHER)
    assert overran(world) == {hers: False, his: False}


def test_a_program_that_becomes_a_rank_speaks_for_all_of_them() -> None:
    world, hers, _his = scene()
    leads(world, hers, RANK)
    tells(world, hers, RANK)
    assert world.state.is_gated(hers)
    assert world.state.takers[hers].leader is None


def test_beside_ranks_or_the_tasks_own_process_no_program_leads() -> None:
    for first in (RANK, AGENT):
        world, hers, _his = scene()
        tells(world, hers, first)
        world.run(cmd.Attach(world.at, hers, ALICE, process(OTHER)))
        leads(world, hers, OTHER)
        assert world.state.takers[hers].leader is None
        assert world.state.is_gated(hers)


def test_where_a_second_process_is_measured_on_the_gpu_nobody_is_stopped_any_more() -> None:
    world, hers, his = scene()
    leads(world, hers, RANK)
    world.memory[(RANK, gpu(0).uuid)] = GIB
    world.look(1.0)
    assert world.state.is_gated(hers), "it is alone there"
    world.run(cmd.Attach(world.at, hers, ALICE, process(OTHER)))
    world.look(1.0)
    assert world.state.is_gated(hers), "a loader's worker uses no GPU"
    world.memory[(OTHER, gpu(0).uuid)] = GIB
    world.look(1.0)
    assert overran(world) == {hers: True, his: False}
    assert not world.state.turns
