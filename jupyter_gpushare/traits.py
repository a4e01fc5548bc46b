"""Traits for settings as people write them, with errors that name the setting.

The parsers of times and sizes are in ``protocol/``; here are the traits around them for the command
line, the node manager, the Jupyter server and kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from traitlets import Bool, Float, HasTraits, TraitError, TraitType, Undefined

from .protocol.words import did_you_mean


def mistyped(config: Mapping[str, Any], classes: Iterable[type[HasTraits]]) -> str:
    """A sentence about a setting that one of the ``classes`` does not have, or nothing.

    Traitlets only warns in a line that scrolls by, and goes on without the setting.
    """
    for kind in classes:
        known = kind.class_traits(config=True)
        for name in config.get(kind.__name__, ()):
            if name not in known and name[:1].islower():
                hint = did_you_mean(name, known) or "."
                return f"{kind.__name__}.{name}: there is no such setting{hint}"
    return ""


class Told(TraitType[Any, Any]):
    """A value that a parser of ``protocol/`` reads; a refusal names the setting.

    ``parser`` is ``"sizes.parse_gpus"``, loaded when something is to be read; ``more`` is what it
    takes after the value.
    """

    #: Said after a refusal: what else can be written.
    also = ""

    def __init__(
        self, parser: str, default_value: Any = Undefined, *more: Any, info: str = "", **named: Any
    ) -> None:
        self.parser, self._more = parser, more
        self.info_text = info or self.info_text
        super().__init__(default_value, **named)

    def read(self, given: Any) -> Any:
        """The value that is meant. Raises :class:`ValueError` with a sentence."""
        module, _, name = self.parser.partition(".")
        return getattr(import_module(f".protocol.{module}", __package__), name)(given, *self._more)

    def where(self, obj: Any) -> str:
        """The name of this setting for people."""
        return f"{type(obj).__name__}.{self.name}" if self.name else "the value"

    def validate(self, obj: Any, value: Any) -> Any:
        if value is None and self.allow_none:
            return None
        try:
            return self.read(value)
        except ValueError as error:
            where = f"{self.where(obj)} = {value!r} cannot be used"
            raise TraitError(f"{where}: {error}{self.also}") from error

    def from_string(self, s: str) -> str:
        return s


class Duration(Told):
    """Seconds, said as ``90``, ``30m``, ``1h30m``, ``7d``, ``2w``."""

    info_text = "a time such as 30m, 1h30m, 7d or 2w"

    def __init__(
        self, default_value: Any = Undefined, least: float = 0.0, most: float = 1e12, **named: Any
    ) -> None:
        super().__init__("times.parse_duration", default_value, least, most, **named)


class Size(Told):
    """Bytes, said as ``8GiB``, ``512MiB`` or a number of them; 0 where ``least`` is 0."""

    info_text = "a size such as 8GiB or 512MiB"

    def __init__(self, default_value: Any = Undefined, least: int = 0, **named: Any) -> None:
        super().__init__("sizes.parse_size", default_value, least, **named)


def word(words: tuple[str, ...], default_value: Any = None, **named: Any) -> Told:
    """One of some words, in any case."""
    return Told("words.parse_word", default_value, words, info=" or ".join(words), **named)


class Finite(Float[float, Any]):
    """A finite number. NaN needs this check because it passes every comparison with a bound."""

    info_text = "a finite number"

    def validate(self, obj: Any, value: Any) -> Any:
        number = super().validate(obj, value)
        if isinstance(number, float) and not math.isfinite(number):
            where = f"{type(obj).__name__}.{self.name}" if self.name else "the value"
            raise TraitError(f"{where} = {number} cannot be used: write a finite number.")
        return number


def task_traits(*, defaults: bool) -> dict[str, TraitType[Any, Any]]:
    """A trait for each of `names.SETTINGS`; without ``defaults`` all of them are optional."""
    from .protocol import names

    made: dict[str, TraitType[Any, Any]] = {}
    for name, _variable, default, bounds, about in names.SETTINGS:
        about = about if defaults else f"For kernels. {about} Unset: their own default."
        more: dict[str, Any] = {"allow_none": True, "help": about}
        first = default if defaults else None
        if isinstance(default, bool):
            made[name] = Bool(first, **more)
        elif isinstance(default, str):
            made[name] = word(bounds, first, **more)
        else:
            made[name] = Duration(first, *bounds, **more)
        made[name].tag(config=True)
    return made
