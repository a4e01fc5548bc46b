"""The pool's settings as its rules read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Times in seconds.

    ``validity``: for how long a sub-budget holds without the pool; it is renewed at half of it.
    ``drift``: by what share two boot clocks may differ in speed.
    """

    validity: float = 120.0
    drift: float = 0.01
    #: How often hints are made, and a drain that a host has not carried out is sent again.
    interval: float = 1.0
