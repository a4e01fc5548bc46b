"""What elastic training decides: who takes which samples, who trains, how a job stands. Pure.

Samples. An epoch is an order of all samples. A step takes the next ``batch`` of them, as near as
``world`` ranks can share it equally: ``batch // world`` each. So at every moment one number says
what is done of the epoch, for any number of ranks, and a job may be resized between any two steps.
At the end of an epoch the rest is shared equally, too, as one smaller step; the last few samples
(fewer than ranks) are dropped, or others of the epoch are taken again to fill it up: the tail rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

#: Points of a loss curve that are kept; beyond it each second one is left out.
MOST_POINTS: Final = 2000
#: Changes of who trains that brought no step further, one after the other, after which a job fails.
MOST_BARREN: Final = 3


class Tail(Enum):
    """What happens with the last samples of an epoch where they cannot be shared equally."""

    DROP = "drop"
    PAD = "pad"


@dataclass(frozen=True, slots=True)
class Cut:
    """How an epoch is cut: ``samples`` in all, about ``batch`` a step over all ranks."""

    samples: int
    batch: int
    tail: Tail = Tail.DROP

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.samples:
            raise ValueError(
                f"batch={self.batch}: it must be 1 at least, and at most the {self.samples} samples"
                " that there are, for each rank must have one full step."
            )


def most_ranks(cut: Cut) -> int:
    """So many ranks have a sample in each full step."""
    return cut.batch


def each(cut: Cut, done: int, world: int) -> int:
    """How many samples each rank takes in the step that begins after ``done``; 0: no step does."""
    if not 1 <= world <= most_ranks(cut):
        raise ValueError(f"{world} ranks cannot share steps of {cut.batch} samples")
    left = cut.samples - done
    full = cut.batch // world
    if left >= full * world:
        return full
    return left // world if cut.tail is Tail.DROP else -(-left // world)


def share(cut: Cut, done: int, world: int, rank: int) -> tuple[int, ...]:
    """The places in the epoch's order that a rank takes in the step that begins after ``done``."""
    count = each(cut, done, world)
    first = done + rank * count
    # Only a padded step goes beyond the end: it takes the epoch's first ones again.
    return tuple(place % cut.samples for place in range(first, first + count))


def after(cut: Cut, done: int, world: int) -> int:
    """What is done of the epoch after that step; all, where no step is left."""
    count = each(cut, done, world) * world
    left = cut.samples - done
    over = count == 0 or left - count < (1 if cut.tail is Tail.PAD else world)
    return cut.samples if over else done + count


def steps_left(cut: Cut, done: int, world: int) -> int:
    """Steps that are left of the epoch."""
    left = cut.samples - done
    full = cut.batch // world * world
    steps, rest = divmod(left, full)
    return steps + (rest > 0 if cut.tail is Tail.PAD else rest >= world)


def shard(cut: Cut, done: int, world: int, rank: int) -> tuple[int, ...]:
    """All that a rank takes of the rest of the epoch, if the number of ranks stays."""
    taken: list[int] = []
    while done < cut.samples:
        taken += share(cut, done, world, rank)
        done = after(cut, done, world)
    return tuple(taken)


# -- how a job stands ---------------------------------------------------------------------------


class Phase(Enum):
    """Where a job is."""

    #: It has fewer cards than it needs at least.
    WAITING = "waiting"
    #: Its workers begin: for the first time, or with more or fewer of them.
    CHANGING = "changing"
    TRAINING = "training"
    DONE = "done"
    FAILED = "failed"
    #: It was told to stop. `load` goes on with it.
    STOPPED = "stopped"


_LIVE: Final = {Phase.WAITING, Phase.CHANGING, Phase.TRAINING}
_OVER: Final = {Phase.DONE, Phase.FAILED, Phase.STOPPED}
MOVES: Final = {
    Phase.WAITING: {Phase.CHANGING, *_OVER},
    Phase.CHANGING: {Phase.WAITING, Phase.TRAINING, *_OVER},
    Phase.TRAINING: {Phase.WAITING, Phase.CHANGING, *_OVER},
    Phase.DONE: set[Phase](),
    Phase.FAILED: {Phase.WAITING},  # `load` tries again
    Phase.STOPPED: {Phase.WAITING},
}


@dataclass(frozen=True, slots=True)
class Rank:
    """Where a rank trains. ``since``: seconds after the job's begin."""

    host: str
    gpu: str
    lease: str
    since: float


@dataclass(frozen=True, slots=True)
class Status:
    """How a job stands. All times are seconds after its begin.

    ``reason``: why it waits, or ended, in a sentence. ``restarts``: how often its workers began
    anew, because a GPU came or went or a process died. ``workers``: how many there were from which
    time on. ``losses``: step, time, and loss over all ranks, thinned. ``said``: what happened, in
    sentences.
    """

    name: str
    phase: Phase = Phase.WAITING
    reason: str = ""
    restarts: int = 0
    ranks: Mapping[int, Rank] = field(default_factory=dict)
    workers: tuple[tuple[float, int], ...] = ()
    losses: tuple[tuple[int, float, float], ...] = ()
    step: int = 0
    epoch: int = 0
    said: tuple[tuple[float, str], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.phase in _OVER

    def __str__(self) -> str:
        where = ", ".join(f"{r} on {at.gpu} of {at.host}" for r, at in sorted(self.ranks.items()))
        lines = [f"Job {self.name}: {self.phase.value}, step {self.step}, epoch {self.epoch}."]
        lines += [f"  Ranks: {where}."] if where else []
        lines += [f"  Loss: {self.losses[-1][2]:.6g}."] if self.losses else []
        return "\n".join([*lines, *([f"  {self.reason}"] if self.reason else [])])
