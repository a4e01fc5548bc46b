"""In a storm of faults a real node manager loses no lease, and gives no memory twice.

A short one; ``make soak`` is the long one. The seed is printed.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path

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
#: Each storm, until enough has happened: one in which nothing did proves nothing. And what else the
#: checker must have looked at.
STORMS: dict[str, tuple[Plan, tuple[str, ...]]] = {
    "nothing is lost": (
        Plan(
            SEED,
            seconds=9.0,
            rate=6.0,
            clients=8,
            kernels=1,
            enough=lambda faults, saw: faults.total() > 20 and saw[Saw.GRANTED] > 3,
        ),
        (),
    ),
    "nothing is lost when servers race to host": (
        Plan(
            SEED + 1,
            seconds=7.0,
            rate=4.0,
            clients=6,
            hosts=3,
            enough=lambda faults, saw: faults["server killed"] > 0 and saw[Saw.GRANTED] > 3,
        ),
        (),
    ),
    "nothing is lost of what is parked": (
        Plan(
            SEED + 2,
            seconds=8.0,
            rate=1.5,  # with more the node manager is away for most of the time
            clients=1,
            tenants=6,
            enough=lambda faults, saw: (
                min(saw[Saw.WHOLE], saw[Saw.RESIDENT]) > 3 and saw[Saw.PARKED] > 0
            ),
        ),
        (),
    ),
    "a GPU out of service is granted to nobody": (
        Plan(
            SEED + 3,
            seconds=8.0,
            rate=4.0,
            clients=8,
            only=(*OUT, "GPU lost", "client killed"),
            enough=lambda faults, saw: all(map(faults.get, OUT)) and saw[Saw.GRANTED] > 3,
        ),
        (),
    ),
    "nobody waits for a turn for ever": (
        Plan(
            SEED + 4,
            seconds=8.0,
            rate=1.5,
            clients=8,
            roles=("stepper",),
            by_turns=True,
            only=OF_TURNS,
            enough=lambda faults, saw: (
                all(map(faults.get, OF_TURNS))
                and min(saw[Saw.STEP], saw[Saw.HANGS], saw[Saw.PASSED]) > 0
            ),
        ),
        (),
    ),
    "nobody stays locked": (
        Plan(
            SEED + 5,
            seconds=6.0,
            rate=1.5,
            clients=1,
            roles=("stepper",),
            locked=5,
            by_turns=True,
            only=(*OF_LOCKS[:4], "step without end"),
            enough=lambda faults, saw: all(map(faults.get, OF_LOCKS[:4])) and saw[Saw.LOCKED] > 3,
        ),
        ("free when the node manager was gone",),
    ),
    "who is stopped loses nothing": (
        Plan(
            SEED + 6,
            seconds=6.0,
            rate=1.5,
            clients=4,
            roles=("short", "pair", "long"),
            savers=3,
            only=(*OF_STOPS, "client killed", "wire cut"),
            enough=lambda faults, saw: any(map(faults.get, OF_STOPS)) and saw[Saw.SAVED] > 1,
        ),
        ("states found again",),
    ),
    "nothing is lost in a move": (
        Plan(
            SEED + 7,
            seconds=8.0,
            rate=0.5,
            clients=0,
            movers=6,
            by_turns=True,
            only=OF_MOVES,
            enough=lambda faults, saw: any(map(faults.get, OF_MOVES)) and saw[Saw.MOVED] > 0,
        ),
        (),
    ),
}
ALWAYS = ("nothing is lost", "nothing is lost when servers race to host")


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.story) for name in STORMS],
)
def test_in_a_storm(name: str, tmp_path: Path, cuda_stubs: Path, faults_shim: Path) -> None:
    plan, also = STORMS[name]
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
