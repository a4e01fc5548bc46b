"""Counts while a program is followed: what each kind of graph node does, and what is alive."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from ..features import Node
from ..table import PLACE


class Tally:
    """Adds up the occurrences of each kind."""

    def __init__(self) -> None:
        self._found: dict[str, list[int]] = {}

    def add(self, kind: str, elements: int, flops: int, moved: int, times: int = 1) -> None:
        """``times`` occurrences, each of so many input elements, FLOPs and bytes moved."""
        row = self._found.setdefault(kind, [0, 0, 0, 0])
        # The largest, not a sum: that is what the source has the networks know of a kind.
        row[0] = max(row[0], elements)
        row[1] += times
        row[2] += flops * times
        row[3] += moved * times

    def nodes(self) -> tuple[Node, ...]:
        """In the table's order."""
        kinds = sorted(self._found, key=PLACE.__getitem__)
        return tuple(Node(kind, *self._found[kind]) for kind in kinds)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a straight program: which values it reads, which it makes (with their
    bytes), and what it needs for itself while it runs."""

    reads: tuple[Hashable, ...]
    makes: tuple[tuple[Hashable, int], ...]
    inside: int = 0


def peak(given: Iterable[tuple[Hashable, int]], steps: list[Step], kept: set[Hashable]) -> int:
    """The most bytes that are alive at once. ``given`` values live all the time; another one from
    the step that makes it to the last that reads it, or to the end if it is ``kept``."""
    last: dict[Hashable, int] = {}
    for place, step in enumerate(steps):
        for name in (*step.reads, *(name for name, _ in step.makes)):
            last[name] = place
    alive = sum(dict(given).values())
    most = alive
    sizes: dict[Hashable, int] = {}
    for place, step in enumerate(steps):
        for name, size in step.makes:
            sizes[name] = size
            alive += size
        most = max(most, alive + step.inside)
        for name in {*step.reads, *(name for name, _ in step.makes)}:
            if last[name] == place and name not in kept:
                alive -= sizes.pop(name, 0)
    return most
