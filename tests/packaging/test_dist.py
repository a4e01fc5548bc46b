"""People start from a wheel that they make, for the package is not on PyPI yet."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

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
