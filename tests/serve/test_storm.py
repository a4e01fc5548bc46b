"""Every request to a server that sleeps ends in one answer or one visible error, whatever dies.

A short storm; ``make soak-serve`` is the long one. What the verdict finds is shown by planting it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cuda_fixtures import cuda_stubs
from support.servestorm import Plan, Report, Storm, course
from support.serveverdict import Asked, How, Kill, Kind, Story, judge

__all__ = ["cuda_stubs"]
ROUNDS = int(os.environ.get("SERVE_STORM_ROUNDS") or 200)


def blow(library: Path, folder: Path, plan: Plan) -> Report:
    report = Storm(library, folder, plan).run()
    print(report.json)
    assert not report.wrong
    return report


def test_no_request_is_lost_and_none_is_sent_twice(cuda_stubs: Path, tmp_path: Path) -> None:
    plan = Plan(126, rounds=6, requests=25, kills=0.85, engine=True)
    told = blow(cuda_stubs, tmp_path, plan).figures
    assert told["sleeps"] == 6
    assert told["ended"]["answered"] > 50
    assert len(told["kills"]) >= 5


@pytest.mark.long
@pytest.mark.timeout(20 * ROUNDS + 600)
def test_a_long_storm(cuda_stubs: Path, tmp_path: Path) -> None:
    """``SERVE_STORM_ROUNDS`` and ``SERVE_STORM_SEED`` say how long, and which."""
    seed = int(os.environ.get("SERVE_STORM_SEED") or random.SystemRandom().randrange(2**31))
    for number, kills in enumerate((0.0, 0.5, 0.5, 0.5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        engine, yama = number in (0, 1), number < 3
        plan = Plan(seed + number, -(-ROUNDS // 4), 50, kills, engine=engine, yama=yama)
        assert blow(cuda_stubs, folder, plan).figures["sleeps"] == plan.rounds


def test_a_seed_gives_the_course() -> None:
    plan = Plan(3, rounds=20, kills=1.0, engine=True)
    assert course(plan) == course(plan) != course(replace(plan, seed=4))
    strokes = [stroke.kind for one in course(plan) for stroke in one.strokes]
    assert set(strokes[: len(Kind)]) == set(Kind)
    assert not any(one.strokes for one in course(replace(plan, kills=0.0)))


# -- what the verdict finds ------------------------------------------------------------------------

ANSWERED = Asked("a", "plain", 1.0, 2.0, How.ANSWERED)
FAILED = Asked("b", "plain", 11.0, 12.0, How.ERROR, "502 server_lost")
KILLED = Kill(Kind.SERVER, 10.0, 13.0)


def served(what: str, at: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "boot": "1", "at": at, **more}


def well() -> Story:
    """Nothing is wrong with it."""
    return Story(
        [ANSWERED, FAILED, replace(ANSWERED, id="c", begin=20.0, end=21.0)],
        [KILLED],
        [
            served("boot", 0.0),
            *(served("begin", 1.2, id="a"), served("end", 1.8, id="a")),
            served("begin", 11.5, id="b"),
            served("boot", 12.5),
            *(served("begin", 20.2, id="c"), served("end", 20.8, id="c")),
        ],
        [{"what": "granted", "at": 5.0}, {"what": "released", "at": 6.0, "right": True}],
    )


def changed(**of: Any) -> Callable[[Story], None]:
    """The first answer is another."""
    return lambda story: story.asked.__setitem__(0, replace(ANSWERED, **of))


FOUND: dict[str, Callable[[Story], None]] = {
    "no answer and no error": changed(how=How.HUNG),
    "no answer and no error: ": changed(how=How.WRONG),
    "the harness asked twice": lambda story: story.asked.append(ANSWERED),
    "sent to the server 2 times": lambda story: story.served.append(served("begin", 9.0, id="b")),
    "never sent to the server": lambda story: story.served.pop(1),
    "refused, and sent": changed(how=How.REFUSED, begin=10.5, end=11.0),
    "nobody asked for": lambda story: story.asked.pop(),
    "nothing was killed that explains it": changed(how=How.ERROR),
    "that explains it: ": lambda story: story.kills.__setitem__(0, replace(KILLED, over=10.5)),
    "explains it": lambda story: story.kills.__setitem__(0, replace(KILLED, kind=Kind.NODE)),
    "the server's memory was wrong": changed(right=False),
    "the neighbour's memory": lambda story: story.neighbour[1].update(right=False),
    "the neighbour's memory: ": lambda story: story.neighbour.append({"what": "lost", "at": 7.0}),
    "while the neighbour had the GPU": lambda story: story.neighbour[0].update(at=1.5),
    "was started anew": lambda story: story.served[4].update(at=9.0),
    "did not come back": lambda story: story.kills.append(Kill(Kind.KEEPER, 30.0)),
    "harness": lambda story: story.wrong.append("what the harness saw"),
}


@pytest.mark.parametrize("words", FOUND)
def test_the_verdict_finds_what_is_wrong(words: str) -> None:
    story = well()
    assert not judge(story)
    FOUND[words](story)
    assert any(words in one for one in judge(story)), judge(story)
