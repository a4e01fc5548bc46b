"""The description of a setting, written beside its field; traits and docs are derived from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import Any, Final

_KEY: Final = "setting"


class Unit(Enum):
    """In what a setting is said."""

    SECONDS = auto()
    BYTES = auto()
    COUNT = auto()
    NUMBER = auto()
    #: Up to 1 a share of a GPU, above it bytes.
    PART = auto()
    #: One of :attr:`Setting.words`.
    WORD = auto()
    FLAG = auto()
    TEXT = auto()
    NAMES = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    """``words``: what people write for what the code reads. ``by_gpu``: like ``{"H200": value}``.

    ``name``: what people call it, where that is not the field's name.
    """

    unit: Unit
    help: str
    least: float = 0.0
    most: float | None = None
    words: Mapping[str, Any] = field(default_factory=dict)
    by_gpu: bool = False
    name: str = ""


def setting(default: Any, unit: Unit, help: str, **more: Any) -> Any:
    """A field that people may set; ``None`` as its default may be written too.

    The words of an enum are its values, where none are given.
    """
    if isinstance(default, Enum):
        more = {"words": {str(one.value): one for one in type(default)}, **more}
    return field(default=default, metadata={_KEY: Setting(unit, help, **more)})


def settings_of(kind: Any) -> Iterator[tuple[str, Any, Setting]]:
    """Name, default and what is said of each field that people may set; others are internal."""
    for one in fields(kind):
        if _KEY in one.metadata:
            yield one.name, one.default, one.metadata[_KEY]
