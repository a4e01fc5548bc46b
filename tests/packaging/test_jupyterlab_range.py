"""Each JupyterLab that we name is one that the prebuilt side says it fits.

`make matrix MATRIX=oldest` looks at the oldest one in a browser; this is quick, and notices when a
range is narrowed by an upgrade of what it is built with.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_builder.jupyterlab_semver import satisfies

ROOT = Path(__file__).parents[2]
PACKAGE = json.loads((ROOT / "labextension" / "package.json").read_text())

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
