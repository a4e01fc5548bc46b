"""What a sweep decides: which idle card gets which model, and what an end means. Pure.

A round: the table of idle cards is empty, all hosts are asked, and each idle card that a host names
is a row. Rows are then drawn, one at a time, and each gets a model, until the table is empty; if
models are left, the next round begins. A card that was given to a model is not listed before that
model has ended, for its host may not see yet that it is busy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

#: So often a model is tried again after its host failed.
MOST_HOST_FAULTS: Final = 5
#: A round that brings no card doubles the time to the next one, up to this many times ``every``.
MOST_SLOWED: Final = 4


class Pick(Enum):
    """Which of the idle cards is next."""

    RANDOM = "random"
    MOST_FREE = "most-free"


class Phase(Enum):
    """Where a model is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class End(Enum):
    """How an attempt at a model ended."""

    DONE = "done"
    #: Its own code raised an error: it would do so again.
    OWN_FAULT = "own_fault"
    #: Its process, or its host, died.
    HOST_FAULT = "host_fault"
    #: The node manager had no card after all.
    NO_ROOM = "no_room"
    #: It made way for an interactive request.
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, order=True)
class Card:
    """A GPU of a host."""

    host: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Row:
    """An idle card, and how much of its memory is free."""

    card: Card
    free: int


@dataclass(frozen=True, slots=True)
class Model:
    """One model. ``cards`` are those that it has while it runs, or had when it ended."""

    number: int
    phase: Phase = Phase.QUEUED
    attempt: int = 0
    cards: tuple[Card, ...] = ()
    host_faults: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """A model is to start on these cards, which are of one host."""

    number: int
    attempt: int
    cards: tuple[Card, ...]

    @property
    def host(self) -> str:
        return self.cards[0].host


@dataclass(frozen=True, slots=True)
class Pace:
    """When hosts are asked, in seconds. ``barren`` rounds, one after the other, brought no card."""

    every: float
    asked_at: float = -math.inf
    barren: int = 0
    granted: bool = False

    @property
    def due(self) -> float:
        """When the next round may begin."""
        return self.asked_at + self.every * min(MOST_SLOWED, 1 << max(0, self.barren - 1))

    def asked(self, now: float) -> Pace:
        """A round begins."""
        return Pace(self.every, now, 0 if self.granted else self.barren + 1)

    def freed(self) -> Pace:
        """A model has ended, so that its cards may be idle: the next round need not be late."""
        return replace(self, barren=0)


@dataclass(frozen=True, slots=True)
class State:
    """A sweep. ``queue`` are the numbers of models that have not run, the next one first."""

    models: tuple[Model, ...]
    queue: tuple[int, ...]
    running: frozenset[int] = frozenset()
    unasked: frozenset[str] = frozenset()
    table: tuple[Row, ...] = ()
    gpus: int = 1
    pick: Pick = Pick.RANDOM
    seed: int = 0
    draws: int = 0
    stopped: bool = False

    @property
    def is_over(self) -> bool:
        return not self.running and (self.stopped or not self.queue)


def begin(
    known: Iterable[tuple[Phase, int]], *, gpus: int = 1, pick: Pick = Pick.RANDOM, seed: int = 0
) -> State:
    """A sweep over models, of which some may have ended before: phase and attempts of each."""
    models = tuple(Model(number, *one) for number, one in enumerate(known))
    queue = tuple(model.number for model in models if model.phase is Phase.QUEUED)
    return State(models, queue, gpus=gpus, pick=pick, seed=seed)


def registered(state: State, hosts: Iterable[str]) -> State:
    """A round begins with these hosts, and an empty table."""
    return replace(state, unasked=frozenset(hosts), table=())


def answered(state: State, host: str, rows: Iterable[Row]) -> State:
    """A host has named its idle cards. An answer that came too late, or twice, is not heard."""
    if host not in state.unasked:
        return state
    given = set(_given(state))
    new = tuple(row for row in rows if row.card.host == host and row.card not in given)
    return replace(state, unasked=state.unasked - {host}, table=state.table + new)


def skipped(state: State, host: str) -> State:
    """A host did not answer in time: this round goes on without it."""
    return replace(state, unasked=state.unasked - {host})


def drawn(state: State) -> tuple[State, Send | None]:
    """One row is picked and deleted, and the next model goes there, if one can go.

    A model that needs several cards gets them on the host of the first.
    """
    if state.stopped or not state.queue or state.unasked:
        return state, None
    rows = _drawable(state)
    if not rows:
        return state, None
    picked: list[Row] = []
    draws = state.draws
    while len(picked) < state.gpus:
        picked.append(_pick(state, draws, rows))
        draws += 1
        host = picked[0].card.host
        rows = [row for row in rows if row.card.host == host and row not in picked]
    number, *rest = state.queue
    cards = tuple(row.card for row in picked)
    before = state.models[number]
    model = replace(before, phase=Phase.RUNNING, attempt=before.attempt + 1, cards=cards)
    table = tuple(row for row in state.table if row not in picked)
    state = replace(
        _with(state, model),
        queue=tuple(rest),
        running=state.running | {number},
        table=table,
        draws=draws,
    )
    return state, Send(number, model.attempt, cards)


def granted(state: State, number: int, attempt: int, gpus: Iterable[str]) -> State:
    """The node manager granted these GPUs, which need not be those that were drawn.

    It is the owner. What it granted takes the place of what was drawn, and the other way round,
    in the table or with the model that had drawn it.
    """
    model = state.models[number]
    if model.phase is not Phase.RUNNING or model.attempt != attempt:
        return state
    host = model.cards[0].host
    facts = [Card(host, gpu) for gpu in gpus]
    unused = [card for card in model.cards if card not in facts]
    for fact in facts:
        if fact in model.cards or not unused:
            continue
        swapped = unused.pop()
        for other in [state.models[running] for running in state.running - {number}]:
            if fact in other.cards:
                cards = tuple(swapped if card == fact else card for card in other.cards)
                state = _with(state, replace(other, cards=cards))
        table = tuple(
            replace(row, card=swapped) if row.card == fact else row for row in state.table
        )
        state = replace(state, table=table)
    return _with(state, replace(model, cards=tuple(facts)))


def ended(state: State, number: int, attempt: int, end: End) -> tuple[State, Phase | None]:
    """An attempt ended; the phase in which the model stays for good, or ``None``.

    What is said of an attempt that is not the running one counts for nothing: so each model has
    one result.
    """
    model = state.models[number]
    if model.phase is not Phase.RUNNING or model.attempt != attempt:
        return state, None
    faults = model.host_faults + (end is End.HOST_FAULT)
    phase = Phase.QUEUED
    if end is End.DONE:
        phase = Phase.DONE
    elif end is End.OWN_FAULT or faults >= MOST_HOST_FAULTS:
        phase = Phase.FAILED
    state = _with(state, replace(model, phase=phase, host_faults=faults))
    state = replace(state, running=state.running - {number})
    if phase is not Phase.QUEUED:
        return state, phase
    # One whose host failed goes last, for it may be the model that fells hosts.
    queue = (*state.queue, number) if end is End.HOST_FAULT else (number, *state.queue)
    return replace(state, queue=queue), None


def stopped(state: State) -> State:
    """No model starts any more."""
    return replace(state, stopped=True)


def wants_round(state: State) -> bool:
    """Whether all hosts are to be asked again: models are left, and no card for any."""
    left = bool(state.queue) and not state.stopped
    return left and not state.unasked and not _drawable(state)


def _with(state: State, model: Model) -> State:
    at = model.number
    return replace(state, models=(*state.models[:at], model, *state.models[at + 1 :]))


def _given(state: State) -> Iterator[Card]:
    for number in state.running:
        yield from state.models[number].cards


def _drawable(state: State) -> list[Row]:
    """The rows of hosts that have enough of them for a model."""
    counts: dict[str, int] = {}
    for row in state.table:
        counts[row.card.host] = counts.get(row.card.host, 0) + 1
    return [row for row in state.table if counts[row.card.host] >= state.gpus]


def _pick(state: State, draws: int, rows: list[Row]) -> Row:
    if state.pick is Pick.MOST_FREE:
        return min(rows, key=lambda row: (-row.free, row.card))
    # The same seed and the same tables give the same draws, also after the sweep was loaded again.
    ordered = sorted(rows, key=lambda row: row.card)
    return random.Random(f"{state.seed}/{draws}").choice(ordered)
