"""What a target of the Makefile installs is enough for what it runs; nothing is installed here.

``make test-afresh`` plays the tour and the demos in environments that only their targets made. It
takes minutes, so this compares beforehand: what make would install (`make -n` says it), with all
that it needs in turn, and what the scripts, the tour and the verbs that they call import.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = "jupyter_gpushare"
#: Imported only where somebody has it, and done without elsewhere.
OPTIONAL = {
    "argcomplete": "completes words in a shell",
    "cuda": "the driver's own parking, which needs a driver",
    "pandas": "results as a DataFrame",
    "ray": "sweeps over many hosts",
}
#: Whose code it is that imports them decides: a script of ours needs them, the product serves who
#: has them.
FRAMEWORKS = {"cupy", "jax", "keras", "numpy", "scipy", "tensorflow", "torch"}
#: Distributions that provide a module of another name, and may not be installed here.
PROVIDES = {"pyyaml": "yaml", "scikit-learn": "sklearn", "nvidia-ml-py": "pynvml"}
#: Each kernel loads the magics, and the tour calls all of them.
MAGICS = "jupyter_gpushare.client.cell.magics"
TARGETS = ("lab", "tour", "demo", "demo-parking", "demo-turns", "demo-qos", "demo-pool")


# -- what is installed -----------------------------------------------------------------------------


@functools.cache
def told_by_make(target: str) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """What make would install in a new environment, and the scripts that it would run."""
    line = ["make", "-n", "-B", "PYTHON=python3", "VENV=build/nowhere", "--no-print-directory"]
    said = subprocess.run([*line, target], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted: list[str] = []
    scripts = []
    for command in re.findall(r"build/nowhere/bin/python (\S+\.py)(.*)", said.stdout):
        if command[0] == "scripts/packages.py":
            wanted += [word for word in shlex.split(command[1]) if not word.startswith("-")]
        else:
            scripts.append(ROOT / command[0])
    return tuple(wanted), tuple(scripts)


def _ours(extras: set[str]) -> list[str]:
    optional = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(need for extra in extras for need in optional[extra])]


def installed(wanted: tuple[str, ...]) -> set[str]:
    """All distributions that requirements bring, with what those need in turn.

    What is not installed here has needs that nobody here knows.
    """
    found: dict[str, set[str]] = {}
    left = [re.sub(r"^\./?(client)?", OURS, one) if one[0] == "." else one for one in wanted]
    while left:
        need = Requirement(left.pop())
        name = canonicalize_name(need.name)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        new = need.extras - found.get(name, set())
        if name in found and not new:
            continue
        found.setdefault(name, set()).update(new)
        if name == canonicalize_name(OURS):
            left += _ours(new)
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in needs:
            one = Requirement(text)
            marker = one.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in {"", *new}):
                one.marker = None
                left.append(str(one))
    return set(found)


@functools.cache
def modules_of(distributions: frozenset[str]) -> set[str]:
    """The modules at the top that these provide."""
    here = importlib.metadata.packages_distributions()
    provided = {
        module
        for module, names in here.items()
        if distributions & {canonicalize_name(name) for name in names}
    }
    return provided | {PROVIDES.get(name, name.replace("-", "_")) for name in distributions}


# -- what is imported ------------------------------------------------------------------------------


@functools.cache
def named_in(path: Path) -> tuple[tuple[str, int], ...]:
    """What a file names in imports, and the modules of the verbs that a script of ours calls."""
    text = path.read_text("utf-8")
    verbs = () if path.is_relative_to(ROOT / OURS) else called(text)
    return (*imports(text), *((name, 0) for name in verbs))


def imports(text: str) -> Iterator[tuple[str, int]]:
    """The modules that a source names in imports at any depth, in `import_module`, in strings that
    are programs, and as ``"jupyter_gpushare.…"``; with the level of a relative import."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names):
                yield from ((alias.name, 0) for alias in names)
            case ast.ImportFrom(module, names, level):
                base = f"{module}." if module else ""
                yield from ((base + alias.name, level) for alias in names)
            case ast.Call(ast.Name("import_module"), [ast.Constant(str(name)), *_]):
                yield name, 0
            case ast.Constant(str(said)) if re.fullmatch(rf"{OURS}(\.\w+)+", said):
                yield said, 0
            case ast.Constant(str(said)) if re.search(r"^\s*(import|from) \w", said, re.M):
                lines = [line for line in said.splitlines() if not line.startswith("%")]
                try:
                    yield from imports("\n".join(lines))
                except SyntaxError:
                    continue  # a sentence


@functools.cache
def verbs() -> dict[str, str]:
    """The verbs of the command line, and of ``pool``, and the module of each."""
    from jupyter_gpushare.cli.app import GpuShareApp
    from jupyter_gpushare.pool.verbs import PoolApp

    every = {**GpuShareApp.subcommands, **PoolApp.subcommands}
    return {verb: f"{OURS}.{place[0].rpartition('.')[0]}" for verb, place in every.items()}


def called(text: str) -> Iterator[str]:
    """The modules of the verbs that a script may call: those that it names as words."""
    if "CLI" in text:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and node.value in verbs():
                yield verbs()[node.value]


def file_of(module: str, beside: Path) -> Path | None:
    """The file of a module of ours, or ``None``; of ``a.b.name`` that of ``a.b``, if it is one."""
    parts = module.split(".")
    folders = (ROOT,) if parts[0] == OURS else (beside, ROOT / "tests", ROOT)
    for many in (parts, parts[:-1]):
        for folder in folders:
            place = folder.joinpath(*many)
            for found in (place.with_suffix(".py"), place / "__init__.py"):
                if many and found.is_file():
                    return found
    return None


def needed(scripts: tuple[Path, ...], modules: tuple[str, ...] = ()) -> dict[str, str]:
    """The modules of others that these need, and a file that says so for each."""
    found: dict[str, str] = {}
    left = [*scripts, *(file_of(name, ROOT) for name in modules)]
    seen = {ROOT / OURS / "__init__.py"}  # it names all, and imports what is asked of it
    while left:
        path = left.pop()
        if path is None or path in seen:
            continue
        seen.add(path)
        is_ours = path.is_relative_to(ROOT / OURS)
        for name, level in named_in(path):
            if level:
                above = path.relative_to(ROOT).parts[:-level]
                name = ".".join((*above, name))
            top = name.partition(".")[0]
            inside = file_of(name, path.parent)
            if inside is not None:
                left.append(inside)
            elif top in sys.stdlib_module_names or top == OURS:
                continue
            elif not (is_ours and (top in FRAMEWORKS or top in OPTIONAL)):
                found.setdefault(top, str(path.relative_to(ROOT)))
    return found


# -- the tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_installs_what_it_runs(target: str) -> None:
    wanted, scripts = told_by_make(target)
    assert scripts
    there = modules_of(frozenset(installed(wanted)))
    lacks = {name: by for name, by in needed(scripts, (MAGICS,)).items() if name not in there}
    assert lacks == {}


def test_what_is_needed_is_seen() -> None:
    """The comparison sees what a demo of old lacked."""
    _, scripts = told_by_make("demo-pool")
    assert needed(scripts)["cryptography"].startswith(f"{OURS}/pool/")
    assert needed((), (MAGICS,))["cloudpickle"].startswith(f"{OURS}/predict/")
    plain = modules_of(frozenset(installed((".",))))
    assert {"tornado", "msgspec"} <= plain
    assert not {"cryptography", "cloudpickle", "torch"} & plain


def test_the_demo_over_many_hosts_has_ray() -> None:
    """It starts Ray as a program, which nobody imports."""
    assert "ray" in installed(told_by_make("demo-pool")[0])
