"""Makes the traits of the node manager's settings from the descriptions beside their fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from traitlets import Bool, Dict, Enum, Integer, List, TraitType, Undefined, Unicode
from traitlets.config import Configurable

from ...policy.words.settings import Setting, Unit, settings_of
from ...traits import Duration, Finite, Size, Told

T = TypeVar("T")


def traits_of(*kinds: Any) -> dict[str, TraitType[Any, Any]]:
    """A trait for each setting of these dataclasses, by the name that people write."""
    return {
        said.name or name: _trait(said, default).tag(config=True)
        for kind in kinds
        for name, default, said in settings_of(kind)
    }


def read(told: Configurable, kind: type[T]) -> T:
    """The configured values as the dataclass that the code reads."""
    return kind(
        **{
            name: _value(said, getattr(told, said.name or name))
            for name, _default, said in settings_of(kind)
        }
    )


def _trait(said: Setting, default: Any) -> TraitType[Any, Any]:
    if said.by_gpu:
        one = _trait(replace(said, by_gpu=False), Undefined)
        return Dict(value_trait=one, key_trait=Unicode(), help=said.help)
    more: dict[str, Any] = {"allow_none": default is None, "help": said.help}
    match said.unit:
        case Unit.SECONDS:
            return Duration(default, said.least, said.most or 1e12, **more)
        case Unit.BYTES:
            return Size(default, int(said.least), **more)
        case Unit.PART:
            info = "a part of a GPU such as 0.9, a size such as 40GiB, or 0"
            return Told("sizes.parse_burst", default, info=info, **more)
        case Unit.NUMBER:
            return Finite(default, min=said.least, max=said.most, **more)
        case Unit.COUNT:
            return Integer(default, min=int(said.least), max=said.most, **more)
        case Unit.WORD:
            words = {value: word for word, value in said.words.items()}
            return Enum(tuple(said.words), words.get(default, Undefined), **more)
        case Unit.FLAG:
            return Bool(default, **more)
        case Unit.NAMES:
            return List(Unicode(), sorted(default), **more)
        case Unit.TEXT:
            return Unicode(default, **more)


def _value(said: Setting, given: Any) -> Any:
    """The value that the code reads for the value that people wrote."""
    if said.by_gpu:
        plain = replace(said, by_gpu=False)
        return tuple((part, _value(plain, one)) for part, one in sorted(given.items()))
    if said.unit is Unit.WORD:
        return said.words[given]
    return frozenset(given) if said.unit is Unit.NAMES else given
