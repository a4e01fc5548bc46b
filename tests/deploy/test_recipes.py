"""The lines of the recipes for JupyterHub do what the recipes say."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config

from jupyter_gpushare.cli import hubchecks
from jupyter_gpushare.console.check import Level

DOCS = Path(__file__).parents[2] / "docs" / "deploy"
RECIPE = re.compile(r"<!-- recipe -->\n( *)```python\n(.*?)\n *```", re.DOTALL)


@pytest.mark.parametrize("page", ["one-host.md", "docker.md"])
def test_a_recipe_leaves_nothing_to_be_set(page: str, tmp_path: Path) -> None:
    ((_, code),) = RECIPE.findall((DOCS / page).read_text())
    c = Config()
    token = tmp_path / "hub-token"
    code = textwrap.dedent(code).replace("/etc/jupyter-gpushare/hub-token", str(token))
    exec(compile(code, page, "exec"), {"c": c})
    checks = list(hubchecks.configuration(c))
    assert [check for check in checks if check.level is not Level.OK] == []
    assert len(token.read_text().strip()) == 64


def test_what_dockerspawner_gets_is_what_it_takes(tmp_path: Path) -> None:
    dockerspawner: Any = pytest.importorskip("dockerspawner")
    ((_, code),) = RECIPE.findall((DOCS / "docker.md").read_text())
    c = Config()
    code = code.replace("/etc/jupyter-gpushare/hub-token", str(tmp_path / "hub-token"))
    exec(compile(code, "docker.md", "exec"), {"c": c})
    alice = SimpleNamespace(name="alice", escaped_name="alice", url="/user/alice/")
    spawner = dockerspawner.DockerSpawner(config=c, user=alice)
    assert spawner.volume_binds["/run/jupyter-gpushare"] == {
        "bind": "/run/jupyter-gpushare",
        "mode": "ro",
    }
    assert spawner.environment["JUPYTER_GPUSHARE_IDENTITY"] == "hub"
    assert spawner.environment["NVIDIA_VISIBLE_DEVICES"] == "all"
