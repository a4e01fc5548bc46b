"""What the workers saw, and what follows from it. Pure: nobody's own word about itself is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """One worker believed that a GPU was its own from ``got`` to ``gone`` (monotonic seconds)."""

    worker: int
    gpu: str
    asked: float
    got: float
    gone: float


@dataclass(frozen=True)
class Clashes:
    """GPUs that were given to more than one at a time.

    ``picks`` counts the holds that began while somebody else had the same GPU; ``worst`` is the
    most workers on one GPU at one instant.
    """

    picks: int
    worst: int


def clashes(holds: Iterable[Hold]) -> Clashes:
    """Count double hand-outs of GPUs that are meant for one at a time."""
    edges: list[tuple[float, int, str]] = []
    for hold in holds:
        edges += [(hold.got, 1, hold.gpu), (hold.gone, 0, hold.gpu)]
    now: dict[str, int] = {}
    picks = worst = 0
    # At the same instant who goes goes first: that is no clash.
    for _at, begins, gpu in sorted(edges):
        if not begins:
            now[gpu] -= 1
            continue
        picks += now.get(gpu, 0) > 0
        now[gpu] = now.get(gpu, 0) + 1
        worst = max(worst, now[gpu])
    return Clashes(picks, worst)


def waits(holds: Iterable[Hold]) -> list[float]:
    """Seconds from asking to having, sorted."""
    return sorted(hold.got - hold.asked for hold in holds)


def share(values: list[float], part: float) -> float:
    """The value below which ``part`` of the sorted ``values`` lie."""
    return values[min(len(values) - 1, int(part * len(values)))]
