"""Has all that our wheels need a wheel itself, for each CPython and each kind of machine?

``make wheels``. uv resolves the newest versions for each of them and says which wheels there are;
nothing is downloaded or built. The exit status is 1 when one is missing for a Python that
``pyproject.toml`` names; later Pythons are only told of.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix import BIN, ROOT, commit, metadata_of, needs_of, today, wheels_in, with_part

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
MACHINES = ("x86_64", "aarch64")
#: What every Linux of these years has: Debian 10, RHEL 8.
PLATFORM = "manylinux_2_28"


@dataclass(frozen=True, slots=True)
class Package:
    """One package that is installed with ours; ``has_wheel`` there, not only a source to build."""

    name: str
    version: str
    has_wheel: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What is installed with us on one Python and machine; ``error`` when nobody knows."""

    python: str
    machine: str
    packages: tuple[Package, ...] = ()
    error: str = ""

    def missing(self) -> list[str]:
        """Those without a wheel."""
        return [f"{one.name} {one.version}" for one in self.packages if not one.has_wheel]


# -- what is decided without asking anybody --------------------------------------------------------


def packages_of(lock: Mapping[str, Any]) -> tuple[Package, ...]:
    """The packages of a ``pylock.toml``, which lists only the wheels that fit."""
    return tuple(
        Package(one["name"], one["version"], bool(one.get("wheels"))) for one in lock["packages"]
    )


def supported(project: Mapping[str, Any]) -> set[str]:
    """The Pythons that ``pyproject.toml`` names."""
    begin = "Programming Language :: Python :: 3."
    named = [line for line in project["project"]["classifiers"] if line.startswith(begin)]
    return {line.rpartition(" ")[2] for line in named}


def table(found: Sequence[Found]) -> str:
    """What is missing, in Markdown."""
    lines = [
        f"| CPython | machine | packages | without a wheel for {PLATFORM} |",
        "|---|---|---|---|",
    ]
    for one in found:
        told = one.error or ", ".join(one.missing()) or "none"
        lines.append(f"| {one.python} | {one.machine} | {len(one.packages)} | {told} |")
    return "\n".join(lines)


def failed(found: Sequence[Found], pythons: set[str]) -> bool:
    """Whether something is missing, or not known, for one of these Pythons."""
    return any((one.missing() or one.error) and one.python in pythons for one in found)


# -- what is asked ---------------------------------------------------------------------------------


def resolve(needs: Sequence[str], python: str, machine: str) -> Found:
    """Ask the package index, by uv."""
    done = subprocess.run(
        [
            *(str(BIN / "uv"), "pip", "compile", "-", "--quiet", "--format=pylock.toml"),
            *(f"--python-version={python}", f"--python-platform={machine}-{PLATFORM}"),
        ],
        input="\n".join(needs),
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = " ".join(done.stderr.split())
        return Found(python, machine, error=f"not known: {told}")
    return Found(python, machine, packages_of(tomllib.loads(done.stdout)))


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where our wheels are")
    parser.add_argument("--page", type=Path, help="write the table into this page, too")
    chosen = parser.parse_args()
    needs = needs_of(map(metadata_of, wheels_in(chosen.dist)))
    found = [resolve(needs, python, machine) for python in PYTHONS for machine in MACHINES]
    told = table(found)
    print(told)
    if chosen.page is not None:
        text = f"Asked {today()} at commit {commit()}.\n\n{told}"
        chosen.page.write_text(with_part(chosen.page.read_text(), "wheels", text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return 1 if failed(found, supported(project)) else 0


if __name__ == "__main__":
    sys.exit(main())
