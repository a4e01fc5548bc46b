"""What is known of servers that can sleep by themselves, a file of at most 100 lines for each.

Others come with packages of their own, by the entry-point group ``jupyter_gpushare.serve``: the
name is what ``--adapter`` takes, and the value gives an `Adapter` when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, cast

from ...client.errors import GpuShareError
from ...protocol.words import did_you_mean
from ..upstream import Control, ControlFailed
from .base import Adapter

GROUP: Final = "jupyter_gpushare.serve"
#: Those of this folder, in the order in which they are asked whether a server is theirs.
OWN: Final[Mapping[str, str]] = {
    "vllm": "vllm:Vllm",
    "vllm-discard": "vllm:VllmDiscard",
    "sglang": "sglang:Sglang",
    "llama.cpp": "llamacpp:LlamaRouter",
    "ollama": "ollama:Ollama",
    "transformers": "transformers:Transformers",
    "generic": "base:Adapter",
}


def named(name: str) -> Adapter:
    """The adapter of this name. Raises :class:`GpuShareError`."""
    if name in OWN:
        module, _, kind = OWN[name].partition(":")
        return cast("Adapter", getattr(import_module(f".{module}", __package__), kind)())
    others = {found.name: found for found in entry_points(group=GROUP)}
    if name not in others:
        known = [*OWN, *others]
        raise GpuShareError(
            f"There is no adapter {name!r}{did_you_mean(name, known)}: {', '.join(known)}."
        )
    made: Any = others[name].load()
    return cast("Adapter", made())


def _all() -> Iterator[Adapter]:
    for name in (*OWN, *(found.name for found in entry_points(group=GROUP))):
        if name != Adapter.name:
            yield named(name)


def by_command(command: Sequence[str]) -> str:
    """The name of the adapter that a command looks like."""
    found = (adapter.name for adapter in _all() if adapter.starts(command))
    return next(found, Adapter.name)


def by_answers(control: Control) -> Adapter:
    """The adapter of a server that is ready, by what it answers."""
    for adapter in _all():
        with suppress(ControlFailed):  # one that hangs up when it is asked for what it has not
            if adapter.answers(control):
                return adapter
    return Adapter()
