"""Without the satellites' folders everything else works; only their verbs are missing."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from support.bare import PACKAGE, SATELLITES
from support.livenode import LiveNode
from support.warm import COLD
from support.wheels import run

from jupyter_gpushare.cli.app import GpuShareApp
from jupyter_gpushare.satellites import VERBS


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place to import from, with a copy of the package that has no satellite."""
    place = tmp_path_factory.mktemp("bare")

    def without(folder: str, names: list[str]) -> set[str]:
        return {"labextension", *SATELLITES} if Path(folder) == PACKAGE else set()

    shutil.copytree(PACKAGE, place / "jupyter_gpushare", ignore=without)
    return place


def test_a_node_manager_serves_and_only_the_satellites_verbs_are_missing(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Python looks first where it is started
    node = LiveNode(tmp_path)
    node.environ |= {"PYTHONPATH": str(bare), COLD: "1"}
    with node:
        assert "24 GiB free" in node.cli("status").stdout
        examined = json.loads(node.cli("doctor", "--json").stdout)["checks"]
        assert "ok" in [one["level"] for one in examined if one["name"] == "node manager"]
        help_ = node.cli("--help").stdout
        refused = node.cli("sweep", "--list")
    told = {line.split()[0] for line in help_.splitlines() if line.startswith("  ")}
    assert set(GpuShareApp.subcommands) - told == set(VERBS)
    assert "`jupyter gpushare sweep` is not in" in refused.stderr


def test_the_servers_load_and_the_hub_says_that_it_has_no_pool(bare: Path) -> None:
    code = (
        "import asyncio, jupyter_gpushare.server.extension as it\n"
        "from jupyter_gpushare.hub import app, setup\n"
        "print(it.__file__)\n"
        "try: asyncio.run(app.GpuShareHub()._pool(None))\n"
        "except SystemExit as said: print(said)\n"
    )
    place, said = run(sys.executable, "-c", code, PYTHONPATH=str(bare)).splitlines()
    assert place.startswith(str(bare))
    assert "no pool is installed here" in said
