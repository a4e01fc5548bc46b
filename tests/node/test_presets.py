"""A preset chooses a dozen settings, the configuration goes before it, and people see both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, RunningNode

from jupyter_gpushare.cli.checks import node_manager
from jupyter_gpushare.client.words.render import status_text
from jupyter_gpushare.node.app import NodeManagerApp
from jupyter_gpushare.node.configuration import Policy, Quotas
from jupyter_gpushare.node.settings.presets import CHOSEN, PRESETS, config_of, told_of
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.quotas.config import NodeSize, parse_quota


@pytest.mark.parametrize("preset", PRESETS)
def test_each_value_can_be_used(preset: str) -> None:
    config = config_of(preset)
    policy, quotas = Policy(config=config), Quotas(config=config)
    sections: dict[str, Any] = {"Policy": policy, "Quotas": quotas}
    for one in CHOSEN:
        section, trait = one.place
        assert getattr(sections[section], trait) == config[section][trait], one.name
    assert parse_quota("default", quotas.default, NodeSize(8, 24 * GIB)).gpus >= 1


def test_only_what_the_configuration_sets_to_something_else_is_told_as_overridden() -> None:
    config = config_of("lab")
    assert told_of("lab", config) == {"name": "lab", "overridden": [], "text": "lab"}
    config.Policy.idle_timeout = 60
    config.Policy.turn_bound = 5  # not the preset's
    told = told_of("lab", config)
    assert told["overridden"] == ["Policy.idle_timeout"]
    assert told["text"] == "lab, but the configuration sets Policy.idle_timeout"


@pytest.mark.parametrize("given", ["clas", ""])
def test_an_unknown_name_is_refused_with_those_that_there_are(
    given: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    node = NodeManagerApp()
    with pytest.raises(SystemExit) as left:
        node.initialize([f"--preset={given}"])
    assert left.value.code == 1
    said = caplog.text + capsys.readouterr().err
    assert f"NodeManagerApp.preset = {given!r} cannot be used: write class or lab or own" in said


def test_status_and_doctor_say_which_holds_and_what_is_set_otherwise(tmp_path: Path) -> None:
    config = "c.NodeManagerApp.preset = 'class'\nc.Policy.idle_timeout = 600\n"
    with RunningNode(tmp_path, config=config) as node:
        with node.client() as client:
            status = client.call(Method.STATUS)
        checks = {check.name: check for check, _ in node_manager({names.SOCKET: str(node.socket)})}
    assert status["node"]["preset"]["name"] == "class"
    assert (status["node"]["quantum"], status["node"]["idle_timeout"]) == (5, 600)
    assert (status["quota"]["gpus"], status["quota"]["memory"]) == (1, 6 * GIB)
    text = "class, but the configuration sets Policy.idle_timeout"
    assert f"Preset: {text}." in status_text(status).splitlines()
    assert checks["preset"].text == text
