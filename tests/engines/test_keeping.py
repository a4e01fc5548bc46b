"""A pool has the hosts that an engine holds for it, and those only; who is away changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from jupyter_gpushare.console.verb import Refused
from jupyter_gpushare.engines.engine import EngineAway
from jupyter_gpushare.engines.keeping import TOKEN_LASTS, Keeping, demand_of, is_used
from jupyter_gpushare.engines.wanted import Bounds, Demand, Held, Stage
from jupyter_gpushare.protocol.poolcalls import PoolMethod

GPU = {"exclusive_free": True, "out": None}


def row(host: str, piece: str = "", engine: str = "Jobs", **parts: Any) -> dict[str, Any]:
    """What the pool says of a host that nobody uses."""
    report = {"environments": [], "gpus": [GPU, GPU], "draining": None, "lacking": []}
    held = {"engine": engine, "piece": piece, "until": None} if piece else None
    known = {"host": host, "held": held, "connected": True, "until": None, "drain": None}
    known["empty"] = False
    return {**known, "report": report, **parts}


def people(**parts: Any) -> dict[str, Any]:
    """A report in which somebody has something."""
    one = {"held": 0, "parked": 0, "waiting": 0, **parts}
    return {"environments": [one], "gpus": [GPU], "draining": None, "lacking": []}


def lacks(*lacking: tuple[int, int]) -> dict[str, Any]:
    """A report of requests for so many GPUs that lack these."""
    told = [{"gpus": gpus, "requests": requests} for gpus, requests in lacking]
    return people(waiting=1) | {"lacking": told}


@dataclass
class Pool:
    """The pool's side of the calls."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    away: bool = False

    def ask(self, method: PoolMethod, **params: Any) -> dict[str, Any]:
        if self.away:
            raise Refused("There is no pool.")
        if method is PoolMethod.HOSTS:
            return {"hosts": [dict(one) for one in self.rows.values()]}
        self.calls.append((method.name, params))
        if method is PoolMethod.FORGET:
            del self.rows[params["host"]]
        if method is PoolMethod.DRAIN:
            self.rows[params["host"]]["drain"] = params
        return {"token": f"token of {params['host']}"}


@dataclass
class Jobs:
    """An engine."""

    name: str = "Jobs"
    known: dict[str, Held] = field(default_factory=dict)
    done: list[tuple[str, ...]] = field(default_factory=list)
    away: bool = False
    refuses: bool = False

    def hosts(self) -> list[Held]:
        if self.away:
            raise EngineAway("It does not answer.")
        return list(self.known.values())

    def hold(self, after: Held | None) -> None:
        self.done.append(("hold", after.piece if after else ""))
        if self.refuses:
            raise EngineAway("It says no.")

    def admit(self, held: Held, name: str, token: str) -> None:
        self.done.append(("admit", held.piece, name, token))

    def gone(self, held: Held) -> None:
        self.done.append(("gone", held.piece))


class Scene:
    def __init__(self, **bounds: Any) -> None:
        self.jobs, self.pool, self.said = Jobs(), Pool(), list[str]()
        self.now = 1000.0
        told = Bounds(2, **{"least": 0, "most": 3, "patience": 0.0, "idle": 60.0, **bounds})
        self.keeping = Keeping(self.jobs, told, self.pool.ask, self.said.append, lambda: self.now)

    def runs(self, piece: str, place: str = "n1", **parts: Any) -> None:
        self.jobs.known[piece] = Held(piece, Stage.THERE, place, **parts)

    def look(self, seconds: float = 10.0) -> list[tuple[str, ...]]:
        """What the engine is told in a look, some time after the one before."""
        self.now += seconds
        self.jobs.done.clear()
        self.keeping.look()
        return list(self.jobs.done)

    def calls(self, method: PoolMethod) -> list[dict[str, Any]]:
        return [params for name, params in self.pool.calls if name == method.name]


def test_a_job_that_runs_is_let_in_once_by_a_token_for_its_own_name() -> None:
    scene = Scene(least=1)
    scene.runs("1", until=5000.0)
    assert scene.look() == [("admit", "1", "n1", "token of n1")]
    assert scene.look() == []
    told = {"engine": "Jobs", "piece": "1", "until": 5000.0, "place": "n1"}
    assert scene.calls(PoolMethod.TOKEN) == [{"host": "n1", "seconds": TOKEN_LASTS, **told}]
    scene.pool.rows["n1"] = row("n1", "1")
    scene.runs("1", until=6000.0)
    scene.look()
    assert scene.calls(PoolMethod.HELD) == [{"host": "n1", **told, "until": 6000.0}]


def test_two_jobs_on_one_host_have_two_names_also_beside_a_host_of_that_name() -> None:
    scene = Scene(least=2)
    scene.pool.rows["n1"] = row("n1")
    for piece in "12":
        scene.runs(piece)
    assert [done[2] for done in scene.look()] == ["n1.2", "n1.3"]
    assert [one["place"] for one in scene.calls(PoolMethod.TOKEN)] == ["n1", "n1"]


def test_a_successor_gets_the_name_of_the_host_that_it_follows() -> None:
    scene = Scene(least=1)
    scene.pool.rows["n1"] = row("n1", "1")
    scene.jobs.known["1"] = Held("1", Stage.GOING, "n1")
    scene.runs("2")
    assert scene.look() == []
    del scene.jobs.known["1"]
    assert scene.look() == [("admit", "2", "n1", "token of n1")]
    assert scene.calls(PoolMethod.FORGET) == [{"host": "n1"}]


def test_who_is_in_the_pool_for_a_job_that_is_gone_is_forgotten_and_nobody_else() -> None:
    scene = Scene()
    scene.pool.rows = {"a": row("a", "1"), "b": row("b", "1", "Others"), "c": row("c")}
    scene.look()
    assert scene.pool.rows.keys() == {"b", "c"}


@pytest.mark.parametrize("who", ["jobs", "pool"])
def test_while_somebody_is_away_nothing_changes_and_that_is_said_once(who: str) -> None:
    scene = Scene(least=1)
    scene.pool.rows["n1"] = row("n1", "1")
    getattr(scene, who).away = True
    assert scene.look() + scene.look() == []
    assert scene.pool.rows.keys() == {"n1"}
    assert len(scene.said) == 1


def test_a_job_that_does_not_join_is_given_up_and_the_next_comes_later() -> None:
    scene = Scene(least=1)
    scene.runs("1")
    scene.look()
    assert scene.look(TOKEN_LASTS + 1) == [("gone", "1")]
    scene.jobs.known.clear()
    assert scene.look() == []
    assert "30 s" in scene.said[-1]
    assert scene.look(31.0) == [("hold", "")]


def test_an_engine_that_says_no_is_not_asked_again_and_again() -> None:
    scene = Scene(least=1)
    scene.jobs.refuses = True
    assert scene.look() == [("hold", "")]
    assert scene.look() + scene.look() == []
    assert scene.look(31.0) == [("hold", "")]
    assert set(scene.said) == {"Nothing is changed now: It says no."}


@pytest.mark.parametrize(("stage", "pause"), [(Stage.ASKED, 30.0), (Stage.THERE, 60.0)])
def test_only_jobs_that_ran_and_did_not_join_make_the_next_one_wait_longer(
    stage: Stage, pause: float
) -> None:
    scene = Scene(least=2)
    for _twice in range(2):
        scene.jobs.known = {one: Held(one, stage, "n1") for one in "12"}
        scene.look(pause + 1)
        scene.jobs.known.clear()
        assert scene.look() == []
    assert scene.look(pause - 1) == []
    assert scene.look(2.0) == [("hold", "")] * 2


def test_an_unused_host_is_drained_and_given_back_when_it_is_empty() -> None:
    scene = Scene()
    scene.runs("1")
    scene.pool.rows["n1"] = row("n1", "1")
    assert scene.look() == scene.look() == []
    assert scene.look(61.0) == []
    assert scene.pool.rows["n1"]["drain"]["gives_back"]
    assert scene.look() == []
    scene.pool.rows["n1"]["empty"] = True
    assert scene.look() == [("gone", "1")]


@pytest.mark.parametrize("least", [0, 1])
def test_a_host_that_a_person_took_out_of_service_is_left_to_them_and_serves_nobody(
    least: int,
) -> None:
    """Also where they say why in the words by which a host is given back."""
    scene = Scene()
    scene.runs("1")
    scene.pool.rows["n1"] = row("n1", "1")
    scene.look()
    assert scene.look(61.0) == []
    words = scene.pool.rows["n1"]["drain"]["reason"]
    scene = Scene(least=least)
    scene.runs("1")
    drain = {"reason": words, "gives_back": False}
    scene.pool.rows["n1"] = row("n1", "1", drain=drain, empty=True)
    assert scene.look() + scene.look(100.0) == [("hold", "")] * least * 2
    assert scene.pool.rows["n1"]["drain"] == drain


def test_a_host_that_was_lost_for_too_long_is_not_one_that_serves() -> None:
    """One that has just joined is not lost."""
    scene = Scene(least=1)
    scene.runs("1")
    scene.pool.rows["n1"] = row("n1", "1", connected=False, report=None)
    assert scene.look() == []
    scene.pool.rows["n1"] = row("n1", "1", connected=False, until=scene.now + 100.0)
    assert scene.look(99.0) == []
    assert scene.look(1.0) == [("hold", "")]


def test_who_waits_and_what_is_free_is_counted_where_hosts_can_be_reached() -> None:
    waits = lacks((1, 2), (4, 1))
    rows = [
        row("a", report=waits),
        row("b", report=waits, connected=False),
        row("c", report={**waits, "draining": "a reason"}),
        row("d", report=lacks((1, 1))),
        row("e", report=None, connected=False),
    ]
    assert demand_of(rows) == Demand({1: 5, 4: 2}, [1, 1])


@pytest.mark.parametrize("what", ["held", "parked", "waiting"])
def test_a_host_is_used_while_somebody_has_or_wants_anything_there(what: str) -> None:
    assert not is_used(row("a", report=people()))
    assert is_used(row("a", report=people(**{what: 1})))
    assert is_used(row("a", connected=False))


def test_more_is_asked_for_while_people_wait() -> None:
    scene = Scene()
    scene.pool.rows["a"] = row("a", report={**lacks((1, 4), (2, 1)), "gpus": []})
    assert scene.look() == [("hold", "")] * 3
    scene.jobs.known = {one: Held(one, Stage.ASKED) for one in "123"}
    scene.pool.rows["a"] = row("a")
    scene.look()
    assert scene.look() == [("gone", "3"), ("gone", "2"), ("gone", "1")]
