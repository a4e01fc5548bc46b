"""What is known of servers that can sleep by themselves, a file of at most 100 lines for each.

Others come with packages of their own, by the entry-point group ``jupyter_gpushare.serve``, whose
values are `Adapter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Final

from ...client.errors import GpuShareError
from ...protocol.words import did_you_mean
from ..upstream import Control, ControlFailed
from . import llamacpp, ollama, sglang, transformers, vllm
from .base import Adapter

GROUP: Final = "jupyter_gpushare.serve"
#: For what nothing is known of.
GENERIC: Final = Adapter()
#: Those of this folder, in the order in which they are asked whether a server is theirs.
OWN: Final[Sequence[Adapter]] = (
    vllm.VLLM,
    vllm.DISCARD,
    sglang.SGLANG,
    llamacpp.ROUTER,
    ollama.OLLAMA,
    transformers.TRANSFORMERS,
    GENERIC,
)


def known() -> dict[str, Adapter]:
    """All there are, by name."""
    others = (found.load() for found in entry_points(group=GROUP))
    return {adapter.name: adapter for adapter in (*OWN, *others)}


def named(name: str) -> Adapter:
    """The adapter of this name. Raises :class:`GpuShareError`."""
    there = known()
    if name not in there:
        raise GpuShareError(
            f"There is no adapter {name!r}{did_you_mean(name, there)}: {', '.join(there)}."
        )
    return there[name]


def by_command(command: Sequence[str]) -> Adapter:
    """The adapter that a command looks like."""
    return next((adapter for adapter in known().values() if adapter.starts(command)), GENERIC)


def by_answers(control: Control) -> Adapter:
    """The adapter of a server that is ready, by what it answers."""
    for adapter in known().values():
        with suppress(ControlFailed):  # one that hangs up when it is asked for what it has not
            if adapter.answers(control):
                return adapter
    return GENERIC
