"""A replay has out-of-memory errors for exactly those who would get one by a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.replayed import GIB, Checked, session

from jupyter_gpushare.policy.words.model import Reserve
from jupyter_gpushare.replay import node as simulator
from jupyter_gpushare.replay.behaviour import FREE, Options, PolicyName, behaviour
from jupyter_gpushare.replay.generate import DAY, ONE_GPU, Population
from jupyter_gpushare.replay.need import LEAST, need
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.tally import Tally, Window
from jupyter_gpushare.replay.trace import Session

HOUR = Window(0.0, 3600.0)


def person(
    name: str, *cells: tuple[float, float], resident: int, memory: int | None = None
) -> Session:
    return session(name, cells[0][0], 3000.0, *cells, resident=resident, memory=memory)


def play(
    name: PolicyName,
    sessions: Sequence[Session],
    window: Window = HOUR,
    gpus: int = 1,
    **options: object,
) -> Tally:
    found = Options(**{"idle_timeout": 60.0, "cost": FREE, **options})  # type: ignore[arg-type]
    return Checked(gpus, behaviour(name, found), window).play(sessions)


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, ...]]:
    """GiB that each cell of a session needs, by its name."""
    said: dict[str, tuple[int, ...]] = {}
    monkeypatch.setattr(simulator, "need", lambda one, cell, _resident: said[one.name][cell] * GIB)
    return said


def test_a_cell_needs_the_same_in_every_replay() -> None:
    alice = person("alice", (0, 10), (100, 10), resident=8 * GIB)
    sizes = [need(alice, cell, alice.resident) for cell in range(200)]
    assert sizes == [need(alice, cell, alice.resident) for cell in range(200)]
    assert LEAST * alice.resident <= min(sizes) < 3 * GIB
    assert 7 * GIB < max(sizes) <= alice.resident


@pytest.mark.parametrize("name", [one for one in PolicyName if one is not PolicyName.CLAIRVOYANT])
def test_who_reserves_the_whole_or_all_that_is_kept_gets_none(name: PolicyName) -> None:
    sessions = list(Population(3, 0.3).sessions())
    assert play(name, sessions, Window(0.0, 0.3 * DAY)).out_of_memory == 0


def test_an_estimate_that_is_too_small_is_an_error_by_turns(
    needs: dict[str, tuple[int, ...]],
) -> None:
    """One of two sessions is expected to need half of what it does; it names no more."""
    needs["alice"] = needs["bob"] = (4, 12)
    crowd = [person(name, (0, 100), (200, 100), resident=12 * GIB) for name in ("alice", "bob")]
    assert play(PolicyName.TURNS, crowd, wrong=2.0).out_of_memory == 1
    assert play(PolicyName.TURNS, crowd, wrong=1.0).out_of_memory == 0
    # Before the window begins nothing counts.
    assert play(PolicyName.TURNS, crowd, Window(250.0, 3600.0), wrong=2.0).out_of_memory == 0


def test_who_names_too_little_has_named_it(needs: dict[str, tuple[int, ...]]) -> None:
    """The whole GPU would not have helped: a request that names its memory gets that."""
    needs["alice"] = (8,)
    alice = person("alice", (0, 100), resident=8 * GIB, memory=4 * GIB)
    for reserve in Reserve:
        assert play(PolicyName.PARK, [alice], follows=reserve).out_of_memory == 0


@pytest.mark.parametrize(
    ("reserve", "second", "errors"),
    [
        # Bob has had what Alice's measured peak left, when she needs six times that peak.
        (Reserve.QUOTA, 60, 1),
        # Within the head-room of a fifth she has it.
        (Reserve.QUOTA, 11, 0),
        # Nobody comes between where all that the quota gives is reserved.
        (Reserve.WHOLE, 60, 0),
    ],
)
def test_a_jump_beyond_the_head_room_is_an_error_once_the_rest_is_given_away(
    needs: dict[str, tuple[int, ...]], reserve: Reserve, second: int, errors: int
) -> None:
    needs["alice"], needs["bob"] = (10, second), (40,)
    alice = person("alice", (0, 100), (300, 100), resident=60 * GIB)
    bob = person("bob", (200, 1000), resident=40 * GIB)
    assert play(PolicyName.PARK, [alice, bob], follows=reserve).out_of_memory == errors


def test_the_same_jump_is_none_where_memory_is_free(needs: dict[str, tuple[int, ...]]) -> None:
    """Her limit is lifted while nobody else needs the rest."""
    needs["alice"] = (10, 60)
    alice = person("alice", (0, 100), (300, 100), resident=60 * GIB)
    assert play(PolicyName.PARK, [alice], follows=Reserve.QUOTA).out_of_memory == 0


@pytest.mark.parametrize("reserve", [Reserve.QUOTA, Reserve.ESTIMATE])
def test_a_crowd_whose_reservations_follow_keeps_the_promises(reserve: Reserve) -> None:
    """Parked, resumed, lifted and recalled: the policy's invariants hold after each command."""
    window = Window(0.0, 0.5 * DAY)
    sessions = Population(20, 0.5).sessions()
    tally = play(PolicyName.PARK, list(sessions), window, 4, follows=reserve, wrong=2.0)
    assert tally.cells > 30
    assert 0 <= tally.out_of_memory < tally.cells
    assert tally.computed > 0.5 * tally.asked


@pytest.mark.story
@pytest.mark.parametrize(
    ("reserve", "wrong"), [(Reserve.QUOTA, 1.0), (Reserve.ESTIMATE, 1.0), (Reserve.ESTIMATE, 2.0)]
)
def test_within_the_quota_nobody_gets_one_that_the_whole_would_not_have_given(
    reserve: Reserve, wrong: float
) -> None:
    """Three people a GPU, a thousand cells, estimates right and wrong; and it costs nobody much."""
    population = Population(24, 8.0, ONE_GPU, seed=2)
    window = Window(2 * DAY, 8 * DAY)

    def count(doubt: float | None) -> Tally:
        how = behaviour(PolicyName.PARK, Options(follows=reserve, wrong=wrong))
        if doubt is not None:
            how = replace(how, config=replace(how.config, reserve_doubt=doubt))
        node = VirtualNode(8, how, window)
        for one in population.sessions():
            node.run_until(one.start)
            node.add(one)
        return node.finish()

    sure, doubting = count(0.0), count(None)
    assert doubting.out_of_memory == 0
    assert sure.out_of_memory > 0 or (reserve, wrong) == (Reserve.ESTIMATE, 1.0)
    assert doubting.first.zeros >= 0.97 * sure.first.zeros, "as many cells begin at once"
