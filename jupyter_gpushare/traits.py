"""Settings as people write them, and what is said where they cannot be used.

What reads a time or a size is in ``protocol/``; here are the traits around it, for whoever has
settings: command line, node manager, Jupyter server, kernels.
"""

from __future__ import annotations

from typing import Any

from traitlets import TraitError, TraitType, Undefined


class Told(TraitType[Any, Any]):
    """What :meth:`read` makes of a value; a refusal names the setting."""

    #: Said after a refusal: what else can be written.
    also = ""

    def read(self, given: Any) -> Any:
        """The value that is meant. Raises :class:`ValueError` with a sentence."""
        raise NotImplementedError

    def where(self, obj: Any) -> str:
        """What people call this setting."""
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
        self._least, self._most = least, most
        super().__init__(default_value, **named)

    def read(self, given: Any) -> float:
        from .protocol.times import parse_duration

        seconds = parse_duration(given)
        if not self._least <= seconds <= self._most:
            raise ValueError(f"it must be from {self._least:g} to {self._most:g} seconds.")
        return seconds
