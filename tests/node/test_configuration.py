"""Settings are understood as people write them, or refused in words that say where and why.

A preset chooses a dozen of them, the configuration goes before it, and people see both.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.paths import jupyter_config_path
from support.node import GIB, RunningNode

from jupyter_gpushare.cli.checks import node_manager
from jupyter_gpushare.client.words.render import status_text
from jupyter_gpushare.node import app
from jupyter_gpushare.node.app import NodeManagerApp
from jupyter_gpushare.node.configuration import Policy, Quotas
from jupyter_gpushare.node.settings.presets import CHOSEN, PRESETS, config_of, told_of
from jupyter_gpushare.policy.words.model import Bytes, Gpu, GpuUuid, Quota
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.quotas.config import NodeSize, configure, parse_quota


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
        checks = {check.name: check for check in node_manager({names.SOCKET: str(node.socket)})}
    assert status["node"]["preset"]["name"] == "class"
    assert (status["node"]["quantum"], status["node"]["idle_timeout"]) == (5, 600)
    assert (status["quota"]["gpus"], status["quota"]["memory"]) == (1, 6 * GIB)
    text = "class, but the configuration sets Policy.idle_timeout"
    assert f"Preset: {text}." in status_text(status).splitlines()
    assert checks["preset"].text == text


# -- quotas ----------------------------------------------------------------------------------------

NODE = NodeSize(4, 24 * GIB)


def gpu(index: int, memory: int) -> Gpu:
    return Gpu(GpuUuid(f"GPU-{index}"), index, "a GPU", Bytes(memory))


@pytest.mark.parametrize(
    ("given", "quota"),
    [
        ({}, Quota(4)),
        ({"gpus": "all"}, Quota(4)),
        ({"gpus": 2, "memory": "16GiB"}, Quota(2, Bytes(16 * GIB))),
        ({"gpus": 1, "memory": 0.5}, Quota(1, Bytes(12 * GIB))),
        ({"gpus": 1, "memory": "0.25"}, Quota(1, Bytes(6 * GIB))),
        ({"gpus": 1, "memory": 1.0}, Quota(1, Bytes(24 * GIB))),
        ({"gpus": 0, "weight": 2, "gpu_hours": 10}, Quota(0, weight=2.0, gpu_hours=10.0)),
        ({"gpus": 1, "idle_timeout": 600}, Quota(1, idle_timeout=600.0)),
        ({"gpus": 1, "idle_timeout": "1h30m"}, Quota(1, idle_timeout=5400.0)),
        ({"gpus": 1, "burst_memory": 0}, Quota(1, burst_memory=0.0)),
        ({"gpus": 1, "burst_memory": 0.9}, Quota(1, burst_memory=0.9)),
        ({"gpus": 1, "burst_memory": "60GiB"}, Quota(1, burst_memory=60.0 * GIB)),
    ],
)
def test_what_is_understood(given: dict[str, Any], quota: Quota) -> None:
    assert parse_quota("here", given, NODE) == quota


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("two", "a quota is a dict"),
        ({"gpu": 1}, "unknown gpu"),
        ({"gpus": 0.5}, "whole number"),
        ({"gpus": -1}, "whole number"),
        ({"gpus": True}, "whole number"),
        ({"gpus": 4097}, "whole number from 0 to 4096"),
        ({"weight": 2e6}, "weight"),
        ({"gpu_hours": 1e10}, "gpu_hours"),
        ({"idle_timeout": 1e10}, "idle_timeout"),
        ({"memory": 1.5}, "no part of a GPU"),
        ({"memory": 0.0}, "no part of a GPU"),
        ({"memory": "much"}, "no memory size"),
        ({"memory": "8 gigs"}, "no memory size"),
        ({"memory": "8"}, "Did you mean 8GiB"),
        ({"memory": 8}, "Did you mean 8GiB"),
        ({"burst_memory": "60"}, "burst_memory: .*Did you mean 60GiB"),
        ({"weight": 0}, "weight"),
        ({"gpu_hours": -1}, "gpu_hours"),
        ({"idle_timeout": "soon"}, "idle_timeout"),
        ({"burst_memory": "90%"}, "burst_memory: .*no memory size.*like 0.9"),
        ({"burst_memory": 1.5}, "burst_memory: .*no part of a GPU"),
        ({"burst_memory": False}, "burst_memory: .*no memory size"),
        ({"burst_memory": []}, "burst_memory: .*no memory size"),
    ],
)
def test_what_is_refused_says_where_and_why(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^here: .*{said}"):
        parse_quota("here", given, NODE)


def test_a_part_is_one_of_the_smallest_gpu_so_that_it_fits_on_any() -> None:
    node = NodeSize.of([gpu(0, 80 * GIB), gpu(1, 24 * GIB)])
    assert node == NodeSize(2, 24 * GIB)
    command = configure(0.0, node, {"gpus": 1, "memory": 0.5}, {}, {})
    assert command.default.memory == 12 * GIB


def test_without_gpus_a_configuration_is_still_read() -> None:
    command = configure(0.0, NodeSize.of([]), {"memory": 0.5}, {"g": {"gpus": "all"}}, {})
    assert command.default == Quota(0, Bytes(2 * 2**20))


def test_a_setting_that_nothing_has_is_refused_as_a_wrong_quota_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.py"
    config.write_text('c.Policy.min_idle = 1.0\nc.Policy.idle_timeot = "5m"\nc.Other.thing = 1\n')
    with pytest.raises(SystemExit) as left:
        NodeManagerApp().initialize([f"--config={config}"])
    assert left.value.code == 1
    said = "Policy.idle_timeot: there is no such setting; did you mean idle_timeout?"
    assert said in capsys.readouterr().err


# -- --generate-config -----------------------------------------------------------------------------

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
