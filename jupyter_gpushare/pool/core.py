"""The pool's rules in three functions: what its process imports."""

from __future__ import annotations

from .decide import Step, step
from .evolve import evolve
from .state import State

__all__ = ["State", "Step", "evolve", "step"]
