"""In a storm of faults a real node manager loses no lease, and gives no memory twice.

A short one; ``make soak`` is the long one. The seed is printed.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.faults.observed import Saw
from support.faults.pretend import PretendParker
from support.faults.stage import can_steal
from support.faults.storm import OF_LOCKS, OF_MOVES, OF_STOPS, OF_TURNS, Plan, Storm

from jupyter_gpushare.client.adapters.parkers.base import Parker

pytestmark = [
    pytest.mark.skipif(not can_steal(), reason="cutting others' wires needs ptrace rights"),
]
SEED = int(os.environ.get("SOAK_SEED", "6"))


OUT = ("GPU out of service", "node manager killed")


def storm(
    seconds: float,
    rate: float,
    clients: int,
    enough: Callable[[Counter[str], Counter[Saw]], bool],
    *also: str,
    **more: Any,
) -> tuple[Plan, tuple[str, ...]]:
    """A storm until enough has happened: one in which nothing did proves nothing.

    ``also``: what else the checker must have looked at.
    """
    return Plan(SEED, seconds, rate, clients, enough=enough, **more), also


STORMS = {
    "nothing is lost": storm(
        *(9.0, 6.0, 8),
        lambda faults, saw: (
            faults.total() > 20 and faults["wall helper away"] > 0 and saw[Saw.GRANTED] > 3
        ),
        "walls",
        kernels=1,
        walled=True,
    ),
    "nothing is lost when servers race to host": storm(
        *(7.0, 4.0, 6, lambda faults, saw: faults["server killed"] > 0 and saw[Saw.GRANTED] > 3),
        hosts=3,
    ),
    "nothing is lost of what is parked": storm(
        *(8.0, 1.5, 1),  # with more faults the node manager is away for most of the time
        lambda faults, saw: min(saw[Saw.WHOLE], saw[Saw.RESIDENT]) > 3 and saw[Saw.PARKED] > 0,
        tenants=6,
    ),
    "a GPU out of service is granted to nobody": storm(
        *(8.0, 4.0, 8, lambda faults, saw: all(map(faults.get, OUT)) and saw[Saw.GRANTED] > 3),
        only=(*OUT, "GPU lost", "client killed"),
    ),
    "nobody waits for a turn for ever": storm(
        *(8.0, 1.5, 8),
        lambda faults, saw: (
            all(map(faults.get, OF_TURNS))
            and min(saw[Saw.STEP], saw[Saw.HANGS], saw[Saw.PASSED]) > 0
        ),
        **{"roles": ("stepper",), "by_turns": True, "only": OF_TURNS},
    ),
    "nobody stays locked": storm(
        *(6.0, 1.5, 1),
        lambda faults, saw: all(map(faults.get, OF_LOCKS[:4])) and saw[Saw.LOCKED] > 3,
        "free when the node manager was gone",
        **{"roles": ("stepper",), "locked": 5, "by_turns": True},
        only=(*OF_LOCKS[:4], "step without end"),
    ),
    "who is stopped loses nothing": storm(
        *(6.0, 1.5, 4, lambda faults, saw: any(map(faults.get, OF_STOPS)) and saw[Saw.SAVED] > 1),
        "states found again",
        **{"roles": ("short", "pair", "long"), "savers": 3},
        only=(*OF_STOPS, "client killed", "wire cut"),
    ),
    "nothing is lost in a move": storm(
        *(8.0, 0.5, 0, lambda faults, saw: any(map(faults.get, OF_MOVES)) and saw[Saw.MOVED] > 0),
        **{"movers": 6, "by_turns": True, "only": OF_MOVES},
    ),
}
ALWAYS = ("nothing is lost", "nothing is lost when servers race to host")


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.story) for name in STORMS],
)
def test_in_a_storm(name: str, tmp_path: Path, cuda_stubs: Path, faults_shim: Path) -> None:
    plan, also = STORMS[name]
    plan = replace(plan, seed=SEED + [*STORMS].index(name))
    report = Storm(tmp_path, plan, cuda_stubs, faults_shim).run()
    print(f"seed {plan.seed}: {report.faults.total()} faults {dict(report.faults)}")
    print(dict(report.verdict.looked_at), f"all GPUs were free again after {report.recovered} s")
    assert not report.broken, "\n".join(report.broken)
    assert not report.verdict.findings, "\n".join(
        f"{finding.broken.value}: {finding.story}" for finding in report.verdict.findings
    )
    assert report.was_enough
    assert report.verdict.looked_at["probes"] == 1
    assert all(report.verdict.looked_at[one] > 0 for one in also)


@pytest.mark.parametrize("name", ["trim", "drop_cache", "bytes_to_park", "park", "resume"])
def test_the_pretend_framework_is_called_as_a_real_one_is(name: str) -> None:
    wanted, ours = (inspect.signature(getattr(one, name)) for one in (Parker, PretendParker))
    assert list(ours.parameters) == list(wanted.parameters)
