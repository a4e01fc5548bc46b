"""Words: settings that are one of several, what a mistyped one may mean, and numbers of things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def parse_word(text: object, words: Sequence[str]) -> str:
    """One of the words in any case, ``first_use`` for ``first-use``. Raises :class:`ValueError`."""
    plain = str(text).strip().lower().replace("_", "-")
    if plain not in words:
        raise ValueError(f"write {' or '.join(words)}{did_you_mean(plain, words) or '.'}")
    return plain


def parse_switch(text: object) -> bool:
    """``on`` or ``off``. Raises :class:`ValueError`."""
    plain = str(text).strip().lower()
    if plain in ("on", "true", "1", "yes"):
        return True
    if plain in ("off", "false", "0", "no"):
        return False
    raise ValueError("write on or off.")


def did_you_mean(given: str, known: Iterable[str], prefix: str = "") -> str:
    """``; did you mean …?``, or an empty string if no known word is similar."""
    from difflib import get_close_matches  # only after a mistake

    close = get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
