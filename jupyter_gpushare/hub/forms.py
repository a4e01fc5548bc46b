"""The forms of the pages: the typed text, its mistakes, and the call it makes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jupyter_gpushare.link import wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.periods import MONTH, WEEK, parse_period
from jupyter_gpushare.protocol.quota import read_field
from jupyter_gpushare.protocol.sizes import MOST_GPUS, format_size, parse_size

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
    """The content of the fields, and the mistake beside each field.

    ``idle`` is in minutes; ``first`` is the first day of a term. For several users the form changes
    only the ``ticked`` parts.
    """

    gpus: str = ""
    memory: str = ""
    unit: str = "GiB"
    weight: str = "1"
    hours: str = ""
    per: str = ""
    first: str = ""
    idle: str = ""
    burst: str = ""
    ticked: frozenset[str] = frozenset()
    mistakes: Mapping[str, str] = field(default_factory=dict)

    def marked(self, where: str, mistake: str) -> QuotaForm:
        """The same with one more mistake."""
        return replace(self, mistakes={**self.mistakes, where: mistake})


#: The form for several users: empty, for they need not have the same.
MANY: Final = QuotaForm(weight="")


def filled(quota: Mapping[str, Any]) -> QuotaForm:
    """The form with a quota that is there."""
    memory, unit = "", "GiB"
    if quota["memory"] is not None:
        memory, unit = _in_unit(quota["memory"])
    budget = quota.get("budget")
    hours = budget["hours"] if budget else quota.get("gpu_hours")
    per = (budget or quota).get("per") or ""
    is_term = per not in PERIODS
    idle, burst = quota.get("idle_timeout"), quota.get("own_burst_memory")
    return QuotaForm(
        gpus=str(quota["gpus"]),
        memory=memory,
        unit=unit,
        weight=f"{quota['weight']:g}",
        hours="" if hours is None else _plain(hours),
        per="term" if is_term else per,
        first=per if is_term else "",
        idle="" if idle is None else _plain(idle / 60),
        burst="" if burst is None else _burst_text(burst),
    )


def _plain(number: float) -> str:
    """As short as reads back as the same number, without an exponent."""
    return f"{number:.12f}".rstrip("0").rstrip(".")


def _burst_text(burst: float) -> str:
    return _plain(burst) if burst <= 1 else "".join(_in_unit(int(burst)))


def _in_unit(size: int) -> tuple[str, str]:
    """The shortest number that is exactly ``size`` bytes; else in MiB, rounded."""
    for unit in UNITS:
        text = f"{size / parse_size('1' + unit):.6f}".rstrip("0").rstrip(".")
        if text != "0" and parse_size(text + unit) == size:
            return text, unit
    return str(max(1, round(size / 2**20))), "MiB"


def read_quota(
    typed: Mapping[str, str],
    ticked: Collection[str] | None = None,
    now: QuotaForm | None = None,
) -> tuple[QuotaForm, dict[str, Any]]:
    """The form as it was typed, and the wish; the wish only counts without mistakes.

    These stay as they are, and are not in the wish: a part whose field is not there, or reads as in
    the form ``now``, or, of several users, is not ``ticked``; and an empty weight.
    """
    texts: dict[str, Any] = {name: typed.get(name, "").strip() for name in FIELDS}
    form = QuotaForm(**texts, ticked=frozenset(ticked or ()))
    form = replace(form, unit=form.unit or UNITS[0])
    wish: dict[str, Any] = {}
    mistakes: dict[str, str] = {}
    for part, (fields, read) in _PARTS.items():
        if part not in typed or (ticked is not None and part not in ticked):
            continue
        if now is not None and all(getattr(form, name) == getattr(now, name) for name in fields):
            continue
        try:
            wish |= read(form)
        except _Mistake as mistake:
            mistakes[mistake.where or part] = str(mistake)
    if ticked is not None and not wish and not mistakes:
        mistakes["ticked"] = "Tick what is to be changed."
    return replace(form, mistakes=mistakes), wish


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


def _gpus(form: QuotaForm) -> dict[str, Any]:
    count = int(form.gpus) if re.fullmatch(r"\d{1,9}", form.gpus, re.ASCII) else form.gpus
    wanted = f"A whole number from 0 to {MOST_GPUS}; 0 is no GPU at all."
    return {"gpus": _read("gpus", count, wanted)}


def _memory(form: QuotaForm) -> dict[str, Any]:
    """Bytes of ``8`` and a unit, or of ``8GiB`` with any unit."""
    unit = form.unit if _NUMBER.fullmatch(form.memory) and form.unit in UNITS else ""
    # A bare number without its unit is not read as bytes.
    text = form.memory + (unit or ("" if re.search(r"[a-zA-Z]", form.memory) else " ?"))
    wanted = "A size above 0, as 8 or 0.5 with its unit; empty is the whole GPU."
    return {"memory": _read("memory", text if form.memory else None, wanted)}


def _weight(form: QuotaForm) -> dict[str, Any]:
    if not form.weight:
        return {}
    return {"weight": _read("weight", _number(form.weight), "A number above 0, as 1 or 2.5.")}


def _hours(form: QuotaForm) -> dict[str, Any]:
    if not form.hours:
        return {"gpu_hours": None}
    wanted = "A number from 0, as 20 or 2.5; empty is no budget."
    hours = _read("gpu_hours", _number(form.hours), wanted)
    if form.per not in PERIODS:
        raise _Mistake("One of the choices.", "per")
    per: str | None = form.per or None
    if per == "term":
        try:
            per = parse_period(form.first)
        except ValueError:
            raise _Mistake("The first day of the term, as 2026-10-01.", "first") from None
    return {"gpu_hours": hours, "per": per}


def _idle(form: QuotaForm) -> dict[str, Any]:
    text = form.idle.replace(",", ".") + ("m" if _NUMBER.fullmatch(form.idle) else "")
    wanted = (
        "Minutes from 0, which is never, or a time such as 1h30m; empty is the node's own time-out."
    )
    return {"idle_timeout": _read("idle_timeout", text or None, wanted)}


def _burst(form: QuotaForm) -> dict[str, Any]:
    wanted = "A size such as 60GiB, or a part of a GPU such as 0.9; 0: none; empty: the node's own."
    return {"burst_memory": _read("burst_memory", form.burst or None, wanted)}


#: The parts that the form can change: their fields, and the functions that read them.
_PARTS: Final[dict[str, tuple[tuple[str, ...], Callable[[QuotaForm], dict[str, Any]]]]] = {
    "gpus": (("gpus",), _gpus),
    "memory": (("memory", "unit"), _memory),
    "weight": (("weight",), _weight),
    "hours": (("hours", "per", "first"), _hours),
    "idle": (("idle",), _idle),
    "burst": (("burst",), _burst),
}
FIELDS: Final = tuple(name for names, _read in _PARTS.values() for name in names)


def as_wish(quota: Mapping[str, Any]) -> dict[str, Any]:
    """A quota as a wish that names all that it says."""
    budget = quota.get("budget") or quota
    hours = {"gpu_hours": budget.get("hours", budget.get("gpu_hours")), "per": budget.get("per")}
    own = {
        "idle_timeout": quota.get("idle_timeout"),
        "burst_memory": quota.get("own_burst_memory"),
    }
    return {
        **{name: quota[name] for name in ("gpus", "memory", "weight")},
        **(hours if hours["gpu_hours"] is not None else {}),
        **{name: value for name, value in own.items() if value is not None},
    }


def checked_names(names: list[str]) -> tuple[list[str], str]:
    """The names, and the mistake in one of them; empty if there is none."""
    try:
        return [wishes.checked_name(name.strip()) for name in names], ""
    except NodeProblem as problem:
        return names, problem.message


def wish_text(wish: Mapping[str, Any]) -> str:
    """A quota in words for a sentence, without the parts that it does not name."""
    parts = []
    if "gpus" in wish:
        parts.append(words.gpus(wish["gpus"]))
    if "memory" in wish:
        memory = wish["memory"]
        parts.append("whole GPUs" if memory is None else f"{format_size(memory)} on each")
    if "weight" in wish:
        parts.append(f"weight {wish['weight']:g}")
    if wish.get("gpu_hours") is not None:
        parts.append(f"{wish['gpu_hours']:g} GPU-hours{words.per_text(wish.get('per'))}")
    elif "gpu_hours" in wish:
        parts.append("no GPU-hour budget")
    if "idle_timeout" in wish:
        parts.append(words.idle_text(wish["idle_timeout"]))
    if "burst_memory" in wish:
        parts.append(words.burst_text(wish["burst_memory"]))
    return ", ".join(parts)
