"""What an adapter is: the one for servers that nothing is known of, and parts for others."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

from ..upstream import Control, ControlFailed

PROMPT: Final = "One, two, three, four, five,"
_TRIES, _PAUSE = 300, 0.1


class Adapter:
    """One kind of server; this one is what nothing is known of, and the driver puts to sleep.

    All of it may be overridden. Its calls block; they raise `ControlFailed`.
    """

    name: ClassVar[str] = "generic"
    #: Which release it was run against, or only read in.
    tried: ClassVar[str] = (
        "run against servers of tornado, FastAPI with uvicorn 0.54, LitServe 0.2.19, vLLM 0.32"
    )
    #: Whether it can sleep by its own means, and then keeps what slept in host memory.
    sleeps: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    #: The route that tells its health.
    ready: str = "/health"
    #: Whether it takes requests only that are to its own address.
    own_host: ClassVar[bool] = False
    #: What is open to callers, with all that is below; nothing: all is.
    open: ClassVar[Collection[str]] = ()
    #: What may only be read, and is not open below; and what is not open though it is below.
    read: ClassVar[Collection[str]] = ()
    closed: ClassVar[Collection[str]] = ()
    #: What it must know when it wakes of how it went to sleep; a successor is told.
    slept: Sequence[str] = ()

    def starts(self, command: Sequence[str]) -> bool:
        """Whether a command starts such a server."""
        return False

    def environ(self, port: int) -> Mapping[str, str]:
        """Variables that it needs."""
        return {}

    def lacks(self, command: Sequence[str]) -> str:
        """What its command lacks to be put to sleep, as a sentence; empty if nothing."""
        return ""

    def answers(self, control: Control) -> bool:
        """Whether the server that runs is one of these, and can be put to sleep."""
        return False

    def opens(self, method: str, path: str) -> bool:
        """Whether callers may use a route."""
        path = path.rstrip("/") or "/"
        if path in self.read:
            return method in ("GET", "HEAD")
        below = any(path == one or path.startswith(f"{one}/") for one in self.open)
        return not self.open or (below and path not in self.closed)

    def ask(self, control: Control) -> str | None:
        """Its answer to a fixed prompt; ``None`` where it has nothing that could answer."""
        return next((ask_openai(control, model) for model in models(control)[:1]), None)

    def sleep(self, control: Control) -> None:
        """Free the GPU."""

    def wake(self, control: Control) -> None:
        """Be as before."""


class Unloads(Adapter, ABC):
    """One that can only forget its models, and load them again."""

    sleeps = True

    def __init__(self) -> None:
        self._asked = ""

    @abstractmethod
    def loaded(self, control: Control) -> list[str]:
        """The models that have memory now."""

    def unload(self, control: Control, model: str) -> None:
        """Forget one."""

    def load(self, control: Control, model: str) -> None:
        """Load one, and return when it is there."""

    def ask_model(self, control: Control, model: str) -> str | None:
        """The answer of one that is loaded."""
        return ask_openai(control, model)

    def ask(self, control: Control) -> str | None:
        loaded = self.loaded(control)  # one that is not, the question would load
        # Of several always the same one, also where a successor asks.
        known = (self._asked, *self.slept, *loaded)
        self._asked = next((model for model in known if model in loaded), "")
        return self.ask_model(control, self._asked) if self._asked else None

    def sleep(self, control: Control) -> None:
        self.slept = sorted(self.loaded(control), key=lambda model: model != self._asked)
        for model in self.slept:
            self.unload(control, model)
        wait_until(lambda: not self.loaded(control), f"{self.name} still has a model loaded.")

    def wake(self, control: Control) -> None:
        for model in self.slept:
            self.load(control, model)


def wait_until(done: Callable[[], bool], words: str) -> None:
    """Look again and again. Raises `ControlFailed` with ``words`` after half a minute."""
    for _ in range(_TRIES):
        if done():
            return
        time.sleep(_PAUSE)  # it does it after its answer, and tells nobody when it is done
    raise ControlFailed(words)


def models(control: Control) -> list[str]:
    """The models that a server of OpenAI's kind lists."""
    listed: Any = control.call("GET", "/v1/models").json
    found = listed.get("data") if isinstance(listed, dict) else None
    return [str(one["id"]) for one in found or () if isinstance(one, dict) and "id" in one]


def ask_openai(control: Control, model: str) -> str | None:
    """The answer of a model to the prompt, or its embedding of it; ``None`` where it has neither.

    The prompt is shorter than a block of a prefix cache, so the answer does not depend on one.
    """
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "seed": 7}
    answer = control.call("POST", "/v1/completions", asked)
    if answer.status != 200:
        answer = control.call("POST", "/v1/embeddings", {"model": model, "input": PROMPT})
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
