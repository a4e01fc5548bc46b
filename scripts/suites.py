"""Run test suites side by side, and end with the summary lines of each.

``scripts/suites.py pytest jest playwright``. Most tests wait for processes of their own, so one
suite uses what another leaves of the processors. What the first one says is shown as it comes, and
what each other one said when it has ended. All of them run, whatever the first ones say; the exit
status is 1 when any failed. With ``--later FILE`` what they said is kept for another call,
which tells it with ``--earlier FILE`` as if it had run them. With ``--began FILE``, whose date is
when all began, the time before this call is told too, as set-up and lint.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LABEXTENSION = ROOT / "labextension"
BIN = Path(sys.executable).parent
#: Four more than processors: many tests wait for processes of their own. Beyond a few, workers
#: would only contend.
WORKERS = min(8, 4 + (os.cpu_count() or 1))
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: With it each of the thousand processes that the tests start would compile the package anew.
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True, slots=True)
class Suite:
    """One runner, and how its own summary lines look."""

    command: tuple[str, ...]
    folder: Path
    summary: re.Pattern[str]
    environ: Mapping[str, str] = field(default_factory=dict)


SUITES = {
    "pytest": Suite(
        # tests/support/workers.py; tests/conftest.py says the order.
        (sys.executable, "-m", "pytest", f"--workers={WORKERS}"),
        ROOT,
        re.compile(r"(=+ )?(\d+ \w+|no tests ran).* in [\d.]+s.*|(FAILED|ERROR) \S+::.*"),
    ),
    "jest": Suite(
        (str(BIN / "jlpm"), "jest", "--ci", "--maxWorkers=2"),
        LABEXTENSION,
        re.compile(r"(Test Suites|Tests|Snapshots|Time): .*"),
    ),
    "playwright": Suite(
        # What `jlpm playwright` starts, without the seconds that jlpm takes to start.
        (str(LABEXTENSION / "ui-tests/node_modules/.bin/playwright"), "test"),
        LABEXTENSION / "ui-tests",
        # Where some failed, their names follow their number.
        re.compile(r" +(\d+ (passed|failed|flaky|skipped|interrupted|did not run)|\[\w+\] \S ).*"),
        {"CHROMIUM": os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"},
    ),
}


def run(
    suite: Suite, arguments: list[str], show: Callable[[str], object]
) -> tuple[bool, list[str]]:
    """Hand each line that it says to ``show``; return whether it passed, and its summary lines."""
    lines: list[str] = []
    began = time.monotonic()
    environ = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    process = subprocess.Popen(
        [*suite.command, *arguments],
        cwd=suite.folder,
        env={
            **environ,
            "PATH": os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath))),
            **suite.environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            show(line)
            if suite.summary.fullmatch(COLOUR.sub("", line).rstrip("\n")):
                lines.append(line)
    _, status, used = os.wait4(process.pid, 0)  # with what its own children used
    process.returncode = os.waitstatus_to_exitcode(status)
    spent = used.ru_utime + used.ru_stime
    lines.append(f"{time.monotonic() - began:.0f} s, {spent:.0f} s of a processor\n")
    return process.returncode == 0, lines


def run_all(chosen: Mapping[str, list[str]]) -> dict[str, tuple[bool, list[str]]]:
    """Run suites side by side, each with its arguments; as `run`, by name."""

    def live(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    first, *others = chosen
    said: dict[str, list[str]] = {name: [] for name in others}
    with ThreadPoolExecutor(len(chosen)) as pool:
        print(f"\n{' and '.join(chosen)} …", flush=True)
        running = {
            name: pool.submit(run, SUITES[name], given, said[name].append if name in said else live)
            for name, given in chosen.items()
        }
        outcomes = {first: running[first].result()}
        for name in others:
            outcomes[name] = running[name].result()
            print(f"\n{name} said:\n{''.join(said[name])}", flush=True)
    return outcomes


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", choices=SUITES)
    for name in SUITES:
        parser.add_argument(f"--{name}", action="append", default=[], help=f"arguments for {name}")
    parser.add_argument("--later", type=Path, help="keep the outcome here, and end with 0")
    parser.add_argument("--earlier", type=Path, help="an outcome that was kept")
    parser.add_argument("--began", type=Path, help="a file of the time when all began")
    chosen = parser.parse_args()
    if chosen.began:
        print(f"\nset-up and lint: {time.time() - chosen.began.stat().st_mtime:.0f} s")
    outcomes = json.loads(chosen.earlier.read_text("utf-8")) if chosen.earlier else {}
    given = {name: shlex.split(" ".join(getattr(chosen, name))) for name in chosen.suites}
    outcomes |= run_all(given)
    if chosen.later:
        chosen.later.write_text(json.dumps(outcomes), "utf-8")
        return 0
    if failed := [name for name, (passed, _) in outcomes.items() if not passed]:
        print(f"\nFailed: {', '.join(failed)}; what they said is above.")
    for name in (name for name in SUITES if name in outcomes):
        print(f"\n{name}:")
        print("".join(outcomes[name][1]) or "no summary: it did not get that far\n", end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
