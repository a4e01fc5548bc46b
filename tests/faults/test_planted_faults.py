"""A test of the test: bugs planted in a real node manager must be found from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults.checker import Property
from support.faults.planted import PLANTED
from support.faults.stage import can_steal
from support.faults.storm import Plan, Storm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not can_steal(), reason="cutting others' wires needs ptrace rights"),
]
CROWD = ("short", "kernel")
ROUNDS = 6  # a bug is found in the first, nearly always

# The property that must be found broken, the faults that bring it out, and who plays.
CASES: dict[str, tuple[Property, tuple[str, ...], tuple[str, ...]]] = {
    "promise_what_is_taken": (Property.DOUBLE, ("wire cut",), ("short", "pair", "long")),
    "believe_who_releases": (Property.DOUBLE, ("memory kept after the lease",), ("short", "wide")),
    "start_afresh": (Property.LOST, ("node manager killed",), ("kernel", "long")),
    "keep_the_dead": (Property.LEAKED, ("client killed",), ("long", "kernel")),
    "trust_pids": (Property.LEAKED, ("pid used again",), ("long", "kernel")),
    "believe_the_wall_clock": (Property.LEDGER, ("clock jump",), ("long", "kernel")),
    "let_anybody_release": (Property.LOST, ("wire cut",), ("long", "kernel")),
    "let_everybody_pass": (Property.ORDER, ("wire cut",), ("rush", "wide")),
    "serve_the_last_first": (Property.ORDER, ("wire cut",), ("pair",)),
    "write_another_size": (Property.LEDGER, ("wire cut",), ("short", "kernel")),
}


def test_each_bug_has_a_case() -> None:
    assert set(CASES) == set(PLANTED)
    assert {broken for broken, _, _ in CASES.values()} == set(Property)
    assert {CASES[bug][0] for bug in IN_CI} == set(Property)


#: One for each property; `make test-long` plants them all.
IN_CI = {
    "promise_what_is_taken",
    "start_afresh",
    "trust_pids",
    "believe_the_wall_clock",
    "let_everybody_pass",
}


@pytest.mark.parametrize(
    "bug",
    [bug if bug in IN_CI else pytest.param(bug, marks=pytest.mark.long) for bug in CASES],
)
def test_a_planted_bug_is_found(
    bug: str, tmp_path: Path, nvml_stub: Path, faults_shim: Path
) -> None:
    wanted, faults, roles = CASES[bug]
    found: set[Property] = set()
    for number in range(ROUNDS):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        plan = Plan(
            seed=number,
            seconds=4.0 + 2.0 * number,
            # A node manager that is always dead shows nothing.
            rate=0.4 if "node manager killed" in faults else 2.0,
            clients=10,
            entry=("-m", "support.faults.planted", bug),
            only=faults,
            roles=roles,
        )
        report = Storm(directory, plan, nvml_stub, faults_shim).run()
        found |= {finding.broken for finding in report.verdict.findings}
        if wanted in found:
            return
    pytest.fail(f"{bug} was not found in {ROUNDS} storms; found was {found}; {report.broken}")
