"""The rows of `make matrix` cover each version that we promise.

The rows themselves need the network and minutes: `make matrix` runs them. Each JupyterLab that we
name is one that the prebuilt side says it fits, also when a range is narrowed by an upgrade of what
it is built with.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from jupyter_builder.jupyterlab_semver import satisfies

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import matrix
import wheels
from matrix import NEWEST, ROWS, Step

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = json.loads((ROOT / "labextension" / "package.json").read_text())
#: The oldest and the newest of each must be in a row. The panel's range is that of its own tests.
WANTED = {
    "jupyterlab": {"4.2.*", NEWEST},
    "notebook": {"7.2.*", NEWEST},
    "jupyterhub": {"5.3.*", NEWEST},
    "jupyter-server": {"2.16.*", NEWEST},
    "ipykernel": {"6.*", "7.*", NEWEST},
}


@pytest.mark.parametrize("package", WANTED)
def test_the_rows_have_the_oldest_and_the_newest_of(package: str) -> None:
    there = {row.packages[package] for row in ROWS if package in row.packages}
    assert there == WANTED[package]


def test_the_rows_have_each_python_that_we_name() -> None:
    named = wheels.supported(PROJECT)
    assert {row.python for row in ROWS} == named
    assert {"3.11", "3.12", "3.13"} <= named <= set(wheels.PYTHONS)


def test_the_rows_have_each_step_and_torch_in_a_kernel_of_each_python() -> None:
    assert {step for row in ROWS for step in row.steps} == set(Step)
    with_kernel = {row.python for row in ROWS if Step.KERNEL in row.steps}
    assert with_kernel == wheels.supported(PROJECT)


@pytest.mark.parametrize("package", ["jupyter-server", "ipykernel", "jupyterhub"])
def test_the_oldest_row_has_what_pyproject_allows(package: str) -> None:
    hub = PROJECT["project"]["optional-dependencies"]["hub"]
    all_needs = [*PROJECT["project"]["dependencies"], *hub]
    needs = {matrix.package_of(need): need for need in all_needs}
    (bound,) = re.findall(r">=([\d.]+)", needs[package])
    lowest = {row.packages[package] for row in ROWS if row.lowest and package in row.packages}
    assert all(bound.startswith(version.removesuffix(".*")) for version in lowest), (bound, lowest)


def test_the_list_is_json_that_a_workflow_can_read() -> None:
    listed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "matrix.py", "--list", "--json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [row["name"] for row in json.loads(listed)] == [row.name for row in ROWS]
    assert json.loads(listed)[0]["python"] == ROWS[0].python


def test_each_lower_bound_is_what_the_oldest_row_had() -> None:
    """A bound that nothing was tested with is a wish: raise it, or let the row reach it."""
    reports = json.loads((ROOT / "docs" / "versions.json").read_text())
    (oldest,) = [report for report in reports if report["row"] == "oldest"]
    assert oldest["measured"]
    for need in PROJECT["project"]["dependencies"]:
        (bound,) = re.findall(r">=([\d.]+)", need) or [None]
        if bound is not None:
            had = oldest["versions"][matrix.package_of(need)]
            assert f"{had}.".startswith(f"{bound}."), (need, had)


def test_the_page_of_versions_has_each_row() -> None:
    """Written by `make matrix ARGS="--page docs/versions.md"` when the rows changed."""
    page = (ROOT / "docs" / "versions.md").read_text()
    told = re.findall(r"^\| ([\w.-]+) \| 3\.", page, re.MULTILINE)
    assert told == [row.name for row in ROWS]


# -- the panel -------------------------------------------------------------------------------------

#: What JupyterLab 4.2.0 consists of, as its own package.json says.
OLDEST = {
    "@jupyterlab/application": "4.2.0",
    "@jupyterlab/apputils": "4.3.0",
    "@jupyterlab/coreutils": "6.2.0",
    "@jupyterlab/docmanager": "4.2.0",
    "@jupyterlab/notebook": "4.2.0",
    "@jupyterlab/running": "4.2.0",
    "@jupyterlab/services": "7.2.0",
    "@jupyterlab/settingregistry": "4.2.0",
    "@jupyterlab/statedb": "4.2.0",
    "@jupyterlab/statusbar": "4.2.0",
    "@jupyterlab/translation": "4.2.0",
    "@jupyterlab/ui-components": "4.2.0",
    "@lumino/commands": "2.3.0",
    "@lumino/coreutils": "2.1.2",
    "@lumino/disposable": "2.1.2",
    "@lumino/messaging": "2.0.1",
    "@lumino/polling": "2.1.2",
    "@lumino/signaling": "2.1.2",
    "@lumino/widgets": "2.3.2",
    "react": "18.2.0",
}
#: What JupyterLab has one copy of for everybody; the rest is our own.
SHARED = {
    name: wanted
    for name, wanted in PACKAGE["dependencies"].items()
    if name.startswith(("@jupyterlab/", "@lumino/")) or name == "react"
}


@pytest.mark.parametrize("name", SHARED)
def test_the_oldest_jupyterlab_is_within_the_range_of(name: str) -> None:
    assert name in OLDEST, f"{name}: add the version that JupyterLab 4.2.0 has, if it has one"
    assert satisfies(OLDEST[name], SHARED[name], False)


def test_the_installed_jupyterlab_lists_it_as_ok(tmp_path: Path) -> None:
    labextensions = tmp_path / "labextensions"
    labextensions.mkdir()
    (labextensions / PACKAGE["name"]).symlink_to(ROOT / "jupyter_gpushare" / "labextension")
    told = subprocess.run(
        [sys.executable, "-m", "jupyter", "labextension", "list"],
        env={**os.environ, "JUPYTER_PATH": str(tmp_path), "JUPYTER_NO_CONFIG": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    # Once as linked into the environment, perhaps, and once from here.
    mine = [line for line in told.splitlines() if PACKAGE["name"] in line]
    assert mine, told
    assert all(plain(line).endswith("enabled OK") for line in mine), told


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line).partition(" (")[0].strip()
