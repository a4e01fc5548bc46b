"""Run test suites one after the other, and end with the summary lines of each.

``scripts/suites.py pytest jest playwright``. All of them run, whatever the first ones say; the
exit status is 1 when any failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LABEXTENSION = ROOT / "labextension"
BIN = Path(sys.executable).parent
#: One more than processors: most tests wait for processes of their own. A file's tests stay
#: together, since they share what is made once for them. Workers beyond a few would only contend.
WORKERS = min(6, 1 + (os.cpu_count() or 1))
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
        (sys.executable, "-m", "pytest", f"--numprocesses={WORKERS}", "--dist=loadfile"),
        ROOT,
        re.compile(r"(=+ )?(\d+ \w+|no tests ran).* in [\d.]+s.*"),
    ),
    "jest": Suite(
        (str(BIN / "jlpm"), "jest", "--ci", "--maxWorkers=2"),
        LABEXTENSION,
        re.compile(r"(Test Suites|Tests|Snapshots|Time): .*"),
    ),
    "playwright": Suite(
        (str(BIN / "jlpm"), "playwright", "test"),
        LABEXTENSION / "ui-tests",
        re.compile(r" +\d+ (passed|failed|flaky|skipped|interrupted|did not run).*"),
        {"CHROMIUM": os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"},
    ),
}


def run(suite: Suite, arguments: list[str]) -> tuple[bool, list[str]]:
    """Show its output as it comes; return whether it passed, and its summary lines."""
    lines: list[str] = []
    environ = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    with subprocess.Popen(
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
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if suite.summary.fullmatch(COLOUR.sub("", line).rstrip("\n")):
                lines.append(line)
    return process.returncode == 0, lines


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", choices=SUITES)
    for name in SUITES:
        parser.add_argument(f"--{name}", action="append", default=[], help=f"arguments for {name}")
    chosen = parser.parse_args()
    failed = []
    told = []
    for name in chosen.suites:
        print(f"\n{name} …", flush=True)
        passed, lines = run(SUITES[name], shlex.split(" ".join(getattr(chosen, name))))
        told.append((name, lines))
        if not passed:
            failed.append(name)
    if failed:
        print(f"\nFailed: {', '.join(failed)}; what they said is above.")
    for name, lines in told:
        print(f"\n{name}:")
        print("".join(lines) or "no summary: it did not get that far\n", end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
