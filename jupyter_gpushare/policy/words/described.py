"""How an event describes itself: to people in the history, to administrators in the log.

All that the rest of the program needs to know of an event stands where it is declared, so that no
other file has a list of events. Only its meaning is elsewhere: what makes it (``decide``), and what
it changes (``evolve``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar, dataclass_transform

from .versions import FIRST

T = TypeVar("T")


class Level(Enum):
    """How much a line of the log matters: the numbers are those of :mod:`logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T]):
    """What depends on the field ``by`` of an event: one of ``values``, or else ``otherwise``."""

    by: str
    values: Mapping[Any, T | OneOf[T]]
    otherwise: T | OneOf[T]


def chosen(thing: object, value: T | OneOf[T]) -> T:
    """The value itself, or the one that the fields of ``thing`` choose."""
    while isinstance(value, OneOf):
        value = value.values.get(read(thing, value.by), value.otherwise)
    return value


def read(thing: object, path: str) -> Any:
    """What ``thing`` has at a path such as ``task.process.pid``; ``None`` if a part is ``None``.

    A path that ends with ``len`` is how many there are.
    """
    for part in path.split("."):
        if thing is None:
            return None
        thing = len(thing) if part == "len" else getattr(thing, part)  # type: ignore[arg-type]
    return thing


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log: its name, and the paths of the fields that it tells, by their names.

    It tells no names of notebooks, texts that clients write for people, tokens or secrets.
    """

    level: Level | OneOf[Level]
    name: str | OneOf[str]
    fields: Mapping[str, str]


def line(
    level: Level | OneOf[Level], name: str | OneOf[str], /, *fields: str, **paths: str
) -> Line:
    """A line with these fields of an event, and with those that it names otherwise."""
    return Line(level, name, {one: one for one in fields} | paths)


debug: Final = partial(line, Level.DEBUG)
info: Final = partial(line, Level.INFO)
warning: Final = partial(line, Level.WARNING)


@dataclass(frozen=True, slots=True)
class About:
    """The description of a kind of event.

    ``title`` names it for people who choose among kinds, and ``text`` tells it in a sentence that
    :mod:`..say.telling` fills in. History leaves out what has none; ``unlisted`` says why. ``deed``
    tells it in a pool's list of who did what.
    ``is_quiet``: it changes nothing that a person sees. ``moves_queue``: after it a request may
    wait in another place, for another reason, or may no longer have to.
    """

    title: str | OneOf[str] = ""
    text: str | OneOf[str] = ""
    deed: str | OneOf[str] = ""
    unlisted: str = ""
    log: Line | None = None
    is_quiet: bool | OneOf[bool] = False
    moves_queue: bool = False


@dataclass(frozen=True, slots=True)
class Happening:
    """Base of all events. ``at`` is boot time in seconds.

    ``KINDS`` has all of them by their names, which the ledger keeps. Those that are not ``DURABLE``
    are measured or told again after a restart.
    """

    KINDS: ClassVar[dict[str, Any]]
    ABOUT: ClassVar[About]
    DURABLE: ClassVar[bool]
    SINCE: ClassVar[int] = FIRST
    at: float


H = TypeVar("H", bound=Happening)


def _declare(kind: type[H], about: About, durable: bool, since: int) -> type[H]:
    made = dataclass(frozen=True, slots=True)(kind)
    made.ABOUT, made.DURABLE, made.SINCE = about, durable, since
    made.KINDS[made.__name__] = made
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def recorded(
    title: str | OneOf[str] = "",
    text: str | OneOf[str] = "",
    *,
    deed: str | OneOf[str] = "",
    unlisted: str = "",
    log: Line | None = None,
    moves_queue: bool = False,
    since: int = FIRST,
) -> Callable[[type[H]], type[H]]:
    """Declares an event that is in the ledger before anybody is answered; see :class:`About`.

    ``since`` is the version of the durable events that brought it (:mod:`.versions`).
    """
    about = About(title, text, deed, unlisted, log, moves_queue=moves_queue)
    return lambda kind: _declare(kind, about, True, since)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def measured(
    *, log: Line | None = None, is_quiet: bool | OneOf[bool] = False, moves_queue: bool = False
) -> Callable[[type[H]], type[H]]:
    """Declares an event that is measured, or told, again after a restart; see :class:`About`."""
    about = About(log=log, is_quiet=is_quiet, moves_queue=moves_queue)
    return lambda kind: _declare(kind, about, False, FIRST)
