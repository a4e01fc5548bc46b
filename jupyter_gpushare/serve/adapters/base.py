"""What an adapter is, and the one for servers that nothing is known of."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from ..upstream import Control

_PROMPT: Final = "One, two, three, four, five,"


class Adapter(Protocol):
    """What is known of one kind of server. Its calls block; they raise `ControlFailed`."""

    name: ClassVar[str]
    #: Which release it was run against, or only read in.
    tried: ClassVar[str]
    #: Whether it can sleep by its own means, and then keeps what slept in host memory.
    sleeps: ClassVar[bool]
    copies: ClassVar[bool]
    #: The route that tells its health.
    ready: ClassVar[str]
    #: Whether it takes requests only that are to its own address.
    own_host: ClassVar[bool]

    def starts(self, command: Sequence[str]) -> bool:
        """Whether a command starts such a server."""

    def environ(self, port: int) -> Mapping[str, str]:
        """Variables that it needs."""

    def lacks(self, command: Sequence[str]) -> str:
        """What its command lacks to be put to sleep, as a sentence; empty if nothing."""

    def answers(self, control: Control) -> bool:
        """Whether the server that runs is one of these, and can be put to sleep."""

    def opens(self, method: str, path: str) -> bool:
        """Whether callers may use a route."""

    def ask(self, control: Control) -> str | None:
        """Its answer to a fixed prompt; ``None`` where it has nothing that could answer."""

    def sleep(self, control: Control) -> None:
        """Free the GPU."""

    def wake(self, control: Control) -> None:
        """Be as before."""


class Generic:
    """A server that nothing is known of: the driver puts it to sleep. All its routes are open."""

    name: ClassVar[str] = "generic"
    tried: ClassVar[str] = "run against tornado, aiohttp and FastAPI servers"
    sleeps: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    ready: ClassVar[str] = "/health"
    own_host: ClassVar[bool] = False
    #: What is open to callers, with all that is below; nothing: all is.
    open: ClassVar[Collection[str]] = ()
    #: What may only be read, and is not open below; and what is not open though it is below.
    read: ClassVar[Collection[str]] = ()
    closed: ClassVar[Collection[str]] = ()

    def starts(self, command: Sequence[str]) -> bool:
        return False

    def environ(self, port: int) -> Mapping[str, str]:
        return {}

    def lacks(self, command: Sequence[str]) -> str:
        return ""

    def answers(self, control: Control) -> bool:
        return False

    def opens(self, method: str, path: str) -> bool:
        path = path.rstrip("/") or "/"
        if path in self.read:
            return method in ("GET", "HEAD")
        below = any(path == one or path.startswith(f"{one}/") for one in self.open)
        return not self.open or (below and path not in self.closed)

    def ask(self, control: Control) -> str | None:
        return None

    def sleep(self, control: Control) -> None:
        raise NotImplementedError

    def wake(self, control: Control) -> None:
        raise NotImplementedError


def models(control: Control) -> list[str]:
    """The models that a server of OpenAI's kind lists."""
    listed: Any = control.call("GET", "/v1/models").json
    found = listed.get("data") if isinstance(listed, dict) else None
    return [str(one["id"]) for one in found or () if isinstance(one, dict) and "id" in one]


def ask_openai(control: Control, model: str) -> str | None:
    """The answer of a model to the prompt, or its embedding of it; ``None`` where it has neither.

    The prompt is shorter than a block of a prefix cache, so the answer does not depend on one.
    """
    asked = {"model": model, "prompt": _PROMPT, "max_tokens": 12, "temperature": 0, "seed": 7}
    answer = control.call("POST", "/v1/completions", asked)
    if answer.status != 200:
        answer = control.call("POST", "/v1/embeddings", {"model": model, "input": _PROMPT})
    told: Any = answer.json if answer.status == 200 else {}
    data = told.get("choices") or told.get("data") or [{}]
    said = data[0].get("text", data[0].get("embedding"))
    return None if said is None else str(said)


def is_program(command: Sequence[str], program: str, module: str) -> bool:
    """Whether a command runs a program, or a module of Python of this name."""
    for before, word in zip(("", *command), command[:4], strict=False):
        if before == "-m" and (word == module or word.startswith(f"{module}.")):
            return True
        if not before.startswith("-") and os.path.basename(word) == program:
            return True
    return False


def has_flag(command: Sequence[str], flag: str) -> bool:
    """Whether a command has a flag, with or without a value."""
    return any(word == flag or word.startswith(f"{flag}=") for word in command)
