"""What this process asks for and how it behaves, gathered from all who may say.

Strongest first: what code or a magic asks, environment variables, the
notebook's metadata, traits. A value that makes no sense is reported and the
next weaker one counts; it never stops an import.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from ..protocol import names
from ..protocol.sizes import parse_size

T = TypeVar("T")


class Fallback(Enum):
    """What happens when there is no GPU to be had."""

    CPU = "cpu"
    ERROR = "error"


class Acquire(Enum):
    """When the lease is taken."""

    IMPORT = "import"
    FIRST_USE = "first-use"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a task asks; ``None`` leaves it to the next weaker source. ``memory`` in bytes."""

    gpus: int | None = None
    memory: int | None = None
    priority_class: str | None = None

    def over(self, weaker: Ask) -> Ask:
        """This, with what it leaves open taken from ``weaker``."""
        return Ask(
            self.gpus if self.gpus is not None else weaker.gpus,
            self.memory if self.memory is not None else weaker.memory,
            self.priority_class or weaker.priority_class,
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """``wait_timeout`` in seconds, 0: wait for ever. ``complaints`` are values not understood.

    ``answer_timeout`` (seconds) bounds every call but the wait in the queue.
    """

    ask: Ask = Ask()
    fallback: Fallback = Fallback.CPU
    acquire: Acquire = Acquire.IMPORT
    wait_timeout: float = 0.0
    answer_timeout: float = 5.0
    complaints: tuple[str, ...] = field(default=(), compare=False)


def parse_gpus(text: Any) -> int:
    """A GPU count. Raises :class:`ValueError`."""
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"{text!r} is no number of GPUs.")
    count = int(text)
    if not 1 <= count <= 2**20:
        raise ValueError(f"{text!r} is no number of GPUs: ask for at least 1.")
    return count


def parse_class(text: Any) -> str:
    """A priority class. Raises :class:`ValueError`."""
    if text not in ("interactive", "batch"):
        raise ValueError(f"{text!r} is no priority class: interactive or batch.")
    return str(text)


def parse_seconds(text: Any) -> float:
    """Seconds from 0 on. Raises :class:`ValueError`."""
    seconds = float(text)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{text!r} is no number of seconds.")
    return seconds


def read_settings(environ: Mapping[str, str], traits: Settings | None = None) -> Settings:
    """The settings of this process, apart from what code or a magic asks later."""
    complaints: list[str] = []

    def read(name: str, parse: Callable[[Any], T], value: Any, weaker: T) -> T:
        if value is None or value == "":
            return weaker
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            complaints.append(f"{name}={value!r} is not understood and ignored: {error}")
            return weaker

    def of_env(name: str, parse: Callable[[Any], T], weaker: T) -> T:
        return read(name, parse, environ.get(name), weaker)

    base = traits or Settings()
    notebook = _notebook(environ, complaints)
    metadata = Ask(
        read("notebook metadata gpushare.gpus", _optional(parse_gpus), notebook.get("gpus"), None),
        read(
            "notebook metadata gpushare.memory",
            _optional(parse_size),
            notebook.get("memory"),
            None,
        ),
        read(
            "notebook metadata gpushare.class",
            _optional(parse_class),
            notebook.get("class"),
            None,
        ),
    )
    environment = Ask(
        of_env(names.GPUS, _optional(parse_gpus), None),
        of_env(names.MEMORY, _optional(parse_size), None),
        of_env(names.CLASS, _optional(parse_class), None),
    )
    return replace(
        base,
        ask=environment.over(metadata).over(base.ask),
        fallback=of_env(names.FALLBACK, Fallback, base.fallback),
        acquire=of_env(names.ACQUIRE, Acquire, base.acquire),
        wait_timeout=of_env(names.WAIT_TIMEOUT, parse_seconds, base.wait_timeout),
        complaints=(*base.complaints, *complaints),
    )


def _optional(parse: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """The same parser, typed so that "not said" fits beside it."""
    return parse


def _notebook(environ: Mapping[str, str], complaints: list[str]) -> Mapping[str, Any]:
    text = environ.get(names.NOTEBOOK)
    if not text:
        return {}
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        complaints.append(f"{names.NOTEBOOK} is not understood and ignored.")
        return {}
    return data


def read_token(environ: Mapping[str, str]) -> str | None:
    """The token that identity may ask for; a file is better, as it shows in no process list."""
    if token := environ.get(names.TOKEN):
        return token
    if path := environ.get(names.TOKEN_FILE):
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as file:
                return file.read().strip() or None
        except (OSError, UnicodeDecodeError):
            # The node manager will say that it wants a token.
            return None
    return None
