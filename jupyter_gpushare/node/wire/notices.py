"""What clients are told unasked, and which: a function for each kind of event or effect.

A notice may be lost: its client was away, did not read, or was killed and came back. So a task's
duties never depend on one notice. Most are made from the state as it is now, and the event only
says that there is something to tell. When a client attaches again, :func:`again` says by the same
functions what it may use and what it was asked.

Who hears matters as much as what. Three circles are told apart: the task's own process (it alone
can hide its GPUs and stop between two steps), those who use the lease, and the panels and terminals
of the person. Nobody else gets a notice of somebody's lease.

A function enters itself by :data:`_tells` and yields the notices. It is pure; the service sends
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ...policy.books import shares
from ...policy.books.state import Lease, State
from ...policy.decide import out_of_service
from ...policy.recall import stopping
from ...policy.recall.offers import QUIET
from ...policy.say.effects import TellRecall, TellTurn
from ...policy.say.texts import (
    CAUSES,
    ask_back_text,
    budget_notice_text,
    leaves_text,
    over_limit_text,
    park_warning_text,
    stop_text,
)
from ...policy.words import events as ev
from ...policy.words.config import PolicyConfig
from ...policy.words.model import (
    Allocation,
    BudgetLevel,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
    OverLimitStage,
)
from ...policy.words.promises import Cause, PromiseState
from ...policy.words.recalls import MEMORY, Give, Recall, RecallPhase, Why
from ...policy.words.registry import registering
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc
from ...protocol.messages import Notice
from ..views.status import measured_by_lease
from . import translate
from .guests import Guest


class Told(NamedTuple):
    """A notice, and who gets it."""

    guests: Iterable[Guest]
    notice: Notice
    says: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """What is true at boot time ``at``, after something happened, and who is connected.

    ``holders`` are the connections of each lease; ``key`` signs its voucher.
    """

    state: State
    config: PolicyConfig
    at: float
    readings: Mapping[str, GpuReading]
    guests: Mapping[int, Guest]
    holders: Mapping[LeaseId, set[int]]
    key: bytes

    def held_by(self, name: LeaseId) -> list[Guest]:
        """The task's own process, and those that have joined it."""
        known = (self.guests.get(conn_id) for conn_id in self.holders.get(name, ()))
        return [guest for guest in known if guest is not None]

    def own(self, name: LeaseId) -> list[Guest]:
        """The task's own process; not a child that shares the lease, nor a page.

        Only the task itself can hide its GPUs, and computes between two gates.
        """
        lease = self.state.leases.get(name)
        process = None if lease is None else lease.task.process
        return [guest for guest in self.held_by(name) if guest.who.process == process]

    def people(
        self, is_theirs: Callable[[Guest], bool], lease: LeaseId | None = None
    ) -> list[Guest]:
        """Programs and watching panels of people: those of one lease, or (``None``) of all."""
        return [
            guest
            for guest in self.guests.values()
            if guest.watching or (guest.leases if lease is None else lease in guest.leases)
            if is_theirs(guest)
        ]


TELLS: Final[dict[type, Callable[[Any, Scene], Iterator[Told]]]] = {}
_tells: Final = registering(TELLS)


def about(happened: object, scene: Scene) -> Iterator[Told]:
    """The notices because of an event or an effect."""
    tells = TELLS.get(type(happened))
    return iter(()) if tells is None else tells(happened, scene)


def again(lease: Lease, guest: Guest, scene: Scene) -> Iterator[Told]:
    """A task that was away may have missed what it may use now, and what it was asked."""
    state, scene = scene.state, replace(scene, guests={guest.conn.id: guest})
    if lease.inherited_at is not None and lease.phase is LeasePhase.HELD:
        yield _inherited(lease, scene)
    lifted = tuple(
        Allocation(part.gpu, lift.memory)
        for part in lease.allocations
        if (lift := state.lift(lease.id, part.gpu)) is not None
    )
    presented = state.rebuild is not None and lease.id in state.rebuild.done
    if presented and lease.id not in state.takers and lease.phase is LeasePhase.HELD:
        lifted = lifted or lease.allocations  # it may have been lifted before
    yield from _limits(lease.id, lifted, scene)
    for key, recall in state.recalls.items():
        gated = key.give is Give.CACHE and lease.id in state.takers
        gated = gated and not state.taker(lease.id).by_lock
        if key.lease == lease.id and recall.is_asked and not gated:
            yield from _recall(TellRecall(lease.id, key.give), scene)


# -- grants, budgets, promises -------------------------------------------------------------------


@_tells(ev.LeaseInherited)
def _is_inherited(event: ev.LeaseInherited, scene: Scene) -> Iterator[Told]:
    lease = scene.state.leases[event.lease]
    if lease.phase is LeasePhase.HELD and not event.keeper:  # a keeper's call is answered
        yield _inherited(lease, scene)


def _inherited(lease: Lease, scene: Scene) -> Told:
    """The task has its GPUs, and is told so as it would be of a grant."""
    return Told(scene.own(lease.id), Notice.GRANTED, granted(lease, scene.state, scene.key))


def granted(lease: Lease, state: State, key: bytes) -> Mapping[str, Any]:
    """The notice to a client that knows the lease's secret."""
    result = translate.lease_result(state, lease, key)
    return {part: value for part, value in result.items() if part != "secret"}


@_tells(ev.BudgetChanged)
def _budget(event: ev.BudgetChanged, scene: Scene) -> Iterator[Told]:
    if event.level is BudgetLevel.OK or event.budget is None:
        return
    window, whose = scene.config.budget_window, event.environment
    per = scene.state.quotas.resolve(whose)[0].per
    news: doc.BudgetNews = {
        "level": event.level.value,
        "hours": event.budget,
        "spent": event.spent,
        "window": window,
        "message": budget_notice_text(event.level, event.spent, event.budget, window, per),
    }
    yield Told(scene.people(lambda one: one.who.environment == whose), Notice.BUDGET, news)


@_tells(ev.PromiseMade)
def _promise_made(event: ev.PromiseMade, scene: Scene) -> Iterator[Told]:
    yield _promise(event.lease, PromiseState.ON_TIME, event.named, scene)


@_tells(ev.PromiseMoved)
def _promise_moved(event: ev.PromiseMoved, scene: Scene) -> Iterator[Told]:
    over = event.seconds is not None
    left = 0.0 if over else None if event.ends is None else max(0.0, event.ends - event.at)
    if event.lease in (scene.state.leases if over else scene.state.promises):
        yield _promise(event.lease, event.state, event.named, scene, left, event.why)


@_tells(ev.PromiseRefused)
def _promise_refused(event: ev.PromiseRefused, scene: Scene) -> Iterator[Told]:
    yield _promise(event.lease, PromiseState.ENDED, True, scene, None, event.why)


def _promise(
    lease: LeaseId,
    stands: PromiseState,
    named: bool,
    scene: Scene,
    seconds: float | None = None,
    why: Cause | None = None,
) -> Told:
    """How it stands with a promise; it is expected to end in ``seconds``, if anybody knows."""
    promised = scene.state.promises.get(lease)
    until = None if promised is None else promised.until
    news: doc.PromiseNews = {
        "lease": lease,
        "state": stands.value,
        "why": None if why is None else why.value,
        "named": named,
        "left": None if until is None else until - scene.at,
        "expected": seconds,
        "message": "" if why is None else CAUSES[why],
    }
    return Told(scene.held_by(lease), Notice.PROMISE, news)


# -- limits --------------------------------------------------------------------------------------


@_tells(ev.LimitMoved)
def _limit(event: ev.LimitMoved, scene: Scene) -> Iterator[Told]:
    # Else it is the task's own answer.
    if event.live is None:
        yield from _limits(event.lease, event.gpus, scene)


def _limits(name: LeaseId, gpus: Sequence[Allocation], scene: Scene) -> Iterator[Told]:
    """A limit to come back to is a recall; a higher one is not.

    A lease that asked for a range has one for all its processes, another one for its own only.
    """
    lease, lower, higher = scene.state.leases.get(name), list[doc.AskedGpu](), list[doc.LimitGpu]()
    ranged = lease is not None and lease.request.memory_most is not None
    guests = scene.held_by(name) if ranged else scene.own(name)
    for part in gpus:
        lift = scene.state.lift(name, part.gpu)
        if lift is not None and lift.is_asked:
            lower.append(_may_have(part.gpu, part.memory))
        else:
            higher.append({"uuid": part.gpu, "memory": part.memory})
    if lower:
        yield Told(guests, Notice.RECALL, _asks(name, Give.LIFT, Why.CONTENDED, lower))
    if higher:
        yield Told(guests, Notice.LIMIT, {"lease": name, "gpus": higher})


@_tells(ev.OverLimitStaged)
def _over_limit(event: ev.OverLimitStaged, scene: Scene) -> Iterator[Told]:
    if event.stage is not OverLimitStage.WARNED:
        return
    index = scene.state.gpus[event.gpu].gpu.index
    news: doc.UsesTooMuch = {
        "lease": event.lease,
        "stage": event.stage.value,
        "gpu": event.gpu,
        "used": event.used,
        "limit": event.limit,
        "message": over_limit_text(index, event.used, event.limit, scene.config),
    }
    yield Told(scene.own(event.lease), Notice.OVER_LIMIT, news)


# -- recalls -------------------------------------------------------------------------------------


@_tells(ev.RecallMoved)
def _warned(event: ev.RecallMoved, scene: Scene) -> Iterator[Told]:
    """The task says it on its terminal; watching panels show a countdown."""
    lease, recall = scene.state.leases.get(event.lease), scene.state.memory_recall(event.lease)
    if event.phase is not RecallPhase.WARNED or lease is None or recall is None:
        return
    seconds = scene.config.notify_before
    detail = _why_out(scene.state, lease, recall.why)
    said = park_warning_text(recall.why, seconds, detail, lease.task.kind)
    yield _warning(scene, lease, recall.why, seconds, said)


def _warning(scene: Scene, lease: Lease, why: Why, seconds: float, said: str) -> Told:
    warning: doc.ParkWarning = {
        "lease": lease.id,
        "reason": why.word,
        "seconds": seconds,
        "message": said,
    }
    guests = scene.people(lambda one: one.who.viewer.is_mine(lease.environment), lease.id)
    return Told(guests, Notice.PARK_WARNING, warning)


@_tells(ev.ServiceChanged)
def _out_of_service(event: ev.ServiceChanged, scene: Scene) -> Iterator[Told]:
    """Tell everybody who has something on a GPU that leaves service, those who compute, too."""
    state = scene.state
    if event.gpu is None or event.reason is None:
        return
    for name in [lease for lease, gpu in state.claims if gpu == event.gpu]:
        lease = state.leases.get(name)
        out = [part.gpu for part in lease.allocations if part.gpu in state.out] if lease else []
        # What is said of the first one names all of them.
        if lease is None or lease.phase is not LeasePhase.HELD or out[:1] != [event.gpu]:
            continue
        said = leaves_text(out_of_service.text(state, lease), lease.task.kind)
        yield _warning(scene, lease, Why.OUT_OF_SERVICE, QUIET, said)


@_tells(TellRecall)
def _recall(effect: TellRecall, scene: Scene) -> Iterator[Told]:
    """Ask for its own memory, or, where it has no gate, for what only its cache keeps."""
    state, give = scene.state, effect.give
    lease, recall = state.leases.get(effect.lease), state.recall(effect.lease, give)
    if lease is None or recall is None:
        return
    if give is Give.STOP:
        seconds = stopping.grace(state, scene.config, lease, recall)
        asked = _asks(lease.id, give, recall.why, [], stop_text(recall.why, seconds))
        asked["seconds"] = seconds
    else:
        measured = measured_by_lease(state, scene.readings)
        asked = recall_notice(give, recall, state, lease, measured)
    yield Told(scene.own(lease.id), Notice.RECALL, asked)


def recall_notice(
    give: Give,
    recall: Recall,
    state: State,
    lease: Lease,
    measured: Mapping[tuple[LeaseId, GpuUuid], int | None],
) -> doc.Recall:
    """The notice that asks a task for its memory, or, with no GPUs in it, for its cache alone.

    It may leave ``may_stay`` bytes on each GPU, which no request needs now. ``used`` is its
    ``measured`` memory there; ``None`` where that is unknown, as on a simulated GPU. A task that
    computes is asked at its gate.
    """
    stay = {part.gpu: part.memory for part in recall.keep}
    is_memory = give in MEMORY
    gpus: list[doc.AskedGpu] = [
        {
            "uuid": part.gpu,
            "may_stay": stay.get(part.gpu, 0),
            "used": None
            if state.gpus[part.gpu].gpu.simulated
            else measured.get((lease.id, part.gpu), 0),
        }
        for part in (lease.allocations if is_memory else ())
    ]
    out, kind = _why_out(state, lease, recall.why), lease.task.kind
    said = ask_back_text(recall.why, out, kind) if is_memory else ""
    return _asks(lease.id, give, recall.why, gpus, said, gate=is_memory and recall.why.at_work)


def _may_have(gpu: GpuUuid, memory: int) -> doc.AskedGpu:
    return {"uuid": gpu, "may_stay": memory, "used": None}


def _asks(
    lease: LeaseId,
    give: Give,
    why: Why,
    gpus: list[doc.AskedGpu],
    message: str = "",
    *,
    gate: bool = False,
    number: int = 0,
) -> doc.Recall:
    return {
        "lease": lease,
        "give": give.value,
        "why": why.word,
        "gate": gate,
        "gpus": gpus,
        "message": message,
        "number": number,
    }


def _why_out(state: State, lease: Lease, why: Why) -> str:
    """The words of the admin who took a GPU of this lease out of service."""
    if why is not Why.OUT_OF_SERVICE:
        return ""
    return out_of_service.text(state, lease)


# -- turns ---------------------------------------------------------------------------------------


@_tells(TellTurn)
def turn(effect: TellTurn, scene: Scene) -> Iterator[Told]:
    """Its turn, with the memory that it may use meanwhile, or that it must ask for one first."""
    state, name = scene.state, effect.lease
    lease = state.leases.get(name)
    if lease is None or lease.phase is not LeasePhase.HELD or name not in state.takers:
        return
    # Who has asked waits for the answer to that, and needs no notice.
    if has_asked(state, name):
        return
    # Those that have joined it get the notice, too, if they may take turns for it.
    alone = len(lease.members) < 2 or any(name in books.shares for books in state.gpus.values())
    guests = scene.own(name) if alone else scene.held_by(name)
    limits = [(gpu, size) for gpu, size in shares.limits(state, name) if gpu in state.gpus]
    known, may = state.turns.get(name), has_turn(state, name)
    number = 0 if known is None else known.order  # a task's answer names its turn by it
    computes = known is not None and known.phase is TurnPhase.HOLDS
    # A task that waited does so until it hears of its turn, though it may be asked for it.
    if may or (effect.is_given and computes):
        news: doc.Turn = {
            "lease": name,
            "gpus": [
                {"uuid": gpu, "index": state.gpus[gpu].gpu.index, "memory": size}
                for gpu, size in limits
            ],
            # Without one it is alone, and need not ask.
            "quantum": None if known is None else scene.config.quantum,
            "number": number,
        }
        yield Told(guests, Notice.TURN, news)
    if not may:
        cache = _cache_at_gate(state, name)
        give = Give.CACHE if cache is not None and cache.is_out else Give.TURN
        recall = state.recall(name, give)
        why = Why.QUANTUM if recall is None else recall.why
        gpus = [_may_have(gpu, size) for gpu, size in limits]
        asked = _asks(name, give, why, gpus, gate=True, number=number)
        yield Told(guests, Notice.RECALL, asked)


def _cache_at_gate(state: State, lease: LeaseId) -> Recall | None:
    """The recall of its cache that a task answers at its next gate, if it has one."""
    return None if state.taker(lease).by_lock else state.recall(lease, Give.CACHE)


def has_asked(state: State, lease: LeaseId) -> bool:
    """Whether a task waits: for its turn, or for the measurement of what its cache gave."""
    turn, cache = state.turns.get(lease), _cache_at_gate(state, lease)
    return (turn is not None and turn.phase is TurnPhase.WAITS) or (
        cache is not None and cache.phase is RecallPhase.ANSWERED
    )


def has_turn(state: State, lease: LeaseId) -> bool:
    """Whether a task that has not asked may compute. One that is to empty its cache must ask."""
    turn, cache = state.turns.get(lease), _cache_at_gate(state, lease)
    is_asked = (cache is not None and cache.is_out) or state.recall(lease, Give.TURN) is not None
    return not is_asked and (turn is None or turn.phase is TurnPhase.HOLDS)
