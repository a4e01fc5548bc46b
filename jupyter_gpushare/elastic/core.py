"""What elastic training decides: who takes which samples, who trains, how a job stands. Pure.

Samples. An epoch is an order of all samples. A step takes the next ``batch`` of them, as near as
``world`` ranks can share it equally: ``batch // world`` each. So at every moment one number says
what is done of the epoch, for any number of ranks, and a job may be resized between any two steps.
At the end of an epoch the rest is shared equally, too, as one smaller step; the last few samples
(fewer than ranks) are dropped, or others of the epoch are taken again to fill it up: the tail rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from ..figures import counted

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


def each(cut: Cut, done: int, world: int) -> int:
    """How many samples each rank takes in the step that begins after ``done``, 0 if none does."""
    if not 1 <= world <= cut.batch:
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
    ends = left - count < (1 if cut.tail is Tail.PAD else world)
    return cut.samples if ends else done + count


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
    """Where a rank trains. ``since``: seconds after the job's begin.

    ``index`` of its GPU is for display, and may be unknown.
    """

    host: str
    gpu: str
    lease: str
    since: float
    index: int | None = None

    def __str__(self) -> str:
        return f"{self.gpu if self.index is None else f'GPU {self.index}'} of {self.host}"


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
        where = ", ".join(f"{rank} on {at}" for rank, at in sorted(self.ranks.items()))
        lines = [f"Job {self.name}: {self.phase.value}, step {self.step}, epoch {self.epoch}."]
        lines += [f"  Ranks: {where}."] if where else []
        lines += [f"  Loss: {self.losses[-1][2]:.6g}."] if self.losses else []
        return "\n".join([*lines, *([f"  {self.reason}"] if self.reason else [])])


def told(status: Status, event: Mapping[str, Any], begun: float) -> Status:
    """The status after an event of the job's record; ``begun`` is when the job did, as events tell
    time. An event that is not understood changes nothing."""
    at = round(float(event.get("at", begun)) - begun, 3)
    match event:
        case {"event": "begins"}:
            return _moved(replace(status, ranks={}), Phase.WAITING, "")
        case {"event": "waits", "reason": str(reason)}:
            status = replace(status, workers=_counted(status.workers, at, 0), ranks={})
            return _moved(status, Phase.WAITING, reason)
        case {"event": "changes", "first": bool(first), "reason": str(reason)}:
            more = replace(status, restarts=status.restarts + (not first))
            return _moved(more, Phase.CHANGING, reason)
        case {"event": "trains", "rank": int(rank), "world": int(world)}:
            index, lease = event.get("index"), str(event["lease"])
            # Workers begin anew with each change; the same lease has been there since before.
            known = {held.lease: held.since for held in status.ranks.values()}
            where = Rank(
                *(str(event["host"]), str(event["gpu"]), lease, known.get(lease, at)),
                index if isinstance(index, int) else None,
            )
            ranks = {at: held for at, held in status.ranks.items() if held.lease != lease}
            status = replace(status, ranks={**ranks, rank: where})
            if rank != 0:
                return status
            status = replace(status, ranks={r: w for r, w in status.ranks.items() if r < world})
            workers = _counted(status.workers, at, world)
            how = "begins" if event["entry"] == "train" else f"goes on at step {event['step']}"
            text = f"Training {how} with {counted(world, 'worker')} (entry: {event['entry']})."
            status = replace(status, workers=workers, said=(*status.said, (at, text)))
            return _moved(status, Phase.TRAINING, "")
        case {"event": "step", "step": int(step), "epoch": int(epoch)}:
            status = replace(status, step=max(step, status.step), epoch=epoch)
            if isinstance(loss := event.get("loss"), float | int):
                status = replace(status, losses=_thinned((*status.losses, (step, at, loss))))
            return status
        case {"event": "said", "text": str(text)}:
            return replace(status, said=(*status.said, (at, text)))
        case {"event": "ended", "phase": str(phase), "reason": str(reason)}:
            status = replace(status, workers=_counted(status.workers, at, 0), ranks={})
            return _moved(status, Phase(phase), reason)
    return status


def _moved(status: Status, phase: Phase, reason: str) -> Status:
    if phase is not status.phase and phase not in MOVES[status.phase]:
        return status  # a line of a worker that came late
    return replace(status, phase=phase, reason=reason)


def _counted(
    workers: tuple[tuple[float, int], ...], at: float, count: int
) -> tuple[tuple[float, int], ...]:
    if (workers[-1][1] if workers else 0) == count:
        return workers
    return (*workers, (at, count))


def _thinned(points: tuple[tuple[int, float, float], ...]) -> tuple[tuple[int, float, float], ...]:
    """At most `MOST_POINTS` points; the newest stays."""
    return points if len(points) <= MOST_POINTS else (*points[:-1:2], points[-1])


# -- who trains ---------------------------------------------------------------------------------

#: Seconds in which a newcomer that is ready waits for others that are about to be.
GATHER: Final = 2.0


@dataclass(frozen=True, slots=True)
class Member:
    """A process with a lease, or one that asks for it. It is ready when torch is loaded."""

    number: int
    ready_at: float | None = None
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Team:
    """Who could train, and who does. ``inside`` is by rank; ``broken`` if a worker there failed."""

    least: int
    most: int
    members: tuple[Member, ...] = ()
    generation: int = 0
    inside: tuple[int, ...] = ()
    broken: bool = False

    @property
    def fit(self) -> tuple[int, ...]:
        """Those that can train, the longest there first: so ranks change as little as can be."""
        able = [one.number for one in self.members if one.ready_at is not None and not one.leaving]
        return tuple(sorted(able, key=lambda one: (one not in self.inside, one)))[: self.most]


def room(team: Team) -> int:
    """For how many more cards there is use."""
    return max(0, team.most - sum(not one.leaving for one in team.members))


def joined(team: Team, number: int) -> Team:
    """A member was started."""
    return replace(team, members=(*team.members, Member(number)))


def ready(team: Team, number: int, now: float) -> Team:
    """It has its lease, and torch."""
    return _each(team, number, lambda one: replace(one, ready_at=now))


def leaves(team: Team, number: int) -> Team:
    """It was asked to give its card back."""
    return _each(team, number, lambda one: replace(one, leaving=True))


def gone(team: Team, number: int) -> Team:
    """Its process has ended."""
    return replace(team, members=tuple(one for one in team.members if one.number != number))


def failed(team: Team, number: int, generation: int) -> Team:
    """Its worker ended before its work did. What is said of an older generation is known."""
    is_news = generation == team.generation and number in team.inside
    return replace(team, broken=True) if is_news else team


def changed(team: Team, now: float) -> Team:
    """The team with its next generation, if there must be one now; else as it was.

    It has one when somebody who trains cannot go on, and when newcomers are ready, and none is
    nearly so.
    """
    fit = team.fit
    lost = team.broken or not set(team.inside) <= set(fit)
    new = [one for one in team.members if one.number in fit and one.number not in team.inside]
    # Each change restarts all workers, so newcomers that come one after the other come in together.
    soon = any(one.ready_at is None and not one.leaving for one in team.members)
    waited = max((now - one.ready_at for one in new if one.ready_at is not None), default=0.0)
    grows = bool(new) and len(fit) >= team.least and (not soon or waited >= GATHER)
    if not lost and not grows:
        return team
    inside = fit if len(fit) >= team.least else ()
    return replace(team, generation=team.generation + 1, inside=inside, broken=False)


def _each(team: Team, number: int, change: Callable[[Member], Member]) -> Team:
    members = tuple(change(one) if one.number == number else one for one in team.members)
    return replace(team, members=members)


def is_due(step: int, now: float, saved_at: float, cost: float, every: int | None) -> bool:
    """Whether to save after this step: after each ``every`` steps, or as often as saving takes a
    tenth of the time at most. ``cost``: seconds that the last one took."""
    if every is not None:
        return step % every == 0
    return now - saved_at >= cost / _SAVING


#: The part of the time that saving may take.
_SAVING: Final = 0.1
