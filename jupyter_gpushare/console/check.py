"""What a check has found: a line of ``jupyter gpushare doctor``, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: ``text`` is what was seen, ``fix`` what to do about it."""

    name: str
    level: Level
    text: str
    fix: str | None = None


def ok(name: str, text: str) -> Check:
    return Check(name, Level.OK, text)


def warning(name: str, text: str, fix: str | None = None) -> Check:
    return Check(name, Level.WARNING, text, fix)


def problem(name: str, text: str, fix: str) -> Check:
    return Check(name, Level.PROBLEM, text, fix)
