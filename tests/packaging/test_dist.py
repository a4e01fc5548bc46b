"""People start from a wheel that they make, for the package is not on PyPI yet."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from jupyter_gpushare import __version__
from jupyter_gpushare.cli.systemd import PLACES
from jupyter_gpushare.hub.setup import SYSTEM_LEDGER, SYSTEM_POOL
from jupyter_gpushare.ledger.place import SPARE
from jupyter_gpushare.pool.configuration import SYSTEM_FOLDER
from jupyter_gpushare.protocol.address import SYSTEM_SOCKET

ROOT = Path(__file__).parents[2]


def test_make_dist_installs_what_builds_a_package_and_nothing_else(tmp_path: Path) -> None:
    """What make would do in a fresh clone; doing it takes a minute."""
    done = subprocess.run(
        ["make", "-n", f"VENV={tmp_path}/venv", "dist"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (*_, tools) = [line for line in done.stdout.splitlines() if "packages.py 'hatchling" in line]
    installed = set(re.findall(r"scripts/packages\.py ([^\n]+)", done.stdout))
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    asked = {part.strip("'") for line in installed for part in line.split() if part[0] == "'"}
    assert asked == set(wanted), tools
    assert "--editable" not in done.stdout


def test_nobody_is_told_to_install_it_by_its_name() -> None:
    by_name = re.compile(r"pip install (?:--?[\w-]+ )*[\"']?jupyter_gpushare(?![-\w])")
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "etc").rglob("*")]
    places += (ROOT / "jupyter_gpushare").rglob("*.py")
    wrong = {
        f"{place.relative_to(ROOT)}: {found[0]}"
        for place in places
        if place.is_file() and place.suffix in (".md", ".py", ".yaml", "")
        for found in by_name.finditer(place.read_text(encoding="utf-8"))
    }
    assert not wrong


def test_pip_hears_what_is_needed_before_it_builds(tmp_path: Path) -> None:
    """It is told within seconds that there is no client, not after the UI was built."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_PIP, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PIP_BUILD_TRACKER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    (told,) = tmp_path.glob("*.dist-info/METADATA")
    assert f"Requires-Dist: jupyter-gpushare-client=={__version__}" in told.read_text()
    assert done.stdout.split() == [told.parent.name, str(tmp_path)]


_AS_PIP = """
import os, sys
import hatch_build
assert hatch_build.build_wheel and hatch_build.prepare_metadata_for_build_editable
print(hatch_build.prepare_metadata_for_build_wheel(sys.argv[1]), os.environ["PIP_BUILD_TRACKER"])
"""


def test_the_page_on_removing_it_knows_every_place_of_ours() -> None:
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    folders = (SYSTEM_SOCKET, SYSTEM_LEDGER, f"{SYSTEM_POOL}/x", f"{SYSTEM_FOLDER}/x")
    for place in (*(os.path.dirname(path) for path in folders), *(f"{s}/" for s in SPARE)):
        assert place in page, place
    for place in PLACES.values():
        folder, name = os.path.split(place)
        assert f"/etc/{folder}/{os.path.splitext(name)[0]}" in page, place
    user = (ROOT / "etc" / "systemd" / "jupyter-gpushare.sysusers.conf").read_text()
    assert all(f"userdel {line.split()[1]}\n" in page for line in user.splitlines()[1:])
    told = json.loads((ROOT / "labextension" / "install.json").read_text())
    assert told["uninstallInstructions"].replace("pip uninstall", "pip uninstall -y") in page


def test_the_page_on_a_package_index_has_no_relative_link() -> None:
    told = ProjectMetadata(str(ROOT), PluginManager()).core
    assert told.readme_content_type == "text/markdown"
    targets = re.findall(r"\]\(([^)\s]+)\)", told.readme)
    assert len(targets) > 15
    source = told.urls["Source"]
    assert "![JupyterLab: import torch takes a GPU" in told.readme
    assert f"]({source}/raw/HEAD/docs/images/lab.png)" in told.readme
    for target in targets:
        assert re.match("https?://", target), target
        path = re.sub(rf"^{source}/(?:raw|blob)/HEAD/([^#]*).*", r"\1", target)
        assert (ROOT / path).exists(), target
    assert not re.search(r"<(?:img|a)\b", told.readme), "the hook knows links of Markdown only"
    client = (ROOT / "client" / "README.md").read_text()
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)\)", client))
