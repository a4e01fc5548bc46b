"""Each number of the configuration has an end, and who writes another one hears where.

Each trait is tried by itself, so one that is added later cannot be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from traitlets import Dict, TraitError, TraitType, Union
from traitlets.config import Config, Configurable

from jupyter_gpushare.node.app import NodeManagerApp
from jupyter_gpushare.node.configuration import Connections, Hub, Policy, Rhythm
from jupyter_gpushare.node.people.hubidentity import HubTrust
from jupyter_gpushare.node.settings.traits import read
from jupyter_gpushare.node.wire.transport import Limits
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import HolderAction, ParkWhen
from jupyter_gpushare.policy.words.turns import ShareMode
from jupyter_gpushare.traits import Told

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


def test_it_says_which_and_what_to_do() -> None:
    with pytest.raises(TraitError) as raised:
        Policy(config=Config({"Policy": {"idle_timeout": math.nan}}))
    assert str(raised.value) == (
        "Policy.idle_timeout = nan cannot be used: it is not a time: write seconds, or 90s, 10m, "
        "1.5h, 1h30m, 7d."
    )


def test_on_the_command_line_too() -> None:
    app = NodeManagerApp()
    app.parse_command_line(["--Policy.quantum=nan"])
    with pytest.raises(TraitError, match=r"Policy\.quantum"):
        Policy(config=app.config)


def test_by_default_idle_kernels_give_way_to_who_waits_after_a_warning() -> None:
    """As the README promises, whoever runs the node manager: it is one program."""
    policy = read(Policy(), PolicyConfig)
    assert policy.idle_timeout == 1800.0
    assert policy.park_when is ParkWhen.CONTENDED
    assert 0 < policy.notify_before < policy.idle_timeout
    assert policy.keep_for > 0
    assert policy.pin_limit > policy.idle_timeout, "Keep does nothing"


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
    whole = Policy(config=Config({"Policy": {"burst_memory": float(40 * 2**30)}}))
    assert read(whole, PolicyConfig).burst_memory == 40 * 2**30


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


def test_numbers_are_numbers() -> None:
    policy = read(
        Policy(config=Config({"Policy": {"idle_timeout": 600, "burst_memory": 0.9}})), PolicyConfig
    )
    assert (policy.idle_timeout, policy.burst_memory) == (600.0, 0.9)
