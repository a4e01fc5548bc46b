"""A replay has out-of-memory errors and deadlines for exactly those who would by a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.replayed import GIB, Checked, session

from jupyter_gpushare.policy.words.model import Reserve
from jupyter_gpushare.replay import node as simulator
from jupyter_gpushare.replay.behaviour import FREE, Options, PolicyName, behaviour
from jupyter_gpushare.replay.generate import DAY, ONE_GPU, Population, Runs
from jupyter_gpushare.replay.need import LEAST, need
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.promising import SLACK, Promising
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


# -- deadlines -------------------------------------------------------------------------------------

ALL = Options(promising=Promising(part=1.0), moves=False)


def one(name: str, at: float, seconds: float, end: float | None = None) -> Session:
    return session(name, at, end or at + seconds, (at, seconds))


def promised(name: PolicyName, sessions: Sequence[Session], options: Options = ALL) -> Tally:
    node = Checked(1, behaviour(name, options), Window(0.0, 10_000.0))
    return node.play(sorted(sessions, key=lambda one: one.start))


def slack(mine: Session) -> float:
    deadline = ALL.promising.deadline(mine, 0)
    assert deadline is not None
    return deadline / mine.seconds[0]


def with_slack(least: float, most: float, seconds: float) -> Session:
    """A session whose dice give its cell a deadline in between."""
    some = (one(f"s{number}", 10.0, seconds) for number in range(1000))
    return next(each for each in some if least <= slack(each) <= most)


@pytest.mark.story
@pytest.mark.parametrize(
    ("name", "in_time"),
    [(PolicyName.FIRST, 0), (PolicyName.TURNS, 0), (PolicyName.PROMISES, 1)],
)
def test_a_deadline_is_kept_by_who_is_told_of_it(name: PolicyName, in_time: int) -> None:
    """A long cell with a deadline, of half of the time, and short ones that all want to be next."""
    mine = with_slack(2.0, 2.4, 1000.0)
    crowd = [one(f"x{number}", 20.0 + number * 40, 39.0) for number in range(100)]
    first = one("first", 0.0, 3000.0)
    others = Options(promising=_only(mine.name), moves=False)
    tally = promised(name, [first, mine, *crowd], others)
    assert tally.deadlines == 1
    assert tally.in_time == in_time
    assert (tally.made, tally.kept) == ((1, 1) if name is PolicyName.PROMISES else (0, 0))


def _only(name: str, **more: float) -> Promising:
    class OfOne(Promising):
        def deadline(self, session: Session, cell: int) -> float | None:
            return Promising.deadline(self, session, cell) if session.name == name else None

    return OfOne(part=1.0, **more)


def test_what_cannot_be_promised_is_refused_and_computed_all_the_same() -> None:
    mine = with_slack(1.5, 1.7, 500.0)  # that needs more than half of the GPU
    tally = promised(PolicyName.PROMISES, [mine])
    assert (tally.made, tally.declined, tally.deadlines) == (0, 1, 0)
    assert tally.busy == pytest.approx(500.0)


def test_a_wrong_expected_time_is_corrected_by_what_is_reported() -> None:
    """It takes longer than was expected: its share is raised in time."""
    wrong = Promising(part=1.0, error=2.0)
    mine = next(
        each
        for each in (with_slack(2.6, 3.0, float(seconds)) for seconds in range(900, 1100, 10))
        if wrong.expected(each, 0) < 0.7 * each.seconds[0]
    )
    crowd = [one("other", 0.0, 5000.0), one("third", 0.0, 5000.0)]
    told = replace(ALL, promising=_only(mine.name, error=2.0))
    tally = promised(PolicyName.PROMISES, [mine, *crowd], told)
    assert (tally.made, tally.kept) == (1, 1)


def test_batch_sessions_have_no_deadlines_and_are_counted() -> None:
    batch = replace(ALL, promising=Promising(part=1.0, batch=1.0))
    tally = promised(PolicyName.PROMISES, [one("a", 0.0, 100.0), one("b", 0.0, 100.0)], batch)
    assert (tally.deadlines, tally.made) == (0, 0)
    assert tally.batch == pytest.approx(200.0)


def test_the_dice_are_the_sessions_own() -> None:
    some = list(Runs(0.8, 4, 3.0).sessions())
    promising = Promising(part=0.3, error=2.0, batch=0.3)
    named = [d for each in some if (d := promising.deadline(each, 0)) is not None]
    batch = sum(promising.is_batch(each) for each in some)
    assert len(named) / len(some) == pytest.approx(0.3 * 0.7, rel=0.2)
    assert batch / len(some) == pytest.approx(0.3, rel=0.2)
    ratios = [promising.expected(each, 0) / each.seconds[0] for each in some]
    assert 0.5 <= min(ratios) < 0.6
    assert 1.8 < max(ratios) <= 2.0
    assert SLACK[0] == 1.5


def test_runs_ask_for_their_load() -> None:
    some = list(Runs(0.8, 8, 20.0).sessions())
    asked = sum(each.seconds[0] for each in some) / (8 * 20 * DAY)
    assert asked == pytest.approx(0.8, rel=0.1)
    assert all(each.end == each.start + each.seconds[0] for each in some)
