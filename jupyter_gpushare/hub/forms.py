"""The forms of the pages: what was typed, what is wrong with it, what it asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_gpushare.link import openapi, wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.sizes import format_size, parse_size

UNITS: Final = ("GiB", "MiB", "GB")
_NUMBER: Final = re.compile(r"\d{1,16}(?:[.,]\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuotaForm:
    """What stands in the fields, and beside which field stands which mistake."""

    environment: str = ""
    gpus: str = ""
    memory: str = ""
    unit: str = "GiB"
    weight: str = "1"
    hours: str = ""
    mistakes: Mapping[str, str] = field(default_factory=dict)


def filled(environment: str, quota: Mapping[str, Any]) -> QuotaForm:
    """The form with a quota that is there."""
    memory, unit = "", "GiB"
    if quota["memory"] is not None:
        memory, unit = _in_unit(quota["memory"])
    budget = quota.get("budget")
    hours = budget["hours"] if budget else quota.get("gpu_hours")
    return QuotaForm(
        environment,
        str(quota["gpus"]),
        memory,
        unit,
        f"{quota['weight']:g}",
        "" if hours is None else _plain(hours),
    )


def _plain(number: float) -> str:
    """As short as reads back as the same number, without an exponent."""
    return f"{number:.12f}".rstrip("0").rstrip(".")


def _in_unit(size: int) -> tuple[str, str]:
    """The shortest number that is exactly ``size`` bytes; else in MiB, rounded."""
    for unit in UNITS:
        text = f"{size / parse_size('1' + unit):.6f}".rstrip("0").rstrip(".")
        if text != "0" and parse_size(text + unit) == size:
            return text, unit
    return str(max(1, round(size / 2**20))), "MiB"


def read_quota(typed: Mapping[str, str]) -> tuple[QuotaForm, dict[str, Any]]:
    """The form as it was typed, and the wish; the wish only counts without mistakes.

    A field that is not there, and an empty weight, are not in the wish: they stay as they are.
    """
    form = {name: typed.get(name, "").strip() for name in ("environment", "gpus", "memory")}
    unit = typed.get("unit", "GiB")
    weight = typed.get("weight", "").strip()
    mistakes: dict[str, str] = {}
    wish: dict[str, Any] = {}
    try:
        wish["environment"] = wishes.checked_name(form["environment"])
    except NodeProblem as problem:
        mistakes["environment"] = problem.message
    if re.fullmatch(r"\d{1,9}", form["gpus"], re.ASCII) and int(form["gpus"]) <= openapi.MOST_GPUS:
        wish["gpus"] = int(form["gpus"])
    else:
        mistakes["gpus"] = f"A whole number from 0 to {openapi.MOST_GPUS}; 0 is no GPU at all."
    if "memory" in typed:
        wish["memory"] = _memory(form["memory"], unit, mistakes) if form["memory"] else None
    number = weight.replace(",", ".")
    if _NUMBER.fullmatch(weight) and (openapi.LEAST_WEIGHT <= float(number) <= openapi.MOST_WEIGHT):
        wish["weight"] = float(number)
    elif weight:
        mistakes["weight"] = "A number above 0, as 1 or 2.5."
    hours = typed.get("hours", "").strip()
    if _NUMBER.fullmatch(hours) and float(hours.replace(",", ".")) <= openapi.MOST_GPU_HOURS:
        wish["gpu_hours"] = float(hours.replace(",", "."))
    elif hours:
        mistakes["hours"] = "A number from 0, as 20 or 2.5; empty is no budget."
    elif "hours" in typed:
        wish["gpu_hours"] = None
    return QuotaForm(**form, unit=unit, weight=weight, hours=hours, mistakes=mistakes), wish


def _memory(text: str, unit: str, mistakes: dict[str, str]) -> int | None:
    """Bytes of ``8`` and a unit, or of ``8GiB`` whatever the unit."""
    with_unit = re.search(r"[a-zA-Z]", text) is not None
    try:
        if unit not in UNITS or not (with_unit or _NUMBER.fullmatch(text)):
            raise ValueError
        size = parse_size(text if with_unit else text.replace(",", ".") + unit)
        if not 1 <= size <= openapi.MOST_MEMORY:
            raise ValueError
    except ValueError:
        mistakes["memory"] = "A size above 0, as 8 or 0.5 with its unit; empty is the whole GPU."
        return None
    return size


def wish_text(wish: Mapping[str, Any]) -> str:
    """A quota in a sentence's words; of what it does not name nothing is said."""
    count = wish["gpus"]
    parts = [f"{count} GPU{'' if count == 1 else 's'}"]
    if "memory" in wish:
        memory = wish["memory"]
        parts.append("whole GPUs" if memory is None else f"{format_size(memory)} on each")
    if "weight" in wish:
        parts.append(f"weight {wish['weight']:g}")
    if wish.get("gpu_hours") is not None:
        parts.append(f"{wish['gpu_hours']:g} GPU-hours")
    return ", ".join(parts)
