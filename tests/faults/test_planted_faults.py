"""Bugs planted in a real node manager are found from outside, so the storm can be believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cuda import Call
from support.faults.checker import Property
from support.faults.planted import PLANTED
from support.faults.planted_clients import IN_CLIENTS
from support.faults.stage import can_steal
from support.faults.storm import Plan, Storm

pytestmark = [
    pytest.mark.story,
    pytest.mark.skipif(not can_steal(), reason="cutting others' wires needs ptrace rights"),
]
ROUNDS = 6  # a bug is found in the first, nearly always


def case(
    wanted: Property, only: str, roles: str, rate: float = 2.0, clients: int = 10, **more: Any
) -> tuple[Property, Plan]:
    """The property that must be found broken, the fault that brings it out, and who plays.

    ``seconds``: of the first storm; each one after it is longer.
    """
    plan = Plan(0, seconds=4.0, only=(only,), roles=roles.split(), rate=rate, clients=clients)
    return wanted, replace(plan, **more)


def turns(
    wanted: Property, only: str, seconds: float, rate: float = 0.3, clients: int = 6, **more: Any
) -> tuple[Property, Plan]:
    """The same where tasks take turns."""
    roles = more.pop("roles", "stepper")
    return case(wanted, only, roles, rate, clients, seconds=seconds, by_turns=True, **more)


#: A node manager that is always dead shows nothing: few faults.
RARELY = 0.4
LONGER: dict[str, Any] = {"rate": RARELY, "seconds": 8.0}
STAYERS = "stay short"  # some hold long enough to see what becomes of it; some come and go
CASES: dict[str, tuple[Property, Plan]] = {
    "promise_what_is_taken": case(Property.DOUBLE, "wire cut", "short pair long"),
    "lift_what_is_not_reserved": case(
        Property.DOUBLE, "client killed", STAYERS, clients=4, lifted=True
    ),
    "give_two_the_turn": turns(Property.TURN, "client killed", 15.0),
    "hand_over_when_asked": turns(Property.TURN, "client killed in a hand-over", 15.0),
    "leave_the_turn_to_who_has_it": turns(Property.WAITS, "step without end", 8.0),
    "wait_for_the_dead": turns(Property.WAITS, "client killed at a gate", 8.0),
    # One jump in the first round, back: then nobody's quantum ends for long.
    "measure_quanta_by_the_wall": turns(
        Property.WAITS, "clock jump at the edge of a quantum", 40.0, 0.01, roles="trainer"
    ),
    "be_locked_for_long": turns(Property.LOCKED, "step without end", 15.0, 0.5, 3, locked=5),
    "leave_the_dead_helpers_locks": turns(
        Property.LOCKED, "helper killed while a lock is out", 6.0, 0.5, 1, locked=5
    ),
    "move_beside_the_quota": turns(
        Property.QUOTA, "client killed", 20.0, 0.1, 0, roles="", movers=6
    ),
    "stop_anybody": case(Property.STOP, "client killed", "long pair", 0.5, savers=1, seconds=8.0),
    "save_at_once": case(
        Property.STOP, "client killed", "short pair", 0.5, 5, savers=3, seconds=8.0
    ),
    "ask_everybody_for_caches": case(Property.CACHE, "client killed", STAYERS),
    "widen_walls_late": case(Property.WALL, "client killed", "short pair", walled=True),
    "place_out_of_service": case(Property.DRAINED, "GPU out of service", "short pair", 4.0),
    "believe_who_releases": case(Property.DOUBLE, "memory kept after the lease", "short wide"),
    # Clients show their vouchers to one that forgot their leases, so these are not lost: what shows
    # it is the ledger.
    "start_afresh": case(Property.LEDGER, "node manager killed", STAYERS, **LONGER),
    "trust_pids": case(Property.LEAKED, "pid used again", "long kernel"),
    "believe_the_wall_clock": case(Property.LEDGER, "clock jump", "long kernel"),
    "let_anybody_release": case(Property.LOST, "wire cut", "long kernel"),
    "let_everybody_pass": case(Property.ORDER, "wire cut", "rush wide"),
    "serve_the_last_first": case(Property.ORDER, "wire cut", "pair"),
    "write_another_size": case(Property.LEDGER, "wire cut", "short kernel"),
    "ignore_the_disk": case(
        Property.LEDGER, "node manager killed with a full disk", STAYERS, **LONGER
    ),
    "answer_before_it_is_written": case(
        Property.LEDGER, "node manager killed after a grant", STAYERS, RARELY
    ),
    "start_anew_at_a_torn_page": case(Property.LEDGER, "page torn after death", STAYERS, **LONGER),
    "lose_patience": case(Property.LOST, "client stopped", "long kernel"),
    "take_own_sleep_for_silence": case(Property.LOST, "node manager stopped", STAYERS, **LONGER),
    "punish_nonsense": case(Property.LOST, "wire cut in mid-line", "long kernel"),
    "wait_for_readers": case(Property.SILENT, "client killed", "long kernel", 0.2),
    "forget_request_ids": case(Property.AGAIN, "wire cut", "long pair", 4.0),
    "end_with_the_gpu": case(Property.LOST, "GPU lost", "long kernel"),
    "believe_who_parks": case(
        *(Property.DOUBLE, "checkpoint call fails", "long", 6.0, 1),
        **{"tenants": 6, "ill_call": Call.CHECKPOINT, "seconds": 10.0},
    ),
    "believe_every_restore": case(
        *(Property.MEMORY, "checkpoint call fails", "long", 6.0, 1),
        **{"tenants": 5, "ill_call": Call.RESTORE, "seconds": 20.0},
    ),
    "forget_what_was_moved": case(
        Property.MEMORY, "helper killed", "long", 0.5, 1, tenants=6, seconds=10.0
    ),
    "host_with_a_ledger_of_its_own": case(
        Property.LEDGER, "server killed", "long kernel", 0.5, hosts=3
    ),
}
#: What CI has time for; `make test-long` plants them all.
IN_CI = {
    "promise_what_is_taken",
    "ignore_the_disk",
}


def test_each_bug_has_a_case() -> None:
    assert set(CASES) == set(PLANTED)
    assert {wanted for wanted, _plan in CASES.values()} == set(Property)


@pytest.mark.parametrize(
    "bug",
    [bug if bug in IN_CI else pytest.param(bug, marks=pytest.mark.long) for bug in CASES],
)
def test_a_planted_bug_is_found(
    bug: str, tmp_path: Path, cuda_stubs: Path, faults_shim: Path
) -> None:
    wanted, first = CASES[bug]
    found: set[Property] = set()
    for number in range(ROUNDS):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        plan = replace(
            first,
            seed=number,
            seconds=first.seconds + 2.0 * number,
            entry=("-m", "support.faults.planted", bug),
            tenant_plant=bug if bug in IN_CLIENTS else None,
        )
        report = Storm(directory, plan, cuda_stubs, faults_shim).run()
        found |= {finding.broken for finding in report.verdict.findings}
        if wanted in found:
            return
    pytest.fail(f"{bug} was not found in {ROUNDS} storms; found was {found}; {report.broken}")
