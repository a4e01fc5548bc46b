"""Install the built wheels beside old and new versions of what they need, and use them.

``make matrix`` builds the wheels and runs every row of :data:`ROWS`: a fresh virtual environment,
``jupyter gpushare doctor``, a Jupyter server, a kernel that imports torch, the panel in a browser,
a JupyterHub. ``scripts/matrix.py --list`` prints the rows. It ends with a table of the versions
that were really installed and of what happened; the exit status is 1 when a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.parser import HeaderParser
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import commit, today  # noqa: E402

UI_TESTS = ROOT / "labextension" / "ui-tests"
BIN = Path(sys.executable).parent
#: Seconds that a step may take; nothing but a step that hangs takes so long.
PATIENCE = 1800.0
#: The exit status of a probe that cannot do its work here, and says why in its last line.
CANNOT = 77
#: The version of a package in a row: the newest that there is.
NEWEST = ""


class Step(Enum):
    """What a row does, in this order."""

    INSTALL = "install"
    DOCTOR = "doctor"
    SERVER = "server"
    KERNEL = "kernel"
    PANEL = "panel"
    HUB = "hub"


class Outcome(Enum):
    """How a step ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Row:
    """One environment: ``packages`` says which versions are wanted besides our wheels.

    ``lowest``: all that our wheels ask for is as old as they allow.
    """

    name: str
    python: str
    packages: Mapping[str, str]
    steps: tuple[Step, ...]
    lowest: bool = False

    def requirements(self) -> list[str]:
        """``packages`` as pip writes them."""
        return [
            f"{name}=={version}" if version else name for name, version in self.packages.items()
        ]


_LAB = (Step.INSTALL, Step.DOCTOR, Step.SERVER, Step.KERNEL, Step.PANEL)
_HUB = (Step.INSTALL, Step.DOCTOR, Step.HUB)
_OLD_LAB = {"jupyterlab": "4.2.*", "notebook": "7.2.*"}
_NEW_LAB = {"jupyterlab": NEWEST, "notebook": NEWEST}
_OLD_SERVER = {"jupyter-server": "2.16.*", "ipykernel": "6.*"}
#: Newer ones ask for a newer psutil and tornado than we do.
_OLD_REST = {"ipython": "8.37.*", "jupyter-client": "8.6.*"}
_NEW_SERVER = {"jupyter-server": NEWEST, "ipykernel": NEWEST}

#: Not every combination: together they have each Python, and the oldest and newest of each package.
ROWS = (
    Row("oldest", "3.11", _OLD_LAB | _OLD_SERVER | _OLD_REST, _LAB, lowest=True),
    Row("old-lab", "3.12", _OLD_LAB | _NEW_SERVER | {"ipykernel": "7.*"}, _LAB),
    Row("old-server", "3.12", _NEW_LAB | _OLD_SERVER, _LAB),
    Row("newest", "3.13", _NEW_LAB | _NEW_SERVER, _LAB),
    Row("newest-3.14", "3.14", _NEW_LAB | _NEW_SERVER, _LAB),
    Row(
        "hub-oldest",
        "3.11",
        {"jupyterhub": "5.3.*"} | _OLD_LAB | _OLD_SERVER | _OLD_REST,
        _HUB,
        lowest=True,
    ),
    Row("hub-newest", "3.12", {"jupyterhub": NEWEST, "jupyterlab": NEWEST} | _NEW_SERVER, _HUB),
)

#: What the probes speak HTTP and WebSocket with. The bounds are for ``lowest``.
PROBES = ("httpx>=0.27", "websocket-client>=1.8")
#: Columns of the table: how a package is called there, and its name for pip.
SHOWN = {
    "JupyterLab": "jupyterlab",
    "Notebook": "notebook",
    "JupyterHub": "jupyterhub",
    "jupyter_server": "jupyter-server",
    "ipykernel": "ipykernel",
    "torch": "torch",
}


@dataclass(frozen=True, slots=True)
class Result:
    """How one step of a row ended; ``text`` is what it found, or why it did not work."""

    step: Step
    outcome: Outcome
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """One row, done. ``versions`` by pip's names, and ``python``; ``measured``: when, and what."""

    row: Row
    versions: Mapping[str, str]
    results: tuple[Result, ...]
    measured: str = ""

    def seconds(self) -> float:
        """All of it."""
        return sum(result.seconds for result in self.results)


# -- what is decided without doing anything --------------------------------------------------------


def as_json(row: Row) -> dict[str, Any]:
    """A row as `--list --json` prints it."""
    return {**asdict(row), "steps": [step.value for step in row.steps]}


def report_as_json(report: Report) -> dict[str, Any]:
    """A report as it is kept for the page."""
    results = [
        {**asdict(one), "step": one.step.value, "outcome": one.outcome.value}
        for one in report.results
    ]
    kept = {"versions": dict(report.versions), "measured": report.measured}
    return {"row": report.row.name, **kept, "results": results}


def report_from_json(kept: Mapping[str, Any]) -> Report:
    """The other way round. Raises :class:`KeyError` for a row that is no more."""
    row = {row.name: row for row in ROWS}[kept["row"]]
    results = [
        Result(**{**one, "step": Step(one["step"]), "outcome": Outcome(one["outcome"])})
        for one in kept["results"]
    ]
    return Report(row, kept["versions"], tuple(results), kept["measured"])


def newest_of(
    before: Iterable[Mapping[str, Any]], now: Iterable[Report], needs: Iterable[str]
) -> list[Report]:
    """The last report of each row there is, with the versions that the page shows.

    ``before``: as a page's file has them, with rows that are no more. A report of a row that was
    skipped does not replace an older one of a run.
    """
    shown = {"python", *SHOWN.values(), *map(package_of, needs)}
    names = {row.name for row in ROWS}
    last = {kept["row"]: report_from_json(kept) for kept in before if kept["row"] in names}
    for report in now:
        if report.measured or report.row.name not in last:
            versions = {name: report.versions[name] for name in shown & report.versions.keys()}
            last[report.row.name] = replace(report, versions=versions)
    return [last[row.name] for row in ROWS if row.name in last]


def as_text(row: Row) -> str:
    """A row as `--list` prints it."""
    wanted = ", ".join(
        f"{name} {version or 'newest'}" for name, version in sorted(row.packages.items())
    )
    lowest = "; all that we depend on as old as allowed" if row.lowest else ""
    return f"{row.name:12} Python {row.python}: {wanted}{lowest}"


def chosen_rows(names: Sequence[str]) -> tuple[Row, ...]:
    """The rows with these names; all when none is named. Raises :class:`SystemExit`."""
    known = {row.name: row for row in ROWS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(
            f"There is no row {', '.join(unknown)} in the matrix. There are: {', '.join(known)}."
        )
    return tuple(known[name] for name in names) or ROWS


def needs_of(metadata: Iterable[str]) -> list[str]:
    """What wheels with these METADATA need without extras, except each other."""
    parsed = [HeaderParser().parsestr(text) for text in metadata]
    ours = {normal(str(one["Name"])) for one in parsed}
    needs = {
        need
        for one in parsed
        for need in one.get_all("Requires-Dist") or ()
        if not re.search(r"\bextra\s*==", need)
    }
    return sorted(need for need in needs if package_of(need) not in ours)


def package_of(requirement: str) -> str:
    """The package that a requirement names."""
    return normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def normal(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def failed(reports: Iterable[Report], required: bool) -> bool:
    """Whether anything went wrong; a step that was skipped has when all are ``required``."""
    bad = {Outcome.FAILED, Outcome.SKIPPED} if required else {Outcome.FAILED}
    return any(result.outcome in bad for report in reports for result in report.results)


def table(reports: Sequence[Report]) -> str:
    """All rows in Markdown, and below it the reasons of what was not ok."""
    steps = [step for step in Step if any(step in report.row.steps for report in reports)]
    heads = ["row", "Python", *SHOWN, *(step.value for step in steps), "seconds", "measured"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for report in reports:
        outcomes = {result.step: result.outcome.value for result in report.results}
        cells = [
            report.row.name,
            report.versions.get("python", report.row.python),
            *(report.versions.get(name, "") for name in SHOWN.values()),
            *(outcomes.get(step, "") for step in steps),
            f"{report.seconds():.0f}",
            report.measured,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    reasons = [
        f"- {report.row.name}, {result.step.value}: {result.outcome.value}. {result.text}"
        for report in reports
        for result in report.results
        if result.outcome is not Outcome.OK and result.text
    ]
    return "\n".join([*lines, *([""] if reasons else []), *reasons])


def dependencies_table(reports: Sequence[Report], needs: Sequence[str]) -> str:
    """Which versions of what our wheels need the rows had, in Markdown."""
    heads = ["what we need", *(report.row.name for report in reports)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for need in needs:
        found = [report.versions.get(package_of(need), "") for report in reports]
        lines.append(f"| {' | '.join([f'`{need}`', *found])} |")
    return "\n".join(lines)


def with_part(page: str, name: str, text: str) -> str:
    """``page`` with ``text`` between the two comments that mark the part ``name``."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the page lacks {begin.strip()} or {end}")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


# -- what is done ----------------------------------------------------------------------------------


def wheels_in(dist: Path) -> list[Path]:
    """Our wheels, built. Raises :class:`SystemExit` when there is none."""
    wheels = sorted(dist.glob("*.whl"))
    if not wheels:
        raise SystemExit(f"There is no wheel in {dist}: build it with `make dist`.")
    return wheels


def metadata_of(wheel: Path) -> str:
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(name).decode()


def find_python(version: str) -> str | None:
    """A Python ``3.x`` that runs, from PATH or from pyenv; None when there is none here."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    kept = sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))
    found = [shutil.which(f"python{version}"), *kept]
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, found):
        # (A shim of pyenv is there for each version that is not switched on, too.)
        told = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout.strip() == version:
            return candidate
    return None


def plain_environ(**more: str) -> dict[str, str]:
    """This process's environment without what would lead another Python to our packages."""
    mine = ("PYTHON", "JUPYTER", "JPY_", "VIRTUAL_ENV", "IPYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**kept, **more}


@dataclass(frozen=True, slots=True)
class Runner:
    """Carries out rows in ``folder``; ``torch`` is its requirement."""

    folder: Path
    dist: Path
    torch: str
    measured: str = ""

    def run(self, row: Row) -> Report:
        """Do all steps; those after an install that failed are skipped."""
        place = Place(self.folder / row.name, row)
        interpreter = find_python(row.python)
        if interpreter is None:
            why = f"There is no Python {row.python} here: install it, or put it on PATH."
            print(f"{row.name}: SKIPPED. {why}", flush=True)
            first, *others = row.steps
            skipped = [Result(step, Outcome.SKIPPED) for step in others]
            report = Report(row, {}, (Result(first, Outcome.SKIPPED, why), *skipped))
            if not place.report.exists():
                place.keep(report)
            return report
        place.clear()
        results: list[Result] = []
        versions: dict[str, str] = {}
        for step in row.steps:
            if results and results[0].outcome is not Outcome.OK:
                results.append(Result(step, Outcome.SKIPPED))
                continue
            print(f"{row.name}: {step.value} …", flush=True)
            began = time.monotonic()
            outcome, text = self._do(step, place, interpreter, versions)
            results.append(Result(step, outcome, text, time.monotonic() - began))
            print(f"{row.name}: {step.value} {outcome.value}. {text}", flush=True)
            if outcome is Outcome.FAILED:
                print(place.tail(step), flush=True)
            if step is Step.INSTALL and outcome is Outcome.OK:
                versions = place.versions()
        report = Report(row, versions, tuple(results), self.measured)
        place.keep(report)
        return report

    def kept(self) -> list[Report]:
        """The last report of each row that was ever run here."""
        places = [Place(self.folder / row.name, row) for row in ROWS]
        found = [place.report for place in places if place.report.exists()]
        return [report_from_json(json.loads(path.read_text())) for path in found]

    def _do(
        self, step: Step, place: Place, interpreter: str, versions: Mapping[str, str]
    ) -> tuple[Outcome, str]:
        match step:
            case Step.INSTALL:
                return self._install(place, interpreter)
            case Step.DOCTOR:
                return place.told(step, [place.program("jupyter"), "gpushare", "doctor"])
            case Step.PANEL:
                return self._look_at_panel(place, versions)
            case Step.SERVER | Step.KERNEL | Step.HUB:
                probe = str(ROOT / "scripts" / "matrix_probe.py")
                return place.told(step, [place.program("python"), probe, step.value])

    def _install(self, place: Place, interpreter: str) -> tuple[Outcome, str]:
        wheels = wheels_in(self.dist)
        wanted = [*map(str, wheels), *place.row.requirements(), *PROBES]
        if place.row.lowest:
            # What is named here is taken as old as it may be, what those need as new as it may be.
            wanted += ["--resolution=lowest-direct", *needs_of(map(metadata_of, wheels))]
        uv = str(BIN / "uv")
        at = ["--python", place.program("python")]
        install = [uv, "pip", "install", *at]
        torch = [*install, self.torch, "numpy"]
        commands = [
            [uv, "venv", "--clear", "--no-python-downloads", "--python", interpreter, place.venv],
            [*install, "--compile-bytecode", "--find-links", str(self.dist), *wanted],
        ]
        for command in commands:
            if place.call(Step.INSTALL, command):
                return Outcome.FAILED, "Not everything could be installed."
        # The CPU build is a tenth of the size. It has an index of its own, which not all can reach.
        if place.call(Step.INSTALL, [*torch, "--torch-backend=cpu"], UV_HTTP_RETRIES="0") and (
            place.call(Step.INSTALL, torch)
        ):
            return Outcome.FAILED, f"{self.torch} could not be installed."
        return Outcome.OK, ", ".join(wheel.name for wheel in wheels)

    def _look_at_panel(self, place: Place, versions: Mapping[str, str]) -> tuple[Outcome, str]:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        if chromium is None:
            return Outcome.SKIPPED, "There is no chromium: install it, or name it with CHROMIUM."
        status = place.call(
            Step.PANEL,
            ["jlpm", "playwright", "test", "-c", "versions.config.ts"],
            folder=UI_TESTS,
            PATH=os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath))),
            PYTHON=place.program("python"),
            CHROMIUM=chromium,
            JUPYTERLAB_VERSION=versions["jupyterlab"],
            NOTEBOOK_VERSION=versions["notebook"],
        )
        passed = re.findall(r"^ +(\d+ passed)", place.log(Step.PANEL).read_text(), re.MULTILINE)
        if status or not passed:
            return Outcome.FAILED, "The tests in a browser did not pass."
        return Outcome.OK, f"{passed[-1]} in a browser."


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one row: its environment, its home, a log for each step."""

    folder: Path
    row: Row

    @property
    def venv(self) -> str:
        return str(self.folder / "venv")

    def program(self, name: str) -> str:
        """A program of the environment."""
        return f"{self.venv}/bin/{name}"

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    def keep(self, report: Report) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.report.write_text(json.dumps(report_as_json(report)))

    def log(self, step: Step) -> Path:
        return self.folder / f"{step.value}.log"

    def tail(self, step: Step, lines: int = 60) -> str:
        told = self.log(step).read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in told[-lines:])

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "home").mkdir(parents=True)

    def versions(self) -> dict[str, str]:
        """What is installed."""
        code = (
            "import importlib.metadata as m, json, platform;"
            "found = {d.metadata['Name']: d.version for d in m.distributions()};"
            "print(json.dumps({**found, 'python': platform.python_version()}))"
        )
        told = subprocess.run(
            [self.program("python"), "-I", "-c", code], capture_output=True, text=True, check=True
        )
        return {normal(name): version for name, version in json.loads(told.stdout).items()}

    def told(self, step: Step, command: Sequence[str]) -> tuple[Outcome, str]:
        """Run it in a home of its own; its last line is what it has to say."""
        path = os.pathsep.join((f"{self.venv}/bin", os.environ.get("PATH", os.defpath)))
        status = self.call(step, command, PATH=path, HOME=str(self.folder / "home"))
        (*_, said) = ["", *self.log(step).read_text(errors="replace").strip().splitlines()]
        outcomes = {0: Outcome.OK, CANNOT: Outcome.SKIPPED}
        return outcomes.get(status, Outcome.FAILED), said.strip()

    def call(
        self, step: Step, command: Sequence[str], folder: Path | None = None, **environ: str
    ) -> int:
        """Run a command and add what it says to the step's log; its exit status."""
        with self.log(step).open("a") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command,
                cwd=folder or self.folder,
                env=plain_environ(**environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                log.write(f"It was ended after {PATIENCE:.0f} s.\n")
                return 124
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="their names (default: all)")
    parser.add_argument("--list", action="store_true", help="print the rows and do nothing")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    parser.add_argument("--require", action="store_true", help="what is skipped has failed")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where our wheels are")
    parser.add_argument("--torch", default="torch", help="its requirement")
    parser.add_argument(
        "--page",
        type=Path,
        help="write the last result of each row into it; those of other trees are in the JSON file "
        "beside it",
    )
    chosen = parser.parse_args()
    rows = chosen_rows(chosen.rows)
    if chosen.list:
        listed = [as_json(row) for row in rows]
        print(json.dumps(listed) if chosen.json else "\n".join(map(as_text, rows)))
        return 0
    needs = needs_of(map(metadata_of, wheels_in(chosen.dist)))
    runner = Runner(
        ROOT / "build" / "matrix", chosen.dist.resolve(), chosen.torch, f"{today()} {commit()}"
    )
    reports = [runner.run(row) for row in rows]
    told = table(reports)
    print(f"\n{told}")
    if chosen.page is not None:
        data = chosen.page.with_suffix(".json")
        rows_before = json.loads(data.read_text()) if data.exists() else []
        kept = newest_of(rows_before, runner.kept(), needs)
        data.write_text(json.dumps(list(map(report_as_json, kept)), indent=1) + "\n")
        tables = f"{table(kept)}\n\n{dependencies_table(kept, needs)}"
        chosen.page.write_text(with_part(chosen.page.read_text(), "matrix", tables))
    return 1 if failed(reports, chosen.require) else 0


if __name__ == "__main__":
    sys.exit(main())
