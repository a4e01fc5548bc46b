"""Quotas as people write them in a configuration file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..policy.words import commands as cmd
from ..policy.words.model import Bytes, EnvironmentName, Gpu, Quota
from ..protocol.quota import read_field
from ..protocol.sizes import LEAST_MEMORY, parse_share
from ..quota import FIELDS, WHOLE, made_of


@dataclass(frozen=True, slots=True)
class NodeSize:
    """A node's size, for quotas like ``"all"`` and ``0.5``: GPUs, and bytes of the smallest."""

    gpus: int
    smallest: int

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> NodeSize:
        """The size of a node with these GPUs."""
        memories = [gpu.memory for gpu in gpus]
        return cls(len(memories), min(memories, default=Bytes(0)))


def parse_quota(where: str, given: Any, node: NodeSize) -> Quota:
    """A quota from ``{"gpus": 2 or "all", "memory": "16GiB" or 0.5, "weight": 1}``.

    A fraction as ``memory`` is one of the node's smallest GPU, so that it fits on every GPU. Raises
    :class:`ValueError` with a sentence that names ``where``.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f'{where}: a quota is a dict like {{"gpus": 1, "memory": "16GiB"}}.')
    if unknown := sorted(set(given) - WHOLE):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(FIELDS)}.")
    named = {"gpus": "all", **given}
    if named["gpus"] == "all":
        named["gpus"] = node.gpus
    read: dict[str, Any] = {}
    for name, value in named.items():
        try:
            share = parse_share(value) if name == "memory" else None
            if share is not None:
                # Without a GPU nothing is granted, so the fraction does not matter.
                value = max(LEAST_MEMORY, int(share * node.smallest))
            read[name] = read_field(name, value)
        except ValueError as error:
            raise ValueError(f"{where}: {name}: {error}") from error
    if read.get("per") is not None and read.get("gpu_hours") is None:
        raise ValueError(f"{where}: per says what gpu_hours are for, and there are none.")
    return made_of(read)


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
