"""An elastic job takes each sample once, and never trains on more GPUs than it has.

What elastic training decides: samples by rank, who trains, and how a job stands. Ray Train's
workers count only on GPUs that their job can have.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.elastic import core
from jupyter_gpushare.elastic.core import Cut, Phase, Status, Tail, Team
from jupyter_gpushare.elastic.raytrain import ElasticError, cards, run, step

GIB = 2**30
MOVES = ["joined", "ready", "leaves", "gone", "failed"]
CUTS = st.builds(
    lambda samples, part, tail: Cut(samples, max(1, samples * part // 100), tail),
    st.integers(1, 300),
    st.integers(1, 100),
    st.sampled_from(Tail),
)


def shard(cut: Cut, world: int, rank: int) -> tuple[int, ...]:
    """All that a rank takes of an epoch, if the number of ranks stays."""
    done, taken = 0, list[int]()
    while done < cut.samples:
        taken += core.share(cut, done, world, rank)
        done = core.after(cut, done, world)
    return tuple(taken)


@given(CUTS, st.data())
def test_shards_are_disjoint_equal_and_together_all_but_the_tail(cut: Cut, data: st.DataObject):
    world = data.draw(st.integers(1, cut.batch))
    shards = [shard(cut, world, rank) for rank in range(world)]
    assert len({len(shard) for shard in shards}) == 1
    assert all(shards), "each has one step at least"
    taken = [place for shard in shards for place in shard]
    if cut.tail is Tail.DROP:
        assert len(set(taken)) == len(taken)
        assert cut.samples - len(taken) < world
    else:
        assert set(taken) == set(range(cut.samples))
        assert len(taken) - cut.samples < world


@given(CUTS, st.data())
def test_resized_in_mid_epoch_each_sample_is_taken_once_up_to_the_tail(
    cut: Cut, data: st.DataObject
):
    done, taken, world = 0, list[int](), 1
    while done < cut.samples:
        world = data.draw(st.integers(1, cut.batch))
        for rank in range(world):
            taken += core.share(cut, done, world, rank)
        after = core.after(cut, done, world)
        assert after > done
        done = after
    extra = len(taken) - len(set(taken))
    missing = cut.samples - len(set(taken))
    if cut.tail is Tail.DROP:
        assert extra == 0
        assert missing < cut.batch
    else:
        assert missing == 0
        assert extra < world


def test_a_batch_is_never_larger_than_the_data() -> None:
    with pytest.raises(ValueError, match="batch=5"):
        Cut(4, 5)
    with pytest.raises(ValueError, match="3 ranks cannot share"):
        core.each(Cut(4, 2), 0, 3)


def test_a_job_grows_when_newcomers_are_ready_and_shrinks_at_once() -> None:
    team = Team(1, 3)
    team = core.changed(core.ready(core.joined(team, 1), 1, 0.0), 0.0)
    assert (team.generation, team.inside) == (1, (1,))
    team = core.joined(core.joined(team, 2), 3)
    assert core.room(team) == 0
    team = core.ready(team, 2, 5.0)
    assert core.changed(team, 5.0) is team, "the third is nearly ready"
    assert core.changed(team, 5.0 + core.GATHER).inside == (1, 2), "but not for ever"
    team = core.changed(core.ready(team, 3, 6.0), 6.0)
    assert (team.generation, team.inside) == (2, (1, 2, 3))
    team = core.changed(core.leaves(team, 2), 7.0)
    assert (team.generation, team.inside) == (3, (1, 3))
    assert core.room(team) == 1


def test_with_fewer_than_the_least_it_waits() -> None:
    team = Team(2, 3)
    team = core.ready(core.joined(team, 1), 1, 0.0)
    assert core.changed(team, 60.0) is team
    team = core.changed(core.ready(core.joined(team, 2), 2, 61.0), 61.0)
    assert team.inside == (1, 2)
    team = core.changed(core.gone(team, 1), 62.0)
    assert (team.generation, team.inside) == (2, ())


def test_what_failed_is_known_once() -> None:
    team = core.changed(core.ready(core.joined(Team(1, 1), 1), 1, 0.0), 0.0)
    assert core.failed(team, 1, 0) is team, "it speaks of an older generation"
    again = core.changed(core.failed(team, 1, 1), 1.0)
    assert (again.generation, again.inside) == (2, (1,))


@given(
    st.lists(
        st.tuples(st.sampled_from(MOVES), st.integers(1, 5)),
        max_size=40,
    )
)
def test_who_trains_has_a_card_and_is_never_too_many(moves: list[tuple[str, int]]) -> None:
    team, there = Team(2, 3), set[int]()
    for now, (move, number) in enumerate(moves):
        if move == "joined":
            if number in there or not core.room(team):
                continue
            there.add(number)
            team = core.joined(team, number)
        elif number not in there:
            continue
        elif move == "ready":
            team = core.ready(team, number, now)
        elif move == "leaves":
            team = core.leaves(team, number)
        elif move == "gone":
            there.discard(number)
            team = core.gone(team, number)
        else:
            team = core.failed(team, number, team.generation)
        before = team
        team = core.changed(team, now + 100.0)
        assert set(team.inside) <= there
        assert not team.inside or 2 <= len(team.inside) <= 3
        assert team.generation in (before.generation, before.generation + 1)
        assert core.changed(team, now + 100.0) is team, "it has come to rest"


def test_the_step_never_falls_and_times_rise() -> None:
    where = {"host": "a", "gpu": "G", "lease": "L"}
    events = [
        {"event": "begins", "at": 10.0},
        {"event": "changes", "at": 11.0, "first": True, "reason": ""},
        {"event": "trains", "at": 12.0, "rank": 0, "world": 1, "entry": "train", "step": 0} | where,
        {"event": "step", "at": 13.0, "step": 5, "epoch": 0, "loss": 1.0},
        {"event": "changes", "at": 14.0, "first": False, "reason": "A worker died."},
        {"event": "trains", "at": 15.0, "rank": 0, "world": 2, "entry": "breakpoint", "step": 4}
        | where,
        {"event": "step", "at": 16.0, "step": 4, "epoch": 0},
        {"event": "nobody knows this", "at": 17.0},
        {"event": "ended", "at": 18.0, "phase": "done", "reason": ""},
        {"event": "waits", "at": 19.0, "reason": "too late"},
    ]
    status = reduce(lambda now, event: core.told(now, event, 10.0), events, Status("x"))
    assert (status.phase, status.step, status.restarts) == (Phase.DONE, 5, 1)
    assert status.losses == ((5, 3.0, 1.0),)
    assert all(a[0] <= b[0] for a, b in pairwise(status.workers))
    assert [count for _, count in status.workers] == [1, 2, 0]


# -- Ray Train -------------------------------------------------------------------------------------


def gpu(uuid: str, tasks: int = 0, **more: Any) -> dict[str, Any]:
    plain = {"health": "ok", "out_of_service": None, "free": 24 * GIB, "memory": 24 * GIB}
    return {"uuid": uuid, "tasks": tasks, **plain, **more}


def lease(uuid: str, job: str | None = None, mine: bool = True) -> dict[str, Any]:
    return {"mine": mine, "job": job, "gpus": [{"uuid": uuid}]}


def status(gpus: list[dict[str, Any]], *leases: dict[str, Any], **more: Any) -> dict[str, Any]:
    quota = {"gpus": 8, "used_gpus": len(leases)}
    return {"gpus": gpus, "leases": [*leases], "queue": [], "quota": quota, **more}


def test_idle_cards_and_the_jobs_own_are_counted() -> None:
    some = [gpu("1"), gpu("2", 1), gpu("3", 1)]
    told = status(some, lease("2", "sine"), lease("3", "other"))
    assert cards(told, "sine", None) == (1, 1)
    assert cards(told, "other", None) == (1, 1)


def test_a_card_with_others_on_it_is_not_the_jobs() -> None:
    shared = [gpu("1", 2)]
    assert cards(status(shared, lease("1", "sine"), lease("1", mine=False)), "sine", None) == (0, 0)
    assert cards(status(shared, lease("1", "sine"), lease("1", "sine")), "sine", None) == (1, 0)


def test_the_quota_and_those_who_wait_come_first() -> None:
    some = [gpu("1"), gpu("2"), gpu("3")]
    assert cards(status(some, quota={"gpus": 2, "used_gpus": 1}), "sine", None) == (0, 1)
    assert cards(status(some, quota={"gpus": 1, "used_gpus": 2}), "sine", None) == (0, 0)
    waits = [{"mine": False}, {"mine": False}, {"mine": True}]
    assert cards(status(some, queue=waits), "sine", None) == (0, 1)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ElasticError, match="nothing between 3 and 2"):
        run(print, storage="/tmp", name="x", min_gpus=3, max_gpus=2)
    with pytest.raises(ElasticError, match=r"raytrain\.run"):
        step(print)
