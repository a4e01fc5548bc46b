"""``--generate-config`` writes where the node manager that is meant reads, and says so."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from jupyter_core.paths import jupyter_config_path

from jupyter_gpushare.node import app
from jupyter_gpushare.node.app import NodeManagerApp

NAME = "jupyter_gpushare_node_config.py"


def generate(*arguments: str) -> NodeManagerApp:
    node = NodeManagerApp()
    node.initialize([*arguments, "--generate-config"])
    node.write_default_config()
    return node


@pytest.mark.parametrize("flag", ["--hub", "--shared"])
def test_of_a_service_it_is_written_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert app.FOR_ALL in jupyter_config_path()  # read for every user
    place = tmp_path / "etc" / "jupyter"
    monkeypatch.setattr(app, "FOR_ALL", str(place))
    generate(flag)
    assert "c.Quotas.default" in (place / NAME).read_text()
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    said = capsys.readouterr().out
    assert str(place / NAME) in said
    assert "JupyterHub's and systemd's too" in said


def test_of_ones_own_it_is_written_for_oneself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    generate()
    assert (tmp_path / NAME).exists()
    said = capsys.readouterr().out
    assert "add --hub, as root" in said
    assert app.FOR_ALL in said
