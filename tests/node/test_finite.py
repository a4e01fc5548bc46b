"""Numbers of the node manager's configuration: they have an end, and who writes else hears where.

Each trait is tried by itself, so one that is added later cannot be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from traitlets import Dict, TraitError, TraitType, Union
from traitlets.config import Config, Configurable

from jupyter_gpushare.node.app import Connections, Hub, NodeManagerApp, Policy
from jupyter_gpushare.policy.model import ParkWhen

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
    assert str(raised.value) == ("Policy.idle_timeout = nan cannot be used: write a finite number.")


def test_on_the_command_line_too() -> None:
    app = NodeManagerApp()
    app.parse_command_line(["--Policy.quantum=nan"])
    with pytest.raises(TraitError, match=r"Policy\.quantum"):
        Policy(config=app.config)


def test_by_default_idle_kernels_give_way_to_who_waits_after_a_warning() -> None:
    """As the README promises, whoever runs the node manager: it is one program."""
    policy = Policy().frozen()
    assert policy.idle_timeout == 1800.0
    assert policy.park_when is ParkWhen.CONTENDED
    assert 0 < policy.notify_before < policy.idle_timeout
    assert policy.keep_for > 0
    assert policy.pin_limit > policy.idle_timeout, "Keep does nothing"


def test_numbers_are_numbers() -> None:
    policy = Policy(config=Config({"Policy": {"idle_timeout": 600, "burst_memory": 0.9}}))
    assert (policy.idle_timeout, policy.burst_memory) == (600.0, 0.9)
