"""The settings of this process, gathered from all sources.

Strongest first: what code or a magic asks, environment variables, the notebook's metadata, traits.
A value that makes no sense is reported, and the next weaker source counts; it never stops an
import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ...figures import counted, format_size
from ...protocol import names
from ...protocol.address import Found, is_administrators, told_token
from ...protocol.names import RESERVES
from ...protocol.notebook import Notebook
from ...protocol.sizes import (
    Memory,
    format_memory,
    least_of,
    most_of,
    parse_gpus,
    parse_memory,
    parse_size,
)
from ...protocol.words import parse_switch, parse_word

T = TypeVar("T")

#: What is wrong with a request that names one of its two parts.
ONE_PART: Final = "name both the persistent and the temporary memory, or neither."


class Fallback(Enum):
    """The behaviour without a GPU."""

    CPU = "cpu"
    ERROR = "error"


class Naming(Enum):
    """How ``CUDA_VISIBLE_DEVICES`` names GPUs."""

    UUIDS = "uuids"
    INDICES = "indices"


class Acquire(Enum):
    """When the lease is taken."""

    IMPORT = "import"
    FIRST_USE = "first-use"


class AfterError(Enum):
    """When the memory comes back that only an error keeps."""

    NEXT_CELL = "next-cell"
    AT_ONCE = "at-once"
    KEEP = "keep"


class Ask(NamedTuple):
    """A task's wishes; ``None`` leaves one to the next weaker source. Sizes are in bytes.

    ``gpus`` is a number, or ``"quota"`` for as many as the quota allows. ``memory`` is a size, or a
    range of them. ``persistent`` and
    ``temporary`` are the parts of its memory, and ``turn_offset`` the head-room before them, where
    tasks take turns. ``reserve`` says how much is reserved where no ``memory`` is named.
    """

    gpus: int | str | None = None
    memory: Memory | None = None
    priority_class: str | None = None
    persistent: int | None = None
    temporary: int | None = None
    turn_offset: int | None = None
    reserve: str | None = None

    @property
    def sizes(self) -> dict[str, int | None]:
        """The memory on each GPU, as a call has it."""
        return {"memory": least_of(self.memory), "memory_most": most_of(self.memory)}

    @property
    def parts(self) -> dict[str, int]:
        """What it says of the parts of its memory, as a call has it."""
        parts = ("persistent", "temporary", "turn_offset")
        return {name: size for name in parts if (size := getattr(self, name)) is not None}

    @property
    def words(self) -> str:
        """``2 GPUs with 8 GiB on each, class batch``."""
        words = "as many GPUs as the quota allows"
        if not isinstance(self.gpus, str):
            words = counted(self.gpus or 1, "GPU")
        if self.memory is not None:
            each = "" if self.gpus in (None, 1) else " on each"
            words += f" with {format_memory(self.memory)}{each}"
        if self.persistent is not None and self.temporary is not None:
            kept, step = format_size(self.persistent), format_size(self.temporary)
            words += f", {kept} persistent and {step} temporary"
        return words if self.priority_class is None else f"{words}, class {self.priority_class}"

    def over(self, weaker: Ask) -> Ask:
        """This, with what it leaves open taken from ``weaker``."""
        said = {name: part for name, part in self._asdict().items() if part is not None}
        return weaker._replace(**said)


class Settings(NamedTuple):
    """``wait_timeout`` in seconds, 0: wait for ever. ``complaints`` are values not understood.

    ``answer_timeout`` (seconds) bounds every call but the wait in the queue;
    ``outage_timeout`` is for how long a node manager that was there is waited for.
    ``show_grant``: a line says which GPU the first import got.
    """

    ask: Ask = Ask()
    fallback: Fallback = Fallback.CPU
    acquire: Acquire = Acquire.IMPORT
    wait_timeout: float = 0.0
    answer_timeout: float = 5.0
    outage_timeout: float = 30.0
    visible_devices: Naming = Naming.UUIDS
    show_grant: bool = True
    after_error: AfterError = AfterError.NEXT_CELL
    complaints: tuple[str, ...] = ()


def read_settings(
    environ: Mapping[str, str], traits: Settings | None = None, notebook: Notebook | None = None
) -> Settings:
    """The settings of this process, apart from what code or a magic asks later.

    ``notebook``: as its server told it last; ``None``: what the kernel found when it started.
    """
    complaints: list[str] = []

    def read(name: str, parse: Callable[[Any], T], value: Any, weaker: T) -> T:
        if value is None or value == "":
            return weaker
        try:
            return parse(value)
        except ValueError as error:
            shown = str(getattr(weaker, "value", weaker)) if weaker is not None else "the default"
            given = str(value)[:80] if isinstance(value, str) else _short(value)
            complaints.append(f"{name}={given!r} cannot be used: {error} Using {shown}.")
            return weaker

    base = traits or Settings()
    wishes = _notebook(environ, complaints) if notebook is None else notebook.wishes
    wishes = _known_wishes(wishes, complaints)
    ask = base.ask
    for source in (
        {key: (f"the notebook's gpushare.{key}", wishes[key]) for key in _KEYS if key in wishes},
        {key: (name, environ[name]) for key, name in _KEYS.items() if name in environ},
    ):
        for key, (shown, value) in source.items():
            field = _FIELDS.get(key, key)
            value = read(shown, PARTS[field], value, getattr(ask, field))
            ask = ask._replace(**{field: value})
    rest = {
        name: read(variable, _parser(bounds, weaker), environ[variable], weaker)
        for name, variable, _default, bounds, _help in names.SETTINGS
        if variable in environ
        for weaker in (getattr(base, name),)
    }
    return base._replace(ask=ask, complaints=(*base.complaints, *complaints), **rest)


def _parser(bounds: tuple[Any, ...], weaker: Any) -> Callable[[Any], Any]:
    """The parser of a setting of `names.SETTINGS`, loaded only if there is something to read."""

    def parse(text: Any) -> Any:
        if isinstance(weaker, bool):
            return parse_switch(text)
        if isinstance(weaker, Enum):
            return type(weaker)(parse_word(text, bounds))
        from ...protocol.times import parse_duration

        return parse_duration(text, *bounds)

    return parse


_KEYS: Final = {
    "gpus": names.GPUS,
    "memory": names.MEMORY,
    "class": names.CLASS,
    "reserve": names.RESERVE,
}
#: Where a part of an `Ask` has another name than its key.
_FIELDS: Final = {"class": "priority_class"}

#: The parts of an `Ask`, and what reads each from a person's words. Raises :class:`ValueError`.
PARTS: Final[dict[str, Callable[[Any], Any]]] = {
    "gpus": parse_gpus,
    "memory": parse_memory,
    "priority_class": partial(parse_word, words=("interactive", "batch")),
    "persistent": parse_size,
    "temporary": parse_size,
    "turn_offset": parse_size,
    "reserve": partial(parse_word, words=RESERVES),
}


def _notebook(environ: Mapping[str, str], complaints: list[str]) -> Any:
    text = environ.get(names.NOTEBOOK)
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        complaints.append(f"{names.NOTEBOOK} is not understood and ignored.")
        return None


def _known_wishes(wishes: Any, complaints: list[str]) -> Mapping[str, Any]:
    """The known entries of a notebook's ``gpushare`` metadata; others are reported."""
    if wishes is None:
        return {}
    example = '{"gpus": 2, "memory": "8GiB", "class": "batch"}'
    if not isinstance(wishes, dict):
        complaints.append(
            f"The notebook's gpushare metadata, {_short(wishes)}, is not understood and ignored: "
            f"write it like {example}."
        )
        return {}
    for key in wishes:
        if key not in _KEYS:
            complaints.append(
                f"The notebook's gpushare metadata names {_short(key)}, which is not known and "
                f"ignored: write it like {example}."
            )
    return wishes


def _short(value: Any) -> str:
    return repr(value)[:80]


def read_token(environ: Mapping[str, str], found: Found | None = None) -> str | None:
    """The token that identity may ask for.

    The server's JupyterHub token never for a node manager at ``found`` that a Jupyter server hosts.
    """
    shows_hub = found is None or is_administrators(found, environ)
    return told_token(environ, shows_hub=shows_hub)
