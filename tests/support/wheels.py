"""Wheels that are built from the tree, and environments to install them into."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def attempt(
    *command: str | Path, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_GPUSHARE")}
    beside = str(Path(sys.executable).parent)  # where jlpm is, if the UI has to be built
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={
            **kept,
            "PATH": os.pathsep.join((beside, kept.get("PATH", os.defpath))),
            "PYTHONDONTWRITEBYTECODE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=110,
    )


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = attempt(*command, cwd=cwd, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call_hook(hook: str, target: Path) -> tuple[str | Path, ...]:
    """Return the command that calls a hook of the build backend, as pip does, but offline."""
    code = f"import hatchling.build, sys; print(hatchling.build.{hook}(sys.argv[1]))"
    return (sys.executable, "-c", code, target)


def build(source: Path, target: Path, hook: str, **environment: str) -> Path:
    return target / run(*call_hook(hook, target), cwd=source, **environment).splitlines()[-1]


def files_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees this one's packages, but not its start-up files."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        return self.root / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"

    def files(self) -> set[Path]:
        return {path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file()}

    def pip(self, *arguments: str | Path) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, *arguments)

    def ask(self, code: str, **environment: str) -> str:
        return run(self.python, "-c", code, cwd=self.root, **environment)

    def link(self, *distributions: str) -> None:
        """Give it these distributions of the tests' own environment, and what they need."""
        for name in closure(distributions):
            found = importlib.metadata.distribution(name)
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(found.locate_file(top))


def closure(distributions: Iterable[str]) -> set[str]:
    """The names of these distributions and of all that they need here."""
    found: set[str] = set()
    left = list(distributions)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                left.append(need.name)
    return found


def make_environment(root: Path) -> Environment:
    """A virtual environment with nothing in it."""
    run(sys.executable, "-m", "venv", "--without-pip", root)
    return Environment(root)


def kernel_spec(environment: Environment, tmp_path: Path, name: str = "python3") -> Path:
    """A kernel that runs in this environment."""
    spec = tmp_path / "share" / "kernels" / name
    spec.mkdir(parents=True)
    argv = [str(environment.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Python", "language": "python"})
    )
    return spec.parents[1]
