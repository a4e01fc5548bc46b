"""A quota's fields as people and programs write and read them, made from their descriptions.

Configuration, REST, pages and the command line all read and tell quotas with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from ..figures import format_duration, format_size
from ..quota import FIELDS, MONTH, WEEK, Field, Unit
from .messages import MOST_MEMORY
from .periods import parse_period
from .shapes import Period, Range, words
from .sizes import MOST_GPUS, format_burst, parse_burst, parse_size
from .times import parse_duration

_MOST: Final = {Unit.COUNT: MOST_GPUS, Unit.BYTES: MOST_MEMORY, Unit.PART: MOST_MEMORY}
_WHOLE: Final = (Unit.COUNT, Unit.HUNDREDTHS, Unit.BYTES)
_TEXTS: Final = (Unit.PERIOD, Unit.WORD)
#: How programs are told what a number counts, and an example for people.
_WIRE: Final = {
    Unit.SECONDS: "seconds",
    Unit.BYTES: "bytes",
    Unit.PART: "up to 1 a share of a GPU, else bytes",
}
_EXAMPLES: Final = {
    Unit.SECONDS: "10m",
    Unit.BYTES: "8GiB",
    Unit.PART: "60GiB, or 0.9 of a GPU",
    Unit.PERIOD: "month, or 2026-10-01",
}


def bounds(field: Field) -> Range:
    """The least and the most of a field, both included; whole where it counts whole things."""
    most = _MOST.get(field.unit, 1e9) if field.most is None else field.most
    kind = int if field.unit in _WHOLE else float
    return Range(kind(field.least), kind(most))


# -- for programs ------------------------------------------------------------------------------


def meaning(name: str) -> str:
    """What a field means, in the words and units of programs."""
    field = FIELDS[name]
    said = [field.about, _WIRE.get(field.unit), f"0: {field.zero}" if field.zero else None]
    return "; ".join(filter(None, [*said, f"null: {field.empty}" if field.null else None]))


def hint_of(name: str) -> Any:
    """A field's type, with its bounds and its meaning beside it, as declarations have them."""
    field = FIELDS[name]
    kind = str if field.unit in _TEXTS else int if field.unit in _WHOLE else float
    form = Period() if field.unit is Unit.PERIOD else bounds(field)
    mark = words(*field.words) if field.words else form
    return Annotated[kind | None if field.null else kind, mark, meaning(name)]


# -- what people write -------------------------------------------------------------------------


def _read_whole(given: object, field: Field) -> int:
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    least, most = bounds(field)
    if isinstance(whole, bool) or not isinstance(whole, int) or not least <= whole <= most:
        what = " of hundredths" if field.unit is Unit.HUNDREDTHS else ""
        raise ValueError(f"it must be a whole number{what} from {least} to {most}.")
    return whole


def _read_number(given: object, field: Field) -> float:
    least, most = bounds(field)
    wrong = isinstance(given, bool) or not isinstance(given, int | float)
    # NaN is in no range; a whole number may be too long for a float, so compare first.
    if wrong or not least <= given <= most:  # type: ignore[operator]  # it is a number
        raise ValueError(f"it must be a number from {least:g} to {most:g}.")
    return float(given)  # type: ignore[arg-type]  # it is a number


def _read_size(given: object, field: Field) -> int:
    if field.least == 0 and given in (0, "0") and given is not False:
        return 0
    whole = int(given) if isinstance(given, float) and given.is_integer() else given
    if isinstance(whole, bool) or not isinstance(whole, int | str):
        raise ValueError(f"{given!r:.40} is no memory size: write it like 8GiB, or bytes.")
    return int(_within(parse_size(whole), field))


def _within(size: float, field: Field) -> float:
    if size > bounds(field).most:
        raise ValueError("it is more than any GPU has.")
    return size


def _read_word(given: object, field: Field) -> str:
    if given not in field.words:
        raise ValueError(f"{given!r:.40} is none of {', '.join(field.words)}.")
    return str(given)


_READERS: Final[Mapping[Unit, Callable[[Any, Field], Any]]] = {
    Unit.COUNT: _read_whole,
    Unit.HUNDREDTHS: _read_whole,
    Unit.NUMBER: _read_number,
    Unit.HOURS: _read_number,
    Unit.SECONDS: lambda given, field: parse_duration(given, *bounds(field)),
    Unit.BYTES: _read_size,
    Unit.PART: lambda given, field: _within(parse_burst(given), field),
    Unit.PERIOD: lambda given, _field: parse_period(given),
    Unit.WORD: _read_word,
}


def read_field(name: str, given: object) -> Any:
    """The value of a field; ``None`` is its null. Raises :class:`ValueError`, a sentence."""
    field = FIELDS[name]
    return None if given is None and field.null else _READERS[field.unit](given, field)


def read_text(name: str, text: str) -> Any:
    """The value of a typed text; a size keeps its unit. Raises :class:`ValueError`, a sentence."""
    given: Any = text
    if FIELDS[name].unit not in (Unit.BYTES, Unit.PART):
        for kind in (int, float):
            try:
                given = kind(text)
                break
            except ValueError:
                continue
    return read_field(name, given)


# -- what people read --------------------------------------------------------------------------


def about(name: str, null: str | None = None) -> str:
    """Sentences about a field; ``null`` is what stands for no value, where it is not the word."""
    field = FIELDS[name]
    example = f", such as {_EXAMPLES[field.unit]}" if field.unit in _EXAMPLES else ""
    said = [*field.words.items(), *([("0", field.zero)] if field.zero else [])]
    said += [(null or field.null, field.empty)] if field.null else []
    more = "".join(f" {word}: {meaning}." for word, meaning in said)
    return f"{field.about[:1].upper()}{field.about[1:]}{example}.{more}"


def label_in_text(name: str) -> str:
    """A field's label within a sentence."""
    label = FIELDS[name].label
    return label if label[:2].isupper() else label[:1].lower() + label[1:]


def period_text(per: str | None) -> str:
    """What a budget is for: ``this month``, ``since 2026-10-01``. Empty for the rolling window."""
    return f"this {per}" if per in (WEEK, MONTH) else f"since {per}" if per else ""


def value_text(name: str, value: Any) -> str:
    """A field's value for a table: ``8 GiB``, ``never``, ``the node's own``."""
    field = FIELDS[name]
    if value is None:
        return field.empty
    if value == 0 and field.zero:
        return field.zero
    return _TELLERS[field.unit](value)


_TELLERS: Final[Mapping[Unit, Callable[[Any], str]]] = {
    Unit.COUNT: str,
    Unit.HUNDREDTHS: lambda value: f"{value} % of a GPU",
    Unit.NUMBER: "{:g}".format,
    Unit.HOURS: "{:g}".format,
    Unit.SECONDS: format_duration,
    Unit.BYTES: format_size,
    Unit.PART: format_burst,
    Unit.PERIOD: period_text,
    Unit.WORD: str,
}


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a quota's document says of its fields: those of its own, not the node's instead."""
    budget = row.get("budget") or {}
    told = {"gpu_hours": budget.get("hours"), "per": budget.get("per"), **row}
    return {name: told.get(name) for name in FIELDS} | {"burst_memory": row.get("own_burst_memory")}


def quota_text(told: Mapping[str, Any], *, when: str = "") -> str:
    """Fields in words: ``GPUs: 2, memory on each GPU: 8 GiB, GPU-hours: 20 this month``.

    ``when`` are the words for the rolling window.
    """
    parts = []
    for name in FIELDS:
        if name not in told or (name == "per" and "gpu_hours" in told):
            continue
        text = value_text(name, told[name])
        if name == "gpu_hours" and told[name] is not None:
            text = f"{text} {period_text(told.get('per')) or when}".rstrip()
        parts.append(f"{label_in_text(name)}: {text}")
    return ", ".join(parts)


def said_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a sentence about a whole quota says: those with a value, and the memory."""
    return {n: value for n, value in told.items() if value is not None or n == "memory"}


def source_text(row: Mapping[str, Any]) -> str:
    """Where a quota comes from, as a list says it: ``administrator (GPU-hours), else the default``.

    With the groups that it comes from, and with the fields that are an environment's own.
    """
    source, groups, own = str(row.get("source", "")), row.get("from_groups"), row.get("own", ())
    word = {"override": "administrator", "user": "configuration"}.get(source, source)
    if groups:
        return f"{word}{'s' if len(groups) > 1 else ''} {', '.join(groups)}"
    if "rest" not in row:
        return word
    return f"{word} ({', '.join(map(label_in_text, own))}), else {row['rest']}"
