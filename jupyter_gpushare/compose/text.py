"""Puts sentences and figures together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from ..protocol import documents as doc
from ..protocol.said import plain


class Text(str):
    """Words in which a figure stands as ``{form value}``, and nothing that was named looks so."""

    __slots__ = ()


#: What could begin a figure, in a name or together with what stands behind it.
_BRACE: Final = re.compile(r"\{(?=[a-z]|$)")


def text(words: str, *pieces: object) -> Text:
    """``words`` with ``pieces`` in the places of its ``{}``. A piece that is no text is a name."""
    return Text(words.format(*[one if isinstance(one, Text) else name(one) for one in pieces]))


def name(given: object, most: int = 80) -> Text:
    """What somebody else named: one line, not too long, and nothing in it is a figure."""
    # Somebody's file may be called so that it would read as a figure of ours.
    told = plain(given, most)
    return Text(_BRACE.sub("{ ", told) if "{" in told else told)


def join(parts: Iterable[str], between: str = ", ") -> Text:
    """Texts one after the other; empty ones are left out."""
    return Text(between.join(part for part in parts if part))


def who(row: doc.Lease | doc.Waiting | doc.Server) -> Text:
    """Whose something is: ``alice (you)``, ``someone else``."""
    told = name(row["environment"] or "someone else")
    return Text(f"{told} (you)") if row["mine"] else told


def said(
    about: str,
    words: str,
    *pieces: object,
    tone: str = "plain",
    label: str = "",
    share: float | None = None,
    kind: str = "",
    hint: str = "",
) -> doc.Fact:
    """One fact: a line where it has only a tone, because there are many."""
    told = text(words, *pieces) if pieces else words
    if share is None and not (label or kind or hint):
        return f"{about} {told}" if tone == "plain" else f"{about}:{tone} {told}"
    fact: doc.Said = {"about": about, "text": str(told)}
    if tone != "plain":
        fact["tone"] = tone
    if share is not None:
        fact["share"] = min(1.0, max(0.0, share))
    if label:
        fact["label"] = label
    if kind:
        fact["kind"] = kind
    if hint:
        fact["hint"] = str(hint)
    return fact


def perhaps(there: object, about: str, words: str, *pieces: object, **how: Any) -> list[doc.Fact]:
    """One fact, or none where nothing is there to be said."""
    return [said(about, words, *pieces, **how)] if there else []


# -- figures -------------------------------------------------------------------------------------


def _figure(form: str, value: float) -> Text:
    """A tenth of a millisecond of a moment is enough, and so are single bytes of 90 TiB."""
    return Text(f"{{{form} {value:.14g}}}")


def between(low: float, high: float) -> Text:
    """About how long, in seconds."""
    return Text(f"{{range {low:g} {high:g}}}")


#: Bytes.
size: Final = partial(_figure, "bytes")
#: A share of 1.
percent: Final = partial(_figure, "percent")
#: GPU-hours.
hours: Final = partial(_figure, "hours")
#: Seconds that do not change.
span: Final = partial(_figure, "span")
#: How long it is until a moment, Unix time.
left: Final = partial(_figure, "left")
#: How long ago a moment was, Unix time.
since: Final = partial(_figure, "since")
#: About how long it is until a moment, Unix time.
about: Final = partial(_figure, "about")
#: A moment, Unix time, by the reader's clock.
clock: Final = partial(_figure, "clock")


def each(sizes: Sequence[float]) -> Text:
    """``24 GiB``, ``24 GiB each``, ``24 GiB and 80 GiB``: bytes on each of several GPUs."""
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return text("{} each", size(sizes[0]))
    return join(map(size, sizes), " and ")
