"""The policy in five functions: what the rest of the house imports."""

from __future__ import annotations

from .decide.draft import Decision, Done, Grant, Refuse, Step, Wait, unknown_lease
from .decide.node import silent
from .decide.requests import unavailable
from .decide.step import next_deadline, step
from .decide.waiting import Why, why_waiting
from .evolve.apply import evolve
from .say.check import check
from .say.effects import Effect, effects, resume
from .say.snapshot import summarise

__all__ = [
    "Decision",
    "Done",
    "Effect",
    "Grant",
    "Refuse",
    "Step",
    "Wait",
    "Why",
    "check",
    "effects",
    "evolve",
    "next_deadline",
    "resume",
    "silent",
    "step",
    "summarise",
    "unavailable",
    "unknown_lease",
    "why_waiting",
]
