"""Prepare a release: ``scripts/release.py 0.1.0`` sets the version and writes the changelog.

The version's one source is ``jupyter_gpushare/_version.py``. Some tools can only read their own
files, so those repeat it, and nobody writes them by hand. ``--check v0.2.0`` looks whether all is
ready to be published under that tag; the release workflow does so first.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?")
HEADING = re.compile(r"^## .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """A file that says the version; the only group of ``pattern`` is what it says."""

    file: str
    pattern: re.Pattern[str]

    def read(self, root: Path) -> str:
        """What it says. Raises :class:`LookupError` if nothing."""
        found = self.pattern.search((root / self.file).read_text("utf-8"))
        if found is None:
            raise LookupError(f"{self.file} does not say {self.pattern.pattern}.")
        return found[1]

    def write(self, root: Path, value: str) -> None:
        """Let it say ``value``; the rest stays."""
        self.read(root)
        path = root / self.file
        text = path.read_text("utf-8")
        found = self.pattern.search(text)
        assert found is not None
        path.write_text(text[: found.start(1)] + value + text[found.end(1) :], "utf-8")


SOURCE = Place("jupyter_gpushare/_version.py", re.compile(r'^__version__ = "(.+)"$', re.M))
CLIENT = Place("pyproject.toml", re.compile(r'^  "jupyter-gpushare-client==(.+)",$', re.M))
NPM = Place("labextension/package.json", re.compile(r'^  "version": "(.+)",$', re.M))
#: Helm wants a version of three numbers for the chart, and the images' tag is ours.
CHART = Place("etc/deploy/chart/Chart.yaml", re.compile(r"^version: (.+)$", re.M))
APP = Place("etc/deploy/chart/Chart.yaml", re.compile(r"^appVersion: (.+)$", re.M))
CITATION = Place("CITATION.cff", re.compile(r"^version: (.+)$", re.M))
#: The version, with the day of its release where there was one.
CITED = Place("CITATION.cff", re.compile(r'^(version: .+\n(?:date-released: ".+"\n)?)', re.M))
#: The first release has a section of its own, above the mark below which releases come.
FIRST = re.compile(r"## Unreleased\n(.*?)(<!-- towncrier: releases -->\n\s*## [^\n]+\n)", re.S)


def npm_version(version: str) -> str:
    """How npm writes a version of ours: 1.2.0rc1 is 1.2.0-rc.1 there."""
    kinds = {"a": "alpha", "b": "beta", "rc": "rc", ".dev": "dev"}
    return re.sub(r"(a|b|rc|\.dev)(\d+)$", lambda m: f"-{kinds[m[1]]}.{m[2]}", version)


def prepare(version: str, day: datetime.date, root: Path = ROOT) -> None:
    """Everything that a release changes in the repository."""
    SOURCE.write(root, version)
    CLIENT.write(root, version)
    NPM.write(root, npm_version(version))
    CHART.write(root, npm_version(version))
    APP.write(root, version)
    CITED.write(root, f'version: {version}\ndate-released: "{day}"\n')
    towncrier = [sys.executable, "-m", "towncrier", "build", "--yes"]
    subprocess.run([*towncrier, f"--version={version}", f"--date={day}"], cwd=root, check=True)
    log = root / "CHANGELOG.md"
    log.write_text(FIRST.sub(r"\2\1", log.read_text("utf-8")).rstrip() + "\n", "utf-8")


def problems(root: Path = ROOT) -> list[str]:
    """Where the repository does not agree with itself about its version."""
    version = SOURCE.read(root)
    npm = npm_version(version)
    wanted = {CLIENT: version, NPM: npm, CITATION: version, CHART: npm, APP: version}
    found = [
        f"{place.file} says {place.read(root)} instead of {value}."
        for place, value in wanted.items()
        if place.read(root) != value
    ]
    newest = HEADING.search((root / "CHANGELOG.md").read_text("utf-8"))
    said = newest[0] if newest else "nothing"
    day = CITED.read(root).partition('date-released: "')[2].partition('"')[0]
    released = f"## {version} ({day})" if day else "## Unreleased"
    if said != released:
        found.append(f"CHANGELOG.md begins with {said} instead of {released}.")
    return found


def unready(tag: str, root: Path = ROOT) -> list[str]:
    """Why this must not be published under ``tag``."""
    version = SOURCE.read(root)
    found = problems(root)
    if "date-released" not in CITED.read(root):
        found.append("It is not released yet: run scripts/release.py.")
    if tag != f"v{version}":
        found.append(
            f"The tag is {tag}, and the version is {version}: run scripts/release.py first, or tag "
            "the commit that it made (RELEASE.md)."
        )
    left = sorted(path.name for path in (root / "changes").iterdir() if path.name != "README.md")
    if left:
        found.append(f"These are not in the changelog yet: {', '.join(left)}.")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", help="what to release, such as 0.1.0 or 0.1.0rc1")
    parser.add_argument("--date", type=datetime.date.fromisoformat, default=datetime.date.today())
    parser.add_argument("--check", metavar="TAG", help="change nothing; is TAG ready?")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        found = unready(chosen.check)
        print("\n".join(found) or "Ready.")
        return 1 if found else 0
    if not VERSION.fullmatch(chosen.version or ""):
        parser.error("name a version such as 0.1.0, 0.1.0rc1 or 0.2.0.dev0")
    prepare(chosen.version, chosen.date)
    print("Look at `git diff`, then commit: RELEASE.md says what comes next.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
