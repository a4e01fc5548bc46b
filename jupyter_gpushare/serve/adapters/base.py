"""What is known of one kind of server, as data: all that is different between them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..upstream import Control

#: A route that is posted to, and what is said there.
Step = tuple[str, Any]
#: How a model stands that can answer, and those that have memory beside it.
LOADED: Final = "loaded"
_HAVE_MEMORY: Final = (LOADED, "loading", "sleeping")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of a server that can only forget them, and load them again.

    Its calls block, and raise `ControlFailed`, or one of `NONSENSE`.
    """

    #: Where it lists them.
    listed: str
    #: What forgets one, and what loads one; the model's name is added to what is said.
    unload: Step
    load: Step

    def stand(self, document: Any) -> dict[str, str]:
        """How each of those stands that are listed in this document."""
        return {one["id"]: one["status"]["value"] for one in document["data"]}

    def loaded(self, control: Control, states: Collection[str] = _HAVE_MEMORY) -> list[str]:
        """Those that stand so."""
        document = control.must("GET", self.listed).json
        return [name for name, state in self.stand(document).items() if state in states]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One kind of server; as it stands, what nothing is known of and the driver puts to sleep.

    Packages of others may override what it does, too. Its calls block, and raise `ControlFailed`.
    """

    name: str = "generic"
    #: Which release it was run against, or only read in.
    tried: str = (
        "run against servers of tornado, FastAPI with uvicorn 0.54, LitServe 0.2.19, vLLM 0.32"
    )
    #: A command that starts it: its program, or module of Python, and a word after that.
    program: str = ""
    verb: str = ""
    #: Flags that its command must have, and must not have, so that it can sleep by itself.
    needs: Sequence[str] = ()
    bars: Sequence[str] = ()
    #: Variables that it gets, with ``{port}`` in them.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: A route, and what is said there by one that can sleep by itself; blanks do not count.
    shows: tuple[str, Sequence[str]] = ("", ())
    #: The route that tells its health.
    ready: str = "/health"
    #: Whether it takes requests only that are to its own address.
    own_host: bool = False
    #: What is open to callers, with all that is below; nothing: all is.
    open: Collection[str] = ()
    #: What may only be read, and is not open below; and what is not open though it is below.
    read: Collection[str] = ()
    closed: Collection[str] = ()
    #: What is asked until it is well answered, what puts it to sleep then, and what wakes it.
    settles: str = ""
    sleep: Sequence[Step] = ()
    wake: Sequence[Step] = ()
    #: Whether it keeps what slept in host memory.
    copies: bool = False
    #: Where its models are unloaded instead.
    models: Models | None = None

    @property
    def sleeps(self) -> bool:
        """Whether it can sleep by its own means."""
        return bool(self.sleep) or self.models is not None

    def starts(self, command: Sequence[str]) -> bool:
        """Whether a command starts such a server."""
        if not self.program or self.verb not in ("", *command[:5]):
            return False
        for before, word in zip(("", *command), command[:4], strict=False):
            name = word.partition(".")[0] if before == "-m" else os.path.basename(word)
            if name == self.program and (before == "-m" or not before.startswith("-")):
                return True
        return False

    def lacks(self, command: Sequence[str]) -> str:
        """Why it cannot be put to sleep by its own means, as a sentence; empty if it can."""
        given = {word.partition("=")[0] for word in command}
        bars = self.bars if self.starts(command) else ()  # others may mean something else by them
        for flags, without, so in (
            ([flag for flag in self.needs if flag not in given], "without ", "add it to"),
            ([flag for flag in bars if flag in given], "with ", "leave it out of"),
        ):
            if flags:
                words = f"{without}{' and '.join(flags)}: {so} the command."
                return f"{self.name} cannot sleep by itself {words}"
        return ""

    def environ(self, port: int) -> dict[str, str]:
        """Variables that it needs."""
        return {name: value.format(port=port) for name, value in self.variables.items()}

    def answers(self, control: Control) -> bool:
        """Whether the server that runs is one of these, and can be put to sleep."""
        path, words = self.shows
        if not path:
            return False
        answer = control.call("GET", path)
        text = "".join(answer.text.split())
        return answer.status == 200 and all("".join(word.split()) in text for word in words)

    def opens(self, method: str, path: str) -> bool:
        """Whether callers may use a route."""
        path = path.rstrip("/") or "/"
        if path in self.read:
            return method in ("GET", "HEAD")
        below = any(path == one or path.startswith(f"{one}/") for one in self.open)
        return not self.open or (below and path not in self.closed)
