"""Quotas as people write them in a configuration file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..policy import commands as cmd
from ..policy.model import Bytes, EnvironmentName, Gpu, Period, Quota
from ..protocol.periods import parse_period
from ..protocol.sizes import parse_burst, parse_share, parse_size

_KNOWN: Final = ("gpus", "memory", "weight", "gpu_hours", "per", "idle_timeout", "burst_memory")


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What ``"all"`` and ``0.5`` of a GPU mean on a node: GPUs, and bytes of the smallest."""

    gpus: int
    smallest: int

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> NodeSize:
        """The size of a node with these GPUs."""
        memories = [gpu.memory for gpu in gpus]
        return cls(len(memories), min(memories, default=Bytes(0)))


def parse_quota(where: str, given: Any, node: NodeSize) -> Quota:
    """A quota from ``{"gpus": 2 or "all", "memory": "16GiB" or 0.5, "weight": 1}``.

    ``memory`` as a part is one of the node's smallest GPU: so many parts fit on
    any. Raises :class:`ValueError` with a sentence that names ``where``.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f'{where}: a quota is a dict like {{"gpus": 1, "memory": "16GiB"}}.')
    unknown = sorted(set(given) - set(_KNOWN))
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(_KNOWN)}.")
    gpus = given.get("gpus", "all")
    if gpus == "all":
        gpus = node.gpus
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
        raise ValueError(f'{where}: gpus must be a whole number from 0, or "all", not {gpus!r}.')
    memory = given.get("memory")
    try:
        size = None if memory is None else Bytes(_memory(memory, node))
    except ValueError as error:
        raise ValueError(f"{where}: memory: {error}") from error
    hours = _number(where, given, "gpu_hours", 0.0)
    return Quota(
        gpus=gpus,
        memory=size,
        weight=_number(where, given, "weight", 1e-6) or 1.0,
        gpu_hours=hours,
        idle_timeout=_number(where, given, "idle_timeout", 0.0),
        burst_memory=_burst(where, given.get("burst_memory")),
        per=_per(where, given.get("per"), hours),
    )


def _per(where: str, given: Any, hours: float | None) -> Period | None:
    if given is None:
        return None
    if hours is None:
        raise ValueError(f"{where}: per says what gpu_hours are for, and there are none.")
    try:
        return Period(parse_period(given))
    except ValueError as error:
        raise ValueError(f"{where}: per: {error}") from error


def _burst(where: str, given: Any) -> float | None:
    """Up to 1 a share of a GPU, whichever it is, else bytes; 0 is none at all."""
    if given is None:
        return None
    try:
        return parse_burst(given)
    except ValueError as error:
        raise ValueError(f"{where}: burst_memory: {error}") from error


def _memory(given: Any, node: NodeSize) -> int:
    share = parse_share(given)
    # Without a GPU nothing is granted, whatever a part of one may be.
    return parse_size(given) if share is None else max(1, int(share * node.smallest))


def _number(where: str, given: Mapping[str, Any], name: str, least: float) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    # NaN is in no range; a whole number may be too long for a float, so compare first.
    if wrong or not least <= value <= sys.float_info.max:
        raise ValueError(f"{where}: {name} must be a number of at least {least:g}, not {value!r}.")
    return float(value)


def configure(
    at: float,
    node: NodeSize,
    default: Any,
    groups: Mapping[str, Any],
    users: Mapping[str, Any],
) -> cmd.ConfigureQuotas:
    """All configured quotas as one command. Raises :class:`ValueError`."""
    return cmd.ConfigureQuotas(
        at,
        parse_quota("Quotas.default", default, node),
        tuple(
            (name, parse_quota(f"Quotas.groups[{name!r}]", quota, node))
            for name, quota in sorted(groups.items())
        ),
        tuple(
            (
                EnvironmentName(name),
                parse_quota(f"Quotas.users[{name!r}]", quota, node),
            )
            for name, quota in sorted(users.items())
        ),
    )
