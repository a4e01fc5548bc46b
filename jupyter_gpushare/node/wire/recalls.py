"""The notices about recalls, limits and turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...policy.books import shares
from ...policy.books.state import Lease, State
from ...policy.decide import out_of_service
from ...policy.say.effects import TellOverLimit, WarnOfRecall
from ...policy.say.texts import ask_back_text, over_limit_text, park_warning_text, stop_text
from ...policy.words.config import PolicyConfig
from ...policy.words.model import Allocation, GpuUuid, LeaseId
from ...policy.words.recalls import MEMORY, Give, Recall, RecallPhase, Why
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc


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
    said = ask_back_text(recall.why, _why_out(state, lease, recall.why)) if is_memory else ""
    return _asks(lease.id, give, recall.why, gpus, said, gate=is_memory and recall.why.at_work)


def stop_notice(lease: Lease, recall: Recall, config: PolicyConfig) -> doc.Recall:
    """The notice that asks a batch program to save its state and end."""
    seconds = config.stop_grace
    told = _asks(lease.id, Give.STOP, recall.why, [], stop_text(recall.why, seconds))
    return {**told, "seconds": seconds}


def lower_notice(lease: LeaseId, limits: Sequence[Allocation]) -> doc.Recall:
    """The notice that asks a task back to a lower limit on these GPUs."""
    gpus = [_may_have(part.gpu, part.memory) for part in limits]
    return _asks(lease, Give.LIFT, Why.CONTENDED, gpus)


def gate_notice(state: State, lease: Lease) -> doc.Recall:
    """The notice to a task that must ask before its next step: for its turn, or for its cache."""
    cache = _cache_at_gate(state, lease.id)
    give = Give.CACHE if cache is not None and cache.is_out else Give.TURN
    recall = state.recall(lease.id, give)
    why = Why.QUANTUM if recall is None else recall.why
    limits = shares.limits(state, lease.id)
    gpus = [_may_have(gpu, size) for gpu, size in limits if gpu in state.gpus]
    return _asks(lease.id, give, why, gpus, gate=True, number=_number(state, lease.id))


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


def limit_notice(lease: LeaseId, limits: Sequence[Allocation]) -> doc.Limit:
    """The notice of how much a task may use on these GPUs from now on."""
    return {
        "lease": lease,
        "gpus": [{"uuid": part.gpu, "memory": part.memory} for part in limits],
    }


def over_limit_notice(effect: TellOverLimit, state: State, config: PolicyConfig) -> doc.UsesTooMuch:
    """The notice to a task that uses more of a GPU than it may."""
    index = state.gpus[effect.gpu].gpu.index
    return {
        "lease": effect.lease,
        "stage": "warned",
        "gpu": effect.gpu,
        "used": effect.used,
        "limit": effect.limit,
        "message": over_limit_text(index, effect.used, effect.limit, config),
    }


def park_warning(
    effect: WarnOfRecall, recall: Recall, state: State, lease: Lease
) -> doc.ParkWarning:
    """The notice to an idle task's people, ``seconds`` before it is asked."""
    return {
        "lease": effect.lease,
        "reason": recall.why.word,
        "seconds": effect.seconds,
        "message": park_warning_text(
            recall.why, effect.seconds, _why_out(state, lease, recall.why)
        ),
    }


def _cache_at_gate(state: State, lease: LeaseId) -> Recall | None:
    """The recall of its cache that a task answers at its next gate, if it has one."""
    return None if lease in state.by_lock else state.recall(lease, Give.CACHE)


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


def computes(state: State, lease: LeaseId) -> bool:
    """Whether a task has its turn, though it may be asked for it."""
    turn = state.turns.get(lease)
    return turn is not None and turn.phase is TurnPhase.HOLDS


def turn_notice(state: State, lease: Lease, config: PolicyConfig) -> doc.Turn:
    """The notice to a task that may compute, with the memory that it may use meanwhile.

    Without a ``quantum`` (seconds) it is alone and need not ask.
    """
    limits = shares.limits(state, lease.id)
    quantum = None if lease.id not in state.turns else config.quantum
    gpus = [_turn_gpu(state, gpu, size) for gpu, size in limits if gpu in state.gpus]
    number = _number(state, lease.id)
    return {"lease": lease.id, "gpus": gpus, "quantum": quantum, "number": number}


def _number(state: State, lease: LeaseId) -> int:
    """By which a task's answer names the turn that it has."""
    turn = state.turns.get(lease)
    return 0 if turn is None else turn.order


def _turn_gpu(state: State, gpu: GpuUuid, memory: int) -> doc.TurnGpu:
    return {"uuid": gpu, "index": state.gpus[gpu].gpu.index, "memory": memory}
