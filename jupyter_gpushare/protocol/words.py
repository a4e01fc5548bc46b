"""Parsers of settings that are words: one of several, or on and off."""

from __future__ import annotations

from collections.abc import Sequence


def parse_word(text: object, words: Sequence[str]) -> str:
    """One of the words in any case, ``first_use`` for ``first-use``. Raises :class:`ValueError`."""
    plain = str(text).strip().lower().replace("_", "-")
    if plain not in words:
        raise ValueError(f"write {' or '.join(words)}.")
    return plain


def parse_switch(text: object) -> bool:
    """``on`` or ``off``. Raises :class:`ValueError`."""
    plain = str(text).strip().lower()
    if plain in ("on", "true", "1", "yes"):
        return True
    if plain in ("off", "false", "0", "no"):
        return False
    raise ValueError("write on or off.")
