"""Bugs planted in a real node manager are found from outside, so the storm can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Case:
    """The property that must be found broken, the faults that bring it out, and who plays."""

    wanted: Property
    faults: tuple[str, ...]
    roles: tuple[str, ...]
    rate: float = 2.0
    clients: int = 10
    tenants: int = 0
    locked: int = 0
    savers: int = 0
    movers: int = 0
    lifted: bool = False
    by_turns: bool = False
    hosts: int = 0
    ill_call: Call | None = None
    seconds: float = 4.0  # of the first storm; each one after it is longer


STAYERS = ("stay", "short")  # some hold long enough to see what becomes of it; some come and go
CASES: dict[str, Case] = {
    "promise_what_is_taken": Case(Property.DOUBLE, ("wire cut",), ("short", "pair", "long")),
    "lift_what_is_not_reserved": Case(
        Property.DOUBLE, ("client killed",), ("stay", "short"), clients=4, lifted=True
    ),
    "give_two_the_turn": Case(
        Property.TURN, ("client killed",), ("stepper",), 0.3, 6, seconds=15.0, by_turns=True
    ),
    "hand_over_when_asked": Case(
        Property.TURN,
        ("client killed in a hand-over",),
        ("stepper",),
        0.3,
        6,
        seconds=15.0,
        by_turns=True,
    ),
    "leave_the_turn_to_who_has_it": Case(
        Property.WAITS, ("step without end",), ("stepper",), 0.3, 6, seconds=8.0, by_turns=True
    ),
    "wait_for_the_dead": Case(
        Property.WAITS,
        ("client killed at a gate",),
        ("stepper",),
        0.3,
        6,
        seconds=8.0,
        by_turns=True,
    ),
    # One jump in the first round, back: then nobody's quantum ends for long.
    "measure_quanta_by_the_wall": Case(
        Property.WAITS,
        ("clock jump at the edge of a quantum",),
        ("trainer",),
        0.01,
        6,
        seconds=40.0,
        by_turns=True,
    ),
    "be_locked_for_long": Case(
        Property.LOCKED,
        ("step without end",),
        ("stepper",),
        0.5,
        3,
        locked=5,
        seconds=15.0,
        by_turns=True,
    ),
    "leave_the_dead_helpers_locks": Case(
        Property.LOCKED,
        ("helper killed while a lock is out",),
        ("stepper",),
        0.5,
        1,
        locked=5,
        seconds=6.0,
        by_turns=True,
    ),
    "move_beside_the_quota": Case(
        Property.QUOTA,
        ("client killed",),
        (),
        0.1,
        0,
        movers=6,
        seconds=20.0,
        by_turns=True,
    ),
    "stop_anybody": Case(
        Property.STOP, ("client killed",), ("long", "pair"), 0.5, savers=1, seconds=8.0
    ),
    "save_at_once": Case(
        Property.STOP, ("client killed",), ("short", "pair"), 0.5, 5, savers=3, seconds=8.0
    ),
    "ask_everybody_for_caches": Case(Property.CACHE, ("client killed",), STAYERS),
    "place_out_of_service": Case(Property.DRAINED, ("GPU out of service",), ("short", "pair"), 4.0),
    "believe_who_releases": Case(
        Property.DOUBLE, ("memory kept after the lease",), ("short", "wide")
    ),
    # A node manager that is always dead shows nothing: few faults. Clients show their vouchers to
    # one that forgot their leases, so these are not lost: what shows it is the ledger.
    "start_afresh": Case(Property.LEDGER, ("node manager killed",), STAYERS, 0.4, seconds=8.0),
    "keep_the_dead": Case(Property.LEAKED, ("client killed",), ("long", "kernel")),
    "trust_pids": Case(Property.LEAKED, ("pid used again",), ("long", "kernel")),
    "believe_the_wall_clock": Case(Property.LEDGER, ("clock jump",), ("long", "kernel")),
    "let_anybody_release": Case(Property.LOST, ("wire cut",), ("long", "kernel")),
    "let_everybody_pass": Case(Property.ORDER, ("wire cut",), ("rush", "wide")),
    "serve_the_last_first": Case(Property.ORDER, ("wire cut",), ("pair",)),
    "write_another_size": Case(Property.LEDGER, ("wire cut",), ("short", "kernel")),
    "ignore_the_disk": Case(
        Property.LEDGER, ("node manager killed with a full disk",), STAYERS, 0.4, seconds=8.0
    ),
    "answer_before_it_is_written": Case(
        Property.LEDGER, ("node manager killed after a grant",), STAYERS, 0.4
    ),
    "start_anew_at_a_torn_page": Case(
        Property.LEDGER, ("page torn after death",), STAYERS, 0.4, seconds=8.0
    ),
    "lose_patience": Case(Property.LOST, ("client stopped",), ("long", "kernel")),
    "take_own_sleep_for_silence": Case(
        Property.LOST, ("node manager stopped",), STAYERS, 0.4, seconds=8.0
    ),
    "end_with_the_wire": Case(Property.LOST, ("wire cut",), ("long", "kernel")),
    "punish_nonsense": Case(Property.LOST, ("wire cut in mid-line",), ("long", "kernel")),
    "wait_for_readers": Case(Property.SILENT, ("client killed",), ("long", "kernel"), 0.2),
    "forget_request_ids": Case(Property.AGAIN, ("wire cut",), ("long", "pair"), 4.0),
    "end_with_the_gpu": Case(Property.LOST, ("GPU lost",), ("long", "kernel")),
    "believe_who_parks": Case(
        Property.DOUBLE,
        ("checkpoint call fails",),
        ("long",),
        rate=6.0,
        clients=1,
        tenants=6,
        ill_call=Call.CHECKPOINT,
        seconds=10.0,
    ),
    "believe_every_restore": Case(
        Property.MEMORY,
        ("checkpoint call fails",),
        ("long",),
        rate=6.0,
        clients=1,
        tenants=5,
        ill_call=Call.RESTORE,
        seconds=20.0,
    ),
    "forget_what_was_moved": Case(
        Property.MEMORY, ("helper killed",), ("long",), 0.5, 1, 6, seconds=10.0
    ),
    "host_with_a_ledger_of_its_own": Case(
        Property.LEDGER, ("server killed",), ("long", "kernel"), 0.5, hosts=3
    ),
}
#: What CI has time for; `make test-long` plants them all.
IN_CI = {
    "promise_what_is_taken",
    "ignore_the_disk",
}


def test_each_bug_has_a_case() -> None:
    assert set(CASES) == set(PLANTED)
    assert {case.wanted for case in CASES.values()} == set(Property)


@pytest.mark.parametrize(
    "bug",
    [bug if bug in IN_CI else pytest.param(bug, marks=pytest.mark.long) for bug in CASES],
)
def test_a_planted_bug_is_found(
    bug: str, tmp_path: Path, cuda_stubs: Path, faults_shim: Path
) -> None:
    case = CASES[bug]
    found: set[Property] = set()
    for number in range(ROUNDS):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        plan = Plan(
            seed=number,
            seconds=case.seconds + 2.0 * number,
            rate=case.rate,
            clients=case.clients,
            tenants=case.tenants,
            locked=case.locked,
            savers=case.savers,
            movers=case.movers,
            lifted=case.lifted,
            by_turns=case.by_turns,
            hosts=case.hosts,
            entry=("-m", "support.faults.planted", bug),
            ill_call=case.ill_call,
            tenant_plant=bug if bug in IN_CLIENTS else None,
            only=case.faults,
            roles=case.roles,
        )
        report = Storm(directory, plan, cuda_stubs, faults_shim).run()
        found |= {finding.broken for finding in report.verdict.findings}
        if case.wanted in found:
            return
    pytest.fail(f"{bug} was not found in {ROUNDS} storms; found was {found}; {report.broken}")
