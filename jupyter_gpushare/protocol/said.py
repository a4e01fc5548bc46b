"""Writes out what the node manager has said: a sentence with its figures, at a moment.

The node manager composes each fact once, as a :class:`~.documents.Said`, or as one line where it
has a text only. A figure stands in the text as ``{form value}``, a number with its unit or a
moment. Whoever shows the sentence writes the figures, so a time counts on while nobody asks the
node manager again.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..figures import format_about, format_duration, format_hours, format_range, format_size

Document = Mapping[str, Any]

#: No figure is as large, even if a node manager sends it.
_MOST: Final = 2.0**63
#: A figure in a text: its form, its value, and of a range its end.
FIGURE: Final = re.compile(r"\{([a-z]+) ([^ {}]+)(?: ([^ {}]+))?\}")


def says(document: object) -> list[Document]:
    """The sentences of a document. An older node manager composes none."""
    found = document.get("says") if isinstance(document, Mapping) else None
    facts = found if isinstance(found, list) else []
    return [
        _of_line(one) if isinstance(one, str) else one
        for one in facts
        if isinstance(one, str | Mapping)
    ]


def _of_line(line: str) -> Document:
    """``about text`` or ``about:tone text``."""
    head, _, text = line.partition(" ")
    subject, _, tone = head.partition(":")
    return {"about": subject, "text": text, "tone": tone or "plain"}


def about(document: object, *subjects: str) -> list[Document]:
    """The sentences of a document about these subjects, in the order in which they were said."""
    return [one for one in says(document) if one.get("about") in subjects]


def text_of(said: Document, now: float) -> str:
    """One sentence in words; ``now`` is the node's time, Unix seconds."""
    return FIGURE.sub(lambda found: figure(found, now), plain(said.get("text", "")))


def texts(said: Iterable[Document], now: float) -> str:
    """Several sentences one after the other."""
    return " ".join(text_of(one, now) for one in said)


def first(document: object, subject: str, now: float) -> str:
    """The words about one subject; empty where nothing is said about it."""
    return texts(about(document, subject)[:1], now)


def figure(found: re.Match[str], now: float) -> str:
    """A figure in words; ``?`` for what is none."""
    form, value, most = _FORMS.get(found[1]), number(found[2]), number(found[3] or found[2])
    # A newer node manager may have forms that are not known here: the rest of the sentence still
    # helps.
    return "?" if form is None or value is None or most is None else form(value, most, now)


def usage_text(span: str, held: float, busy: float, charged: float) -> str:
    """What was held in a ``span`` of time; all in GPU-seconds."""
    share = f" ({busy / held:.0%})" if held > 0 else ""
    told = f"In the last {span}: {format_hours(held / 3600)} GPU-hours held, "
    told += f"{format_hours(busy / 3600)} of them busy{share}"
    turns = f"; {format_hours(charged / 3600)} count, the time of your turns"
    return f"{told}{turns if held - charged >= 60 else ''}."


def clock(at: float, now: float) -> str:
    """``15:40``, ``15:40:05`` if that is soon, ``Tue 15:40``: by the reader's own clock."""
    moment, today = time.localtime(at), time.localtime(now)
    if abs(at - now) < 600:
        return time.strftime("%H:%M:%S", moment)
    same_day = moment[:3] == today[:3]
    within = abs(at - now) < 6 * 86400
    form = "%H:%M" if same_day else "%a %H:%M" if within else "%d %b %H:%M"
    return time.strftime(form, moment)


#: How a figure is written, by its form: of its value, its end, and the node's time.
_FORMS: Final[Mapping[str, Callable[[float, float, float], str]]] = {
    "bytes": lambda value, most, now: format_size(int(value)),
    "percent": lambda value, most, now: f"{100 * value:.0f} %",
    "hours": lambda value, most, now: format_hours(value),
    "span": lambda value, most, now: format_duration(value),
    "range": lambda value, most, now: format_range(value, most),
    "left": lambda value, most, now: format_duration(max(1.0, math.ceil(value - now))),
    "since": lambda value, most, now: format_duration(max(0.0, now - value)),
    "about": lambda value, most, now: format_about(max(1.0, value - now)),
    "clock": lambda value, most, now: clock(value, now),
}


def number(digits: str) -> float | None:
    """What a figure has as its value; ``None`` for what is no number, or larger than any."""
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if abs(value) < _MOST else None


def plain(text: object, most: int = 2000) -> str:
    """One line of at most so many characters that no terminal takes for a command."""
    whole = str(text)
    cut = whole if len(whole) <= most else f"{whole[: most - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(sign if sign.isprintable() else " " for sign in cut)
