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
from support.faults.storm import OF_LOCKS, OF_MOVES, OF_STOPS, OF_TURNS, Plan, Report, Storm

from jupyter_gpushare.client.adapters.parkers.base import Parker

pytestmark = [
    pytest.mark.skipif(not can_steal(), reason="cutting others' wires needs ptrace rights"),
]
SEED = int(os.environ.get("SOAK_SEED", "6"))


def storm(directory: Path, plan: Plan, stub: Path, shim: Path) -> Report:
    report = Storm(directory, plan, stub, shim).run()
    print(f"seed {plan.seed}: {report.faults.total()} faults {dict(report.faults)}")
    print(dict(report.verdict.looked_at), f"all GPUs were free again after {report.recovered} s")
    assert not report.broken, "\n".join(report.broken)
    assert not report.verdict.findings, "\n".join(
        f"{finding.broken.value}: {finding.story}" for finding in report.verdict.findings
    )
    return report


def test_nothing_is_lost_in_a_storm(tmp_path: Path, cuda_stubs: Path, faults_shim: Path) -> None:
    # A storm in which nothing happened proves nothing.
    plan = Plan(
        SEED,
        seconds=9.0,
        rate=6.0,
        clients=8,
        kernels=1,
        enough=lambda faults, saw: faults.total() > 20 and saw[Saw.GRANTED] > 3,
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert report.faults.total() > 20
    assert report.verdict.looked_at["grants"] > 3
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.story
def test_nothing_is_lost_of_what_is_parked(
    tmp_path: Path, cuda_stubs: Path, faults_shim: Path
) -> None:
    plan = Plan(
        SEED + 2,
        seconds=8.0,
        rate=1.5,  # with more the node manager is away for most of the time
        clients=1,
        tenants=6,
        enough=lambda faults, saw: (
            saw[Saw.WHOLE] > 3 and saw[Saw.RESIDENT] > 3 and saw[Saw.PARKED] > 0
        ),
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert report.verdict.looked_at["memories whole"] > 3
    assert report.verdict.looked_at["looks at memory"] > 3
    assert report.verdict.looked_at["parks"] > 0


def test_nothing_is_lost_when_servers_race_to_host(
    tmp_path: Path, cuda_stubs: Path, faults_shim: Path
) -> None:
    plan = Plan(
        SEED + 1,
        seconds=7.0,
        rate=4.0,
        clients=6,
        hosts=3,
        enough=lambda faults, saw: faults["server killed"] > 0 and saw[Saw.GRANTED] > 3,
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert report.faults["server killed"] > 0
    assert report.verdict.looked_at["grants"] > 3
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.story
def test_a_gpu_out_of_service_is_granted_to_nobody(
    tmp_path: Path, cuda_stubs: Path, faults_shim: Path
) -> None:
    only = ("GPU out of service", "node manager killed", "GPU lost", "client killed")
    plan = Plan(
        SEED + 3,
        seconds=8.0,
        rate=4.0,
        clients=8,
        only=only,
        enough=lambda faults, saw: (
            all(faults[name] > 0 for name in only[:2]) and saw[Saw.GRANTED] > 3
        ),
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert report.faults["GPU out of service"] > 0
    assert report.faults["node manager killed"] > 0
    assert report.verdict.looked_at["grants"] > 3
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.story
def test_nobody_waits_for_a_turn_for_ever(
    tmp_path: Path, cuda_stubs: Path, faults_shim: Path
) -> None:
    plan = Plan(
        SEED + 4,
        seconds=8.0,
        rate=1.5,
        clients=8,
        roles=("stepper",),
        by_turns=True,
        only=OF_TURNS,
        enough=lambda faults, saw: (
            all(faults[name] > 0 for name in OF_TURNS)
            and min(saw[Saw.STEP], saw[Saw.HANGS], saw[Saw.PASSED]) > 0
        ),
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert all(report.faults[name] > 0 for name in OF_TURNS)
    assert report.verdict.looked_at["steps by turns"] > 0
    assert report.verdict.looked_at["waits for turns"] > 0
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.story
def test_nobody_stays_locked(tmp_path: Path, cuda_stubs: Path, faults_shim: Path) -> None:
    killed = OF_LOCKS[:4]
    plan = Plan(
        SEED + 5,
        seconds=6.0,
        rate=1.5,
        clients=1,
        roles=("stepper",),
        locked=5,
        by_turns=True,
        only=(*killed, "step without end"),
        enough=lambda faults, saw: all(faults[name] > 0 for name in killed) and saw[Saw.LOCKED] > 3,
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert all(report.faults[name] > 0 for name in killed)
    assert report.verdict.looked_at["locks"] > 3
    assert report.verdict.looked_at["free when the node manager was gone"] > 0
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.story
def test_who_is_stopped_loses_nothing(tmp_path: Path, cuda_stubs: Path, faults_shim: Path) -> None:
    plan = Plan(
        SEED + 6,
        seconds=6.0,
        rate=1.5,
        clients=4,
        roles=("short", "pair", "long"),
        savers=3,
        only=(*OF_STOPS, "client killed", "wire cut"),
        enough=lambda faults, saw: any(map(faults.get, OF_STOPS)) and saw[Saw.SAVED] > 1,
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert any(map(report.faults.get, OF_STOPS))
    assert report.verdict.looked_at["states saved"] > 1
    assert report.verdict.looked_at["states found again"] > 0
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.story
def test_nothing_is_lost_in_a_move(tmp_path: Path, cuda_stubs: Path, faults_shim: Path) -> None:
    plan = Plan(
        SEED + 7,
        seconds=8.0,
        rate=0.5,
        clients=0,
        movers=6,
        by_turns=True,
        only=OF_MOVES,
        enough=lambda faults, saw: any(map(faults.get, OF_MOVES)) and saw[Saw.MOVED] > 0,
    )
    report = storm(tmp_path, plan, cuda_stubs, faults_shim)
    assert any(map(report.faults.get, OF_MOVES))
    assert report.verdict.looked_at["moves in mid-cell"] > 0
    assert report.verdict.looked_at["probes"] == 1


@pytest.mark.parametrize("name", ["trim", "drop_cache", "bytes_to_park", "park", "resume"])
def test_the_pretend_framework_is_called_as_a_real_one_is(name: str) -> None:
    wanted, ours = (inspect.signature(getattr(one, name)) for one in (Parker, PretendParker))
    assert list(ours.parameters) == list(wanted.parameters)
