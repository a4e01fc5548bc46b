"""Settings are understood as people write them, or refused in words that say where and why.

A preset chooses a dozen of them, the configuration goes before it, and people see both.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.paths import jupyter_config_path
from support.node import GIB, RunningNode
from traitlets import Dict, TraitError, TraitType, Union
from traitlets.config import Config, Configurable

from jupyter_gpushare.cli.checks import node_manager
from jupyter_gpushare.client.words.render import show_status
from jupyter_gpushare.node import app
from jupyter_gpushare.node.app import NodeManagerApp
from jupyter_gpushare.node.configuration import Connections, Hub, Policy, Quotas, Rhythm
from jupyter_gpushare.node.people.hubidentity import HubTrust
from jupyter_gpushare.node.settings.presets import CHOSEN, PRESETS, config_of, told_of
from jupyter_gpushare.node.settings.traits import read
from jupyter_gpushare.node.wire.transport import Limits
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import Gpu, HolderAction, Quota
from jupyter_gpushare.policy.words.turns import ShareMode
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.quotas.config import NodeSize, configure, parse_quota
from jupyter_gpushare.traits import Told


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
    assert f"Preset: {text}." in show_status(status).text.splitlines()
    assert checks["preset"].text == text


# -- quotas ----------------------------------------------------------------------------------------

NODE = NodeSize(4, 24 * GIB)


@pytest.mark.parametrize(
    ("given", "quota"),
    [
        ({}, Quota(4)),
        ({"gpus": "all"}, Quota(4)),
        ({"gpus": 2, "memory": "16GiB"}, Quota(2, 16 * GIB)),
        ({"gpus": 1, "memory": 0.5}, Quota(1, 12 * GIB)),
        ({"gpus": 1, "memory": 1.0}, Quota(1, 24 * GIB)),
        ({"gpus": 0, "weight": 2, "gpu_hours": 10}, Quota(0, weight=2.0, gpu_hours=10.0)),
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
        ({"gpus": 4097}, "whole number from 0 to 4096"),
        ({"memory": 1.5}, "no part of a GPU"),
        ({"memory": 0.0}, "no part of a GPU"),
        ({"memory": "much"}, "no memory size"),
        ({"memory": "8"}, "Did you mean 8GiB"),
        ({"memory": 8}, "Did you mean 8GiB"),
        ({"burst_memory": "60"}, "burst_memory: .*Did you mean 60GiB"),
        ({"weight": 0}, "weight"),
        ({"gpu_hours": -1}, "gpu_hours"),
        ({"idle_timeout": "soon"}, "idle_timeout"),
        ({"burst_memory": "90%"}, "burst_memory: .*no memory size.*like 0.9"),
        ({"burst_memory": 1.5}, "burst_memory: .*no part of a GPU"),
        ({"burst_memory": []}, "burst_memory: .*no memory size"),
    ],
)
def test_what_is_refused_says_where_and_why(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^here: .*{said}"):
        parse_quota("here", given, NODE)


def test_a_part_is_one_of_the_smallest_gpu_so_that_it_fits_on_any() -> None:
    gpus = [Gpu(f"GPU-{index}", index, "a GPU", gib * GIB) for index, gib in enumerate((80, 24))]
    command = configure(0.0, NodeSize.of(gpus), {"memory": 0.5}, {}, {})
    assert command.default == Quota(2, 12 * GIB)
    # Without GPUs a configuration is still read.
    command = configure(0.0, NodeSize.of([]), {"memory": 0.5}, {"g": {"gpus": "all"}}, {})
    assert command.default == Quota(0, 2 * 2**20)


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


@pytest.mark.parametrize(
    ("flag", "folder", "said"),
    [
        ("--hub", "for-all", "JupyterHub's and systemd's too"),
        ("--shared", "for-all", "JupyterHub's and systemd's too"),
        ("--debug", "ones-own", "add --hub, as root"),
    ],
)
def test_a_configuration_is_written_for_all_or_for_oneself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    folder: str,
    said: str,
) -> None:
    assert app.FOR_ALL in jupyter_config_path()  # read for every user
    monkeypatch.setattr(app, "FOR_ALL", str(tmp_path / "for-all"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "ones-own"))
    node = NodeManagerApp()
    node.initialize([flag, "--generate-config"])
    node.write_default_config()
    assert "c.Quotas.default" in (tmp_path / folder / NAME).read_text()
    told = capsys.readouterr().out
    assert said in told
    assert str(tmp_path / "for-all") in told
    if folder == "for-all":
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o755


# -- each number ----------------------------------------------------------------------------------

#: Each trait is tried by itself, so one that is added later cannot be forgotten.
CLASSES: tuple[type[Configurable], ...] = (Policy, Connections, Hub, NodeManagerApp)


def numbers() -> Iterator[tuple[type[Configurable], str, object]]:
    """Each of our traits that takes a number, and how a number is put into it."""
    for owner in CLASSES:
        for name, trait in owner.class_own_traits(config=True).items():
            if takes_numbers(trait):
                yield owner, name, None
            elif isinstance(trait, Dict) and takes_numbers(trait._value_trait):
                yield owner, name, "H200"


def takes_numbers(trait: TraitType[object, object] | None) -> bool:
    if isinstance(trait, Union):
        return any(takes_numbers(one) for one in trait.trait_types)
    if isinstance(trait, Told):
        return trait.parser in ("times.parse_duration", "sizes.parse_burst", "sizes.parse_size")
    return type(trait).__name__ in ("Float", "CFloat", "Finite")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("owner", "name", "key"), list(numbers()))
def test_no_number_without_an_end(
    owner: type[Configurable], name: str, key: str | None, bad: float
) -> None:
    config = Config({owner.__name__: {name: bad if key is None else {key: bad}}})
    with pytest.raises(TraitError, match=name):
        owner(config=config)


def test_on_the_command_line_too_and_it_says_which_and_what_to_do() -> None:
    app = NodeManagerApp()
    app.parse_command_line(["--Policy.quantum=nan"])
    with pytest.raises(TraitError) as raised:
        Policy(config=app.config)
    assert str(raised.value) == (
        "Policy.quantum = 'nan' cannot be used: it is not a time: write seconds, or 90s, 10m, "
        "1.5h, 1h30m, 7d."
    )


@pytest.mark.parametrize(
    ("owner", "kind"),
    [(Policy, PolicyConfig), (Policy, Rhythm), (Connections, Limits), (Hub, HubTrust)],
)
def test_what_nobody_configured_is_the_default_of_the_code(
    owner: type[Configurable], kind: type[object]
) -> None:
    assert read(owner(), kind) == kind()


def test_settings_are_read_as_people_write_them() -> None:
    parts = {
        "idle_timeout": "1h30m",
        "keep_for": 600,
        "idle_timeouts": {"H200": "10m", "A100": 60},
        "park_residue": "2GiB",
        "driver_tolerance": 0,
        "burst_memory": "40GiB",
        "burst_headroom": 0.25,
        "audit_action": "report",
        "stalled_action": "kill",
        "share_modes": {"H200": "time"},
    }
    policy = read(Policy(config=Config({"Policy": parts})), PolicyConfig)
    assert (policy.idle_timeout, policy.keep_for) == (5400.0, 600.0)
    assert policy.idle_timeouts == (("A100", 60.0), ("H200", 600.0))
    assert (policy.park_residue, policy.driver_tolerance) == (2 * 2**30, 0)
    assert (policy.burst_memory, policy.burst_headroom) == (40 * 2**30, 0.25)
    assert (policy.audit_action, policy.stalled_action) == (HolderAction.WAIT, HolderAction.KILL)
    assert policy.share_modes == (("H200", ShareMode.TIME),)
    for given, burst in ((float(40 * 2**30), 40 * 2**30), (0.9, 0.9)):
        other = Policy(config=Config({"Policy": {"burst_memory": given}}))
        assert read(other, PolicyConfig).burst_memory == burst


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("burst_memory", bad) for bad in ("nan", "inf", "-1", -1, 1.5, "1.5", True)],
        *[("burst_headroom", bad) for bad in ("nan", -0.5)],
        *[("idle_timeouts", {"H200": bad}) for bad in (-1, "soon")],
        *[("idle_timeout", -1), ("min_idle", "x"), ("keep_for", 0), ("quantum", 0)],
        *[("park_residue", bad) for bad in (-1, "much", 1.5)],
        *[("stalled_action", "report"), ("audit_action", "wait"), ("budget_warning", 1.5)],
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(TraitError, match=name):
        Policy(config=Config({"Policy": {name: bad}}))
