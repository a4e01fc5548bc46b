"""The forms of the pages: the typed text, its mistakes, and the call it makes. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.periods import parse_period
from jupyter_gpushare.protocol.quota import about, fields_of, quota_text, read_field, read_text
from jupyter_gpushare.protocol.sizes import parse_size
from jupyter_gpushare.quota import FIELDS, MONTH, WEEK, Field, Unit

#: The periods of a budget that the form offers; ``term`` begins on the day of another field.
PERIODS: Final = {
    "": "the node's rolling window",
    WEEK: "each calendar week",
    MONTH: "each calendar month",
    "term": "the term that begins on",
}
#: What a number alone means, for units of which people know one: its unit, and its name.
_ALONE: Final = {Unit.BYTES: ("GiB", "GiB"), Unit.SECONDS: ("m", "minutes")}
#: What the lists have in columns of their own.
_LISTED: Final = ("gpus", "memory", "weight", "gpu_hours", "per")
_NUMBER: Final = re.compile(r"\d{1,16}(?:[.,]\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuotaForm:
    """The text of each input, and the mistake beside it.

    For several users the form changes only the ``ticked`` parts. Of one, parts that ``follow`` the
    rest again are taken back.
    """

    texts: Mapping[str, str]
    ticked: frozenset[str] = frozenset()
    mistakes: Mapping[str, str] = field(default_factory=dict)
    follow: frozenset[str] = frozenset()


def filled(quota: Mapping[str, Any]) -> QuotaForm:
    """The form with a quota that is there."""
    texts: dict[str, str] = {}
    for name, value in fields_of(quota).items():
        texts |= _shown(name, value)
    return QuotaForm(texts)


def read_quota(
    typed: Mapping[str, str],
    ticked: Collection[str] | None = None,
    now: QuotaForm | None = None,
    needs: Collection[str] = (),
    follow: Collection[str] = (),
) -> tuple[QuotaForm, dict[str, Any]]:
    """The form as it was typed, and the wish; the wish only counts without mistakes.

    These stay as they are, and are not in the wish: a field whose input is not there, or reads as
    in the form ``now`` and is not one that it ``needs``, or, of several users, is not ``ticked``.
    Fields that ``follow`` the group again are in the wish by that only.
    """
    texts = {**MANY.texts, **{name: text.strip() for name, text in typed.items() if text.strip()}}
    wish: dict[str, Any] = {}
    mistakes: dict[str, str] = {}
    for part in PARTS:
        if part.name not in typed or (ticked is not None and part.name not in ticked):
            continue
        if part.name in follow:
            wish.setdefault("follow", []).append(part.name)
            continue
        is_same = now is not None and all(texts[name] == now.texts[name] for name in part.inputs)
        if is_same and part.name not in needs:
            continue
        where = part.name
        try:
            if part.day and texts[where] == "term":
                where = part.day
                wish[part.name] = parse_period(texts[where])
            else:
                wish[part.name] = _read(part.name, texts[where])
        except ValueError as error:
            empty = f" Empty: {FIELDS[part.name].empty}." if part.empty else ""
            mistakes[where] = f"{str(error)[:1].upper()}{str(error)[1:]}{empty}"
    if ticked is not None and not wish and not mistakes:
        mistakes["ticked"] = "Tick what is to be changed."
    return QuotaForm(texts, frozenset(ticked or ()), mistakes, frozenset(follow)), wish


def undone(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields of a form that turns the quota ``now`` into what was ``before`` an edit."""
    own, is_own = before.get("own") or (), now.get("own") or ()
    if not own:
        return [("action", "unset")]
    was, texts = filled(before).texts, filled(now).texts
    told: list[tuple[str, str]] = []
    for part in PARTS:
        differs = any(was[name] != texts[name] for name in part.inputs)
        if part.name in own and (differs or part.name not in is_own):
            told += [(name, was[name]) for name in part.inputs]
        elif part.name in is_own and part.name not in own:
            told += [(part.name, ""), ("follow", part.name)]
    return told


def own_text(quota: Mapping[str, Any]) -> str:
    """What a quota says besides what lists have in columns; may be empty."""
    told = fields_of(quota).items()
    return quota_text({n: value for n, value in told if value is not None and n not in _LISTED})


def _read(name: str, text: str) -> Any:
    """The value of a typed text. Raises :class:`ValueError`, a sentence."""
    field = FIELDS[name]
    if not text and field.null:
        return None
    if not _NUMBER.fullmatch(text):
        return read_field(name, text.lower() if field.words else text)
    number = text.replace(",", ".")
    return read_text(name, number + (_ALONE.get(field.unit, ("",))[0] if float(number) else ""))


def _shown(name: str, value: Any) -> dict[str, str]:
    """The texts of the inputs of a field with this value."""
    if name == "per":
        known = value is None or value in PERIODS
        return {name: (value or "") if known else "term", DAY: "" if known else value}
    return {name: "" if value is None else _typed(FIELDS[name], value)}


def _typed(field: Field, value: Any) -> str:
    """A value as a person types it."""
    if value == 0:
        return "0"
    if field.unit is Unit.BYTES or (field.unit is Unit.PART and value > 1):
        return _sized(int(value))
    if field.unit in (Unit.COUNT, Unit.HUNDREDTHS, Unit.WORD):
        return str(value)
    number = value / 60 if field.unit is Unit.SECONDS else value
    return f"{number:.12f}".rstrip("0").rstrip(".")  # without an exponent


def _sized(size: int) -> str:
    """The shortest text that is exactly ``size`` bytes; else in MiB, rounded."""
    for unit in ("GiB", "MiB", "GB"):
        text = f"{size / parse_size('1' + unit, 1):.6f}".rstrip("0").rstrip(".") + unit
        if text != f"0{unit}" and parse_size(text, 1) == size:
            return text
    return f"{max(1, round(size / 2**20))}MiB"


@dataclass(frozen=True, slots=True)
class Part:
    """A field in the form: an input, or a choice of ``options``, one of which may need a ``day``.

    ``empty`` stands in an empty input.
    """

    name: str
    label: str
    hint: str
    empty: str
    keyboard: str
    options: Mapping[str, str]
    day: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return (self.name, self.day) if self.day else (self.name,)


#: The input for the first day of a term.
DAY: Final = "first"


def _part(name: str, field: Field) -> Part:
    alone = f" A number alone is {_ALONE[field.unit][1]}." if field.unit in _ALONE else ""
    options = PERIODS if field.unit is Unit.PERIOD else {}
    if field.words:
        options = {
            "": field.empty,
            **{word: f"{word}: {what}" for word, what in field.words.items()},
        }
    return Part(
        name,
        field.label,
        f"{about(name, 'Empty')}{alone}",
        field.empty if field.null else "",
        "numeric" if field.unit in (Unit.COUNT, Unit.HUNDREDTHS) else "text",
        options,
        DAY if field.unit is Unit.PERIOD else "",
    )


def _ordered() -> list[str]:
    """The fields in the order of the page: the period stands behind its hours."""
    rest = [name for name in FIELDS if name != "per"]
    rest.insert(rest.index("gpu_hours") + 1, "per")
    return rest


PARTS: Final = tuple(_part(name, FIELDS[name]) for name in _ordered())
INPUTS: Final = tuple(name for part in PARTS for name in part.inputs)
#: The form for several users: empty, for they need not have the same.
MANY: Final = QuotaForm(dict.fromkeys(INPUTS, ""))


def checked_names(names: list[str]) -> tuple[list[str], str]:
    """The names, and the mistake in one of them; empty if there is none."""
    try:
        return [wishes.ENVIRONMENT.read(name.strip()) for name in names], ""
    except NodeProblem as problem:
        return names, problem.message
