"""The long storm: ``make soak``. Round after round of faults on a node manager, until time is up.

Each round has a seed of its own, made from the first, which is printed: ``--only SEED`` plays
one round again. Every fourth round has real kernels, every fifth several servers that elect a
host, every third clients with memory on their GPUs, which the driver parks, and every third limits
that are lifted on GPUs with room and taken back. In every sixth tasks take turns, in half of those
with no other faults than those of turns, so that nothing else explains a wait. In every seventh
tasks without a gate take turns by the driver's lock, in half of those with no other faults. In
every eighth batch programs are stopped for people, save their state, and are started again. In
every ninth tasks move to other GPUs in mid-cell, in half of those with no other faults than those
of moves. The record (``--json``) is written anew after each round, so it is there if the run is
cut.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.cuda import build_stubs  # noqa: E402
from support.faults.shim import build_shim  # noqa: E402
from support.faults.storm import OF_LOCKS, OF_MOVES, OF_TURNS, Plan, Report, Storm  # noqa: E402


def plan_of(number: int, seed: int, seconds: float) -> Plan:
    """What the round of this number is like."""
    if number % 7 == 5:
        faults = (*OF_LOCKS, "step without end") if number % 2 else ()
        return Plan(
            seed,
            seconds=seconds,
            rate=1.5 if faults else 4.0,
            clients=3,
            roles=("stepper",),
            by_turns=True,
            locked=5,
            only=faults,
        )
    if number % 9 == 8:
        faults = OF_MOVES if number % 2 else ()
        rate = 0.6 if faults else 1.5
        return Plan(
            seed, seconds=seconds, rate=rate, clients=0, by_turns=True, movers=6, only=faults
        )
    if number % 8 == 3:
        roles = ("short", "pair", "kernel", "long")
        return Plan(seed, seconds=seconds, rate=5.0, clients=5, roles=roles, savers=3)
    if number % 5 == 4:
        return Plan(seed, seconds=seconds, rate=8.0, clients=8, hosts=3)
    if number % 3 == 1:
        return Plan(seed, seconds=seconds, rate=10.0, clients=3, tenants=6)
    if number % 12 == 6:
        roles = ("stepper",)
        return Plan(
            seed, seconds=seconds, rate=1.5, clients=8, roles=roles, by_turns=True, only=OF_TURNS
        )
    if number % 6 == 0:
        roles = ("stepper",)
        return Plan(seed, seconds=seconds, rate=5.0, clients=6, roles=roles, by_turns=True)
    if number % 3 == 2:
        roles = ("short", "stay", "kernel")
        return Plan(seed, seconds=seconds, rate=10.0, clients=5, roles=roles, lifted=True)
    kernels = 2 if number % 4 == 3 else 0
    return Plan(seed, seconds=seconds, rate=12.0, clients=12, kernels=kernels, walled=True)


class Record:
    """What came of all rounds so far."""

    def __init__(self, seed: int, path: Path | None) -> None:
        self.seed = seed
        self.path = path
        self.began = time.monotonic()
        self.rounds = 0
        self.faults: Counter[str] = Counter()
        self.looked_at: Counter[str] = Counter()
        self.recovered: list[float] = []
        self.violations: list[dict[str, Any]] = []

    def add(self, report: Report) -> None:
        self.rounds += 1
        self.faults.update(report.faults)
        self.looked_at.update(report.verdict.looked_at)
        if report.recovered is not None:
            self.recovered.append(report.recovered)
        for finding in report.verdict.findings:
            self.violations.append(
                {"seed": report.seed, "broken": finding.broken.value, "story": finding.story}
            )
        for story in report.broken:
            self.violations.append({"seed": report.seed, "broken": "the round", "story": story})

    def document(self) -> dict[str, Any]:
        recovered = sorted(self.recovered)
        return {
            "seed": self.seed,
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "python": platform.python_version(),
            "histories": self.rounds,
            "faults": {"all": self.faults.total(), **dict(self.faults.most_common())},
            "looked_at": dict(self.looked_at),
            "seconds_until_all_gpus_were_free": {
                "median": recovered[len(recovered) // 2] if recovered else None,
                "longest": recovered[-1] if recovered else None,
            },
            "violations": len(self.violations),
            "stories": self.violations,
        }

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(self.document(), indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None, help="not given: another each time")
    parser.add_argument("--only", type=int, default=None, help="one round, with this seed")
    parser.add_argument("--number", type=int, default=0, help="which kind of round (--only)")
    parser.add_argument("--round", type=float, default=15.0, help="seconds of faults in a round")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--keep", type=Path, default=None, help="keep here what broken rounds left")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    seeds = random.Random(seed)
    record = Record(seed, options.json)
    scratch = Path(tempfile.mkdtemp(prefix="gpushare-soak-"))
    stub, shim = build_stubs(scratch / "stub"), build_shim(scratch / "shim")
    end = time.monotonic() + options.minutes * 60
    number = options.number
    while time.monotonic() < end:
        own = options.only if options.only is not None else seeds.randrange(2**31)
        directory = scratch / f"round-{number}"
        directory.mkdir()
        report = Storm(directory, plan_of(number, own, options.round), stub, shim).run()
        record.add(report)
        record.write()
        is_well = not report.broken and not report.verdict.findings
        print(
            f"round {number} (seed {own}): {report.faults.total()} faults, "
            f"{report.verdict.looked_at['grants']} grants, {'well' if is_well else 'BROKEN'}; "
            f"in all {record.faults.total()} faults, {len(record.violations)} violations",
            flush=True,
        )
        if not is_well:
            for story in [*report.broken, *(str(finding) for finding in report.verdict.findings)]:
                print(f"  {story}", flush=True)
            if options.keep is not None:
                shutil.copytree(directory, options.keep / f"{own}", ignore=_not_sockets)
        shutil.rmtree(directory, ignore_errors=True)
        number += 1
        if options.only is not None:
            break
    shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(record.document(), indent=2))
    return 1 if record.violations else 0


def _not_sockets(directory: str, names: list[str]) -> set[str]:
    return {name for name in names if (Path(directory) / name).is_socket()}


if __name__ == "__main__":
    sys.exit(main())
