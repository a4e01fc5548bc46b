"""The forms of the pages: the typed text, its mistakes, and the call it makes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.names import RESERVES
from jupyter_gpushare.protocol.periods import MONTH, WEEK, parse_period
from jupyter_gpushare.protocol.quota import QUOTA, read_field
from jupyter_gpushare.protocol.sizes import MOST_GPUS, MOST_SHARE, format_size, parse_size

from . import words

UNITS: Final = ("GiB", "MiB", "GB")
#: The periods of a budget that the form offers; ``term`` begins on the day of another field.
PERIODS: Final = {
    "": "in the rolling window",
    WEEK: "each calendar week",
    MONTH: "each calendar month",
    "term": "in the term that begins on",
}
_NUMBER: Final = re.compile(r"\d{1,16}(?:[.,]\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuotaForm:
    """The text of each input, and the mistake beside it.

    For several users the form changes only the ``ticked`` parts.
    """

    texts: Mapping[str, str]
    ticked: frozenset[str] = frozenset()
    mistakes: Mapping[str, str] = field(default_factory=dict)

    def marked(self, where: str, mistake: str) -> QuotaForm:
        """The same with one more mistake."""
        return replace(self, mistakes={**self.mistakes, where: mistake})


def filled(quota: Mapping[str, Any]) -> QuotaForm:
    """The form with a quota that is there."""
    wish = as_wish(quota)
    texts: dict[str, str] = {}
    for part in PARTS:
        texts |= part.shows(wish)
    return QuotaForm(texts)


def read_quota(
    typed: Mapping[str, str],
    ticked: Collection[str] | None = None,
    now: QuotaForm | None = None,
) -> tuple[QuotaForm, dict[str, Any]]:
    """The form as it was typed, and the wish; the wish only counts without mistakes.

    These stay as they are, and are not in the wish: a part whose input is not there, or reads as in
    the form ``now``, or, of several users, is not ``ticked``; and an empty weight.
    """
    texts = {**MANY.texts, **{name: text.strip() for name, text in typed.items() if text.strip()}}
    wish: dict[str, Any] = {}
    mistakes: dict[str, str] = {}
    for part in PARTS:
        if part.name not in typed or (ticked is not None and part.name not in ticked):
            continue
        if now is not None and all(texts[name] == now.texts[name] for name in part.inputs):
            continue
        try:
            wish |= part.reads(texts)
        except _Mistake as mistake:
            mistakes[mistake.where or part.name] = str(mistake)
    if ticked is not None and not wish and not mistakes:
        mistakes["ticked"] = "Tick what is to be changed."
    return QuotaForm(texts, frozenset(ticked or ()), mistakes), wish


def as_wish(quota: Mapping[str, Any]) -> dict[str, Any]:
    """A quota's document as a wish for all that it says of its own."""
    budget = quota.get("budget") or quota
    named = {**quota, "burst_memory": quota.get("own_burst_memory")}
    named |= {"gpu_hours": budget.get("hours", budget.get("gpu_hours")), "per": budget.get("per")}
    if named["gpu_hours"] is None:
        named["per"] = None
    said = {name: named.get(name) for name in QUOTA}
    return {name: given for name, given in said.items() if given is not None or name == "memory"}


def own_text(quota: Mapping[str, Any]) -> str:
    """What a quota says for itself of that which the node decides for others; may be empty."""
    wish = as_wish(quota)
    return wish_text({name: wish[name] for name in wish if QUOTA[name].null == "default"})


def wish_text(wish: Mapping[str, Any]) -> str:
    """A quota in words for a sentence, without the parts that it does not name."""
    return ", ".join(part.says(wish) for part in PARTS if part.wishes in wish)


def _plain(number: float) -> str:
    """As short as reads back as the same number, without an exponent."""
    return f"{number:.12f}".rstrip("0").rstrip(".")


def _in_unit(size: int) -> tuple[str, str]:
    """The shortest number that is exactly ``size`` bytes; else in MiB, rounded."""
    for unit in UNITS:
        text = f"{size / parse_size('1' + unit, 1):.6f}".rstrip("0").rstrip(".")
        if text != "0" and parse_size(text + unit, 1) == size:
            return text, unit
    return str(max(1, round(size / 2**20))), "MiB"


class _Mistake(ValueError):
    """A mistake in a field (``where``, if it is not the first of its part)."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


def _read(name: str, given: Any, wanted: str) -> Any:
    """A field, read by the common parser; ``wanted`` replaces its error with the form's words."""
    try:
        return read_field(name, given)
    except ValueError:
        raise _Mistake(wanted) from None


def _number(text: str) -> float | str:
    """The typed number, maybe with a decimal comma; other text unchanged."""
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else text


def _gpus(texts: Mapping[str, str]) -> dict[str, Any]:
    count = (
        int(texts["gpus"]) if re.fullmatch(r"\d{1,9}", texts["gpus"], re.ASCII) else texts["gpus"]
    )
    wanted = f"A whole number from 0 to {MOST_GPUS}; 0 is no GPU at all."
    return {"gpus": _read("gpus", count, wanted)}


def _memory(texts: Mapping[str, str]) -> dict[str, Any]:
    """Bytes of ``8`` and a unit, or of ``8GiB`` with any unit."""
    unit = texts["unit"] if _NUMBER.fullmatch(texts["memory"]) and texts["unit"] in UNITS else ""
    # A bare number without its unit is not read as bytes.
    text = texts["memory"] + (unit or ("" if re.search(r"[a-zA-Z]", texts["memory"]) else " ?"))
    wanted = "A size of 2 MiB or more, as 8 or 0.5 with its unit; empty is the whole GPU."
    return {"memory": _read("memory", text if texts["memory"] else None, wanted)}


def _weight(texts: Mapping[str, str]) -> dict[str, Any]:
    if not texts["weight"]:
        return {}
    return {"weight": _read("weight", _number(texts["weight"]), "A number above 0, as 1 or 2.5.")}


def _hours(texts: Mapping[str, str]) -> dict[str, Any]:
    if not texts["hours"]:
        return {"gpu_hours": None}
    wanted = "A number from 0, as 20 or 2.5; empty is no budget."
    hours = _read("gpu_hours", _number(texts["hours"]), wanted)
    if texts["per"] not in PERIODS:
        raise _Mistake("One of the choices.", "per")
    per: str | None = texts["per"] or None
    if per == "term":
        try:
            per = parse_period(texts["first"])
        except ValueError:
            raise _Mistake("The first day of the term, as 2026-10-01.", "first") from None
    return {"gpu_hours": hours, "per": per}


def _idle(texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts["idle"].replace(",", ".") + ("m" if _NUMBER.fullmatch(texts["idle"]) else "")
    wanted = (
        "Minutes from 0, which is never, or a time such as 1h30m; empty is the node's own time-out."
    )
    return {"idle_timeout": _read("idle_timeout", text or None, wanted)}


def _burst(texts: Mapping[str, str]) -> dict[str, Any]:
    wanted = "A size such as 60GiB, or a part of a GPU such as 0.9; 0: none; empty: the node's own."
    return {"burst_memory": _read("burst_memory", texts["burst"] or None, wanted)}


def _offset(texts: Mapping[str, str]) -> dict[str, Any]:
    wanted = "A size such as 1GiB, or 0; empty: the node's own."
    return {"turn_offset": _read("turn_offset", texts["offset"] or None, wanted)}


def _reserve(texts: Mapping[str, str]) -> dict[str, Any]:
    wanted = f"One of {', '.join(RESERVES)}; empty: as on the node."
    return {"reserve": _read("reserve", texts["reserve"].lower() or None, wanted)}


def _pin(texts: Mapping[str, str]) -> dict[str, Any]:
    text = texts["pin"].replace(",", ".") + ("m" if _NUMBER.fullmatch(texts["pin"]) else "")
    wanted = "Minutes from 0, which is not at all, or a time such as 90s; empty: the node's own."
    return {"pin_turn_limit": _read("pin_turn_limit", text or None, wanted)}


def _interactive(texts: Mapping[str, str]) -> dict[str, Any]:
    wanted = f"A whole number from 0 to {MOST_GPUS}; empty: no bound."
    text = texts["interactive"]
    return {"interactive": _read("interactive", _number(text) if text else None, wanted)}


def _share(texts: Mapping[str, str]) -> dict[str, Any]:
    wanted = f"A whole number of hundredths from 0 to {MOST_SHARE}; empty: the node's own."
    text = texts["share"]
    return {"share": _read("share", _number(text) if text else None, wanted)}


def _show(name: str, wished: str, text: Callable[[Any], str]) -> Shows:
    """Show a field of a wish as ``text`` of it; empty without it."""
    return lambda wish: {name: "" if wish.get(wished) is None else text(wish[wished])}


def _show_memory(wish: Mapping[str, Any]) -> dict[str, str]:
    size = wish.get("memory")
    number, unit = _in_unit(size) if size is not None else ("", UNITS[0])
    return {"memory": number, "unit": unit}


def _show_hours(wish: Mapping[str, Any]) -> dict[str, str]:
    hours, per = wish.get("gpu_hours"), wish.get("per") or ""
    known = per in PERIODS
    return {
        "hours": "" if hours is None else _plain(hours),
        "per": per if known else "term",
        "first": "" if known else per,
    }


def _show_burst(burst: float) -> str:
    return _plain(burst) if burst <= 1 else "".join(_in_unit(int(burst)))


def _say_memory(wish: Mapping[str, Any]) -> str:
    memory = wish["memory"]
    return "whole GPUs" if memory is None else f"{format_size(memory)} on each"


def _say_hours(wish: Mapping[str, Any]) -> str:
    hours = wish["gpu_hours"]
    if hours is None:
        return "no GPU-hour budget"
    return f"{hours:g} GPU-hours{words.per_text(wish.get('per'))}"


class Choice(NamedTuple):
    """A choice beside an input: its values and their words."""

    name: str
    label: str
    options: Mapping[str, str]


Shows = Callable[[Mapping[str, Any]], dict[str, str]]
Says = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the form: an input of its ``name``, maybe with a ``choice`` and a ``day``.

    ``of``: the field of the quota that it is about, if this has another name. ``shows`` turns a
    wish into the texts of its inputs, ``reads`` the texts into a wish, and ``says`` a wish into
    words. ``empty`` stands in an empty input.
    """

    name: str
    label: str
    hint: str
    shows: Shows
    reads: Callable[[Mapping[str, str]], dict[str, Any]]
    says: Says
    of: str = ""
    empty: str = ""
    keyboard: str = "decimal"
    choice: Choice | None = None
    day: tuple[str, str] | None = None

    @property
    def wishes(self) -> str:
        """The field of the quota that it is about."""
        return self.of or self.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its inputs."""
        more = (self.choice.name,) if self.choice else ()
        return (self.name, *more, *(self.day[:1] if self.day else ()))


#: In the order of the page. A new field of a quota gets its part here.
PARTS: Final = (
    Part(
        "gpus",
        "GPUs",
        "How many GPUs each user may hold at once; 0: none.",
        _show("gpus", "gpus", str),
        _gpus,
        lambda wish: words.gpus(wish["gpus"]),
        keyboard="numeric",
    ),
    Part(
        "memory",
        "Memory on each GPU",
        "Empty: the whole GPU.",
        _show_memory,
        _memory,
        _say_memory,
        empty="the whole GPU",
        choice=Choice("unit", "Unit of the memory", {unit: unit for unit in UNITS}),
    ),
    Part(
        "weight",
        "Weight",
        "Of two users that wait, one with weight 2 gets twice as much as one with weight 1. Empty: "
        "as it is now.",
        _show("weight", "weight", "{:g}".format),
        _weight,
        lambda wish: f"weight {wish['weight']:g}",
    ),
    Part(
        "hours",
        "GPU-hours",
        "A budget; when it is spent, new requests wait. Empty: no budget. Days begin at midnight "
        "in the node's time zone; a term goes on until you set the next one.",
        _show_hours,
        _hours,
        _say_hours,
        of="gpu_hours",
        empty="not limited",
        choice=Choice("per", "What the GPU-hours are for", PERIODS),
        day=("first", "First day of the term"),
    ),
    Part(
        "idle",
        "Minutes until an idle GPU may be taken",
        "0: never. Empty: the node's own time-out.",
        _show("idle", "idle_timeout", lambda seconds: _plain(seconds / 60)),
        _idle,
        lambda wish: words.idle_text(wish["idle_timeout"]),
        of="idle_timeout",
        empty="the node's own time-out",
    ),
    Part(
        "burst",
        "Limits are lifted up to",
        "On a GPU that is nearly empty: a size such as 60GiB, or a part of the GPU such as 0.9; 0: "
        "never. Empty: as on the node.",
        _show("burst", "burst_memory", _show_burst),
        _burst,
        lambda wish: words.burst_text(wish["burst_memory"]),
        of="burst_memory",
        empty="as on the node",
        keyboard="text",
    ),
    Part(
        "offset",
        "Head-room in turns",
        "Before its tasks' parts of a GPU that is used by turns: a size such as 1GiB. Empty: as on "
        "the node.",
        _show("offset", "turn_offset", lambda size: "".join(_in_unit(size))),
        _offset,
        lambda wish: words.offset_text(wish["turn_offset"]),
        of="turn_offset",
    ),
    Part(
        "reserve",
        "What a request reserves without a size",
        "whole: all that the quota gives. quota: that, until it is measured. estimate: what "
        "earlier runs of the same code needed. Empty: as on the node.",
        _show("reserve", "reserve", str),
        _reserve,
        lambda wish: words.reserve_text(wish["reserve"]),
        empty="as on the node",
        keyboard="text",
    ),
    Part(
        "pin",
        "Minutes for which a pin keeps a turn",
        "Where tasks take turns: others wait for so long, at most. 0: not at all. Empty: as on the "
        "node.",
        _show("pin", "pin_turn_limit", lambda seconds: _plain(seconds / 60)),
        _pin,
        lambda wish: words.pin_text(wish["pin_turn_limit"]),
        of="pin_turn_limit",
        empty="as on the node",
    ),
    Part(
        "interactive",
        "GPUs for interactive requests",
        "So many may be had or waited for at once by notebooks and programs in a terminal; what "
        "is asked beyond is batch. Empty: no bound.",
        _show("interactive", "interactive", str),
        _interactive,
        lambda wish: words.interactive_text(wish["interactive"]),
        empty="no bound",
        keyboard="numeric",
    ),
    Part(
        "share",
        "Share for promises, in hundredths of a GPU",
        "Deadlines and rates that people name may claim so much of one GPU's time at once. 0: they "
        "cannot name any. Empty: as on the node.",
        _show("share", "share", str),
        _share,
        lambda wish: words.share_text(wish["share"]),
        empty="as on the node",
        keyboard="numeric",
    ),
)
INPUTS: Final = tuple(name for part in PARTS for name in part.inputs)
#: The form for several users: empty, for they need not have the same.
MANY: Final = QuotaForm({**dict.fromkeys(INPUTS, ""), "unit": UNITS[0]})


def checked_names(names: list[str]) -> tuple[list[str], str]:
    """The names, and the mistake in one of them; empty if there is none."""
    try:
        return [wishes.checked_name(name.strip()) for name in names], ""
    except NodeProblem as problem:
        return names, problem.message
