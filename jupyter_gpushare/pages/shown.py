"""What the node manager says of a thing, as the templates lay it out. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from markupsafe import Markup, escape

from jupyter_gpushare.figures import format_hours
from jupyter_gpushare.protocol import said
from jupyter_gpushare.protocol.periods import moment

Json = Mapping[str, Any]

_TYPED: Final = re.compile(r"`([^`]+)`")
#: Figures that are a moment, and those of them that are shown as how long it is from now.
_MOMENTS: Final = frozenset({"clock", "left", "since", "about"})
#: Subjects that the pages show in a column or a list of their own. All others are notes.
_PLACED: Final = frozenset(
    {"who", "what", "where", "state", "memory", "class", "held", "asks", "waited", "place"}
    | {"ahead", "takes", "summary", "countdown", "part", "health", "tasks", "busy", "used"}
    | {"turns", "node", "you", "others", "waits", "host_memory", "queue"}
)


def prose(text: object) -> Markup:
    """A sentence for people, in which `what is typed` stands between backticks."""
    return Markup(_TYPED.sub(r"<code>\1</code>", str(escape(text))))


def iso(unix: float) -> str:
    """``2026-11-28T14:00:00+00:00``."""
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


def gpu_hours(gpu_seconds: float) -> str:
    """The number with as many figures as say something."""
    return format_hours(gpu_seconds / 3600)


@dataclass(frozen=True, slots=True)
class Fact:
    """One sentence. ``text`` is HTML, ``plain`` the same for an attribute; ``share`` is of one."""

    about: str
    tone: str
    text: Markup
    plain: str
    label: str = ""
    hint: str = ""
    share: float | None = None
    kind: str = ""

    @classmethod
    def of(cls, one: Json, now: float) -> Fact:
        """A sentence of the node manager's at its time ``now``, Unix seconds."""
        share = one.get("share")
        return cls(
            about=str(one.get("about")),
            tone=str(one.get("tone", "plain")),
            text=_html(one, now),
            plain=said.text_of(one, now),
            label=str(one.get("label", "")),
            hint=str(one.get("hint", "")),
            share=None if share is None else min(1.0, max(0.0, float(share))),
            kind=str(one.get("kind", "")),
        )


class Shown:
    """A part of a document, and what is said of it, written when a template asks for it."""

    def __init__(self, of: Json, now: float) -> None:
        self.of, self.now = of, now

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """All that is said."""
        return tuple(Fact.of(one, self.now) for one in said.says(self.of))

    @cached_property
    def first(self) -> Mapping[str, Fact]:
        """The first fact of each subject."""
        return {fact.about: fact for fact in reversed(self.facts)}

    def about(self, *subjects: str) -> list[Fact]:
        """The facts of these subjects."""
        return [fact for fact in self.facts if fact.about in subjects]

    @property
    def notes(self) -> list[Fact]:
        """The facts that have no place of their own."""
        return [fact for fact in self.facts if fact.about not in _PLACED]


def shown(rows: Iterable[Json], now: float) -> list[Shown]:
    """Several parts of a document at the node's time ``now``, Unix seconds."""
    return [Shown(row, now) for row in rows]


def _html(one: Json, now: float) -> Markup:
    """A sentence, its moments marked for the page's script."""
    words = str(prose(said.plain(one.get("text", ""))))
    return Markup(said.FIGURE.sub(lambda found: _figure(found, now), words))


def _figure(found: re.Match[str], now: float) -> Markup:
    words, form = said.figure(found, now), found[1]
    if form not in _MOMENTS or words == "?":
        return escape(words)
    at = float(found[2])
    if form == "clock":
        return Markup('<time datetime="{}">{}</time>').format(iso(at), moment(at))
    return Markup('<time datetime="{}" class="gs-span">{}</time>').format(iso(at), words)
