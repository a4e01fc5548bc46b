"""The invariants: what every reachable state promises."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ..books import compute
from ..books.heldup import is_held_up
from ..books.lifts import entitled, followers_on
from ..books.state import Reservation, ReservationKey, State
from ..books.table import replace
from ..words.model import BudgetLevel, Bytes, ClaimPhase, GpuUuid, LeasePhase
from ..words.moves import InvariantBroken
from ..words.promises import MOST_FLOORS, WHOLE
from ..words.recalls import MEMORY, Give, RecallKey, RecallPhase, Why
from ..words.turns import TurnPhase


def check(state: State) -> None:
    """Raise :class:`InvariantBroken` with the story if ``state`` breaks a promise."""
    _books(state)
    _leases(state)
    _recalls(state)
    _lifts(state)
    _following(state)
    _queue(state)
    _budgets(state)
    _turns(state)
    _promises(state)
    _loans(state)


def _require(holds: bool, story: str) -> None:
    if not holds:
        raise InvariantBroken(story)


#: What a GPU adds up of its reservations, by its name there.
_SUMS: Final = {"memory": "reserved", "tasks": "tasks", "lifted": "lifted", "short": "short"}


def _books(state: State) -> None:
    counted: dict[ReservationKey, Reservation] = {}
    for name, gpu in state.claims:
        lease = state.leases[name]
        key = (lease.environment, gpu)
        one = counted.get(key, Reservation(Bytes(0), 0))
        one = replace(one, claims=one.claims + 1)
        counted[key] = one.with_task(lease.request, 1) if lease.is_task else one
    # A reservation lives as long as one of its claims: without any nobody would ever give it back.
    _require(set(counted) == set(state.reservations), "reservations and claims disagree")
    sums: dict[GpuUuid, Counter[str]] = {uuid: Counter() for uuid in state.gpus}
    for key, held in state.reservations.items():
        _require(held.memory > 0, f"reservation {key} is empty")
        one = counted[key]
        for what in ("claims", "tasks", "named", "following"):
            _require(getattr(held, what) == getattr(one, what), f"{key} counts {what} wrong")
        for what, total in _SUMS.items():
            sums[key[1]][total] += getattr(held, what)
    _shares(state)
    for uuid, books in state.gpus.items():
        for total in _SUMS.values():
            added = sums[uuid][total]
            _require(getattr(books, total) == added, f"GPU {uuid}: {total} does not add up")
        # The one that all others are for. What is used without a lease does not count: it may come
        # at any time, and then nothing more is granted.
        _require(books.reserved + books.shared <= books.gpu.memory, f"{uuid} is promised twice")
        _require(0 <= books.system <= books.unleased, f"GPU {uuid}: the host's own part is wrong")
    for environment, account in state.accounts.items():
        _require(account.gpus == state.gpus_used(environment), f"{environment}'s use is wrong")


def _shares(state: State) -> None:
    """Tasks in turns have what they keep reserved."""
    kept: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for gpu, books in state.gpus.items():
        for name, share in books.shares.items():
            _require((name, gpu) in state.claims, f"{name} shares {gpu} and has no claim there")
            key = (state.leases[name].environment, gpu)
            kept[key] += share.persistent
            counts[key] += 1
    for key, held in state.reservations.items():
        by_turns = held.full is not None
        _require(counts[key] == (held.claims if by_turns else 0), f"shares of {key} are wrong")
        _require(not by_turns or held.memory == kept[key], f"shares of {key} do not add up")
        # Else it would have more by turns than without them, and turns were chosen to make room.
        _require(held.full is None or held.memory <= held.full, f"{key} keeps more than is its")


def _turns(state: State) -> None:
    computing: Counter[str] = Counter()
    for name, turn in state.turns.items():
        _require(name in state.takers, f"{name} has a turn and cannot be gated")
        _require(state.leases[name].phase is LeasePhase.HELD, f"{name} has a turn and no GPU")
        if turn.phase is TurnPhase.HOLDS:
            computing.update(turn.gpus)
    _require(all(count == 1 for count in computing.values()), "two tasks have one GPU's turn")
    held = {key for key, one in state.leases.items() if one.phase is not LeasePhase.ENDED}
    _require(set(state.takers) <= held, "a task takes turns that has ended")


def _leases(state: State) -> None:
    stalled = state.stalled
    for name, lease in state.leases.items():
        claims = [part for part in lease.allocations if (name, part.gpu) in state.claims]
        if lease.phase is LeasePhase.QUEUED:
            _require(not lease.allocations, f"queued lease {name} has GPUs")
            _require(name in state.queue.waiting, f"queued lease {name} is not in the queue")
        elif lease.phase is LeasePhase.ENDED:
            _require(bool(claims), f"ended lease {name} was not forgotten")
        else:
            _require(len(claims) == len(lease.allocations), f"lease {name} lost a claim")
        # A stalled task's silence was noted already; the measurements see to it from now on.
        owes_none = lease.phase is LeasePhase.ENDED or name in stalled
        _require((name in state.last_seen) != owes_none, f"lease {name}: heartbeat deadline")
        for part in claims:
            draining = state.claims[(name, part.gpu)].phase is ClaimPhase.DRAINING
            gives_back = lease.phase in (LeasePhase.ENDED, LeasePhase.PARKED)
            gives_back &= not lease.has_residue
            _require(draining == gives_back, f"claim of {name} on {part.gpu}")
        for key in lease.handles:
            _require(name in state.by_handle.get(key, ()), f"{name} is not found by {key}")
    counts = Counter(lease.environment for lease in state.leases.values())
    counted = {name: one.leases for name, one in state.accounts.items() if one.leases}
    _require(counted == counts, "an environment's leases are not counted")
    for key, names in state.by_handle.items():
        _require(all(key in state.leases[n].handles for n in names), f"{key} leads to another's")


def _recalls(state: State) -> None:
    for key, recall in state.recalls.items():
        _require(key.lease in state.leases, f"{key.lease} is asked for something and is gone")
        lease = state.leases[key.lease]
        held = lease.phase is LeasePhase.HELD
        if key.give is Give.CACHE:
            _require(held, f"{key.lease} is asked for its cache and holds no GPU")
        if key.give is Give.TURN:
            holds = state.turn_phase(key.lease) is TurnPhase.HOLDS
            _require(holds, f"{key.lease} is asked for a turn that it has not")
        if key.give is Give.STOP:
            may = compute.is_batch(lease) or recall.why is Why.OUT_OF_SERVICE
            _require(held and may, f"{key.lease} is asked to stop and is no batch task with GPUs")
            can = lease.request.stops or not recall.is_out
            _require(can, f"{key.lease} is asked to stop and cannot")
        if key.give in MEMORY:
            runs = recall.why.at_work and held
            idle = lease.can_give or runs or recall.phase is RecallPhase.KEPT
            _require(idle, f"{key.lease} is asked for GPUs that it uses or has not")
            _require(not recall.moving or lease.can_give or runs, f"{key.lease} moves nothing")
            twice = all(RecallKey(key.lease, give) in state.recalls for give in MEMORY)
            _require(not twice, f"{key.lease} is asked for its memory twice")


def _lifts(state: State) -> None:
    for key, held in state.reservations.items():
        _require(0 <= held.lifted < held.memory, f"{key} is lifted by {held.lifted} bytes")
    for name, gpu in state.claims:
        lease, lift = state.leases[name], state.lift(name, gpu)
        if lift is None or lease.phase is not LeasePhase.HELD:
            continue  # it is not lifted, or may not use the GPU now
        held = state.reservations[(lease.environment, gpu)]
        _require(lift.memory <= held.memory, f"{name} may use more of {gpu} than is reserved")


def _following(state: State) -> None:
    """Tasks whose reservation follows what they use share what it is entitled to."""
    for key, held in state.reservations.items():
        _require(held.short >= 0, f"{key} needs {held.short} bytes more")
        for lease in followers_on(state, key) if held.full is None else ():
            mine, now = {p.gpu: p.memory for p in lease.allocations}[key[1]], entitled(state, key)
            _require(mine == now, f"{lease.id} has {mine} of {now} bytes of {key}")


def _queue(state: State) -> None:
    idle = {name for name, lease in state.leases.items() if lease.can_give}
    _require(set(state.idle) == idle, "the index of idle leases is wrong")
    queued = {n for n, lease in state.leases.items() if lease.phase is LeasePhase.QUEUED}
    parked = {n for n, lease in state.leases.items() if lease.phase is LeasePhase.PARKED}
    waiting = set(state.queue.waiting)
    _require(queued <= waiting <= queued | parked, "queue and leases disagree")
    order = [item.lease for item in state.queue.service_order()]
    _require(sorted(order) == sorted(waiting), "the service order lost or repeats a request")
    for name, item in state.queue.waiting.items():
        held_up = is_held_up(state, state.leases[name])
        _require((name in state.queue.held_up) == held_up, f"request {name} is in the wrong line")
        _require((item.left is not None) == held_up, f"request {name} counts grants wrongly")
    urgent = state.queue.first_urgent()
    _require(urgent is None or urgent.lease not in state.queue.held_up, "one held up bars others")


def _budgets(state: State) -> None:
    if not state.quotas.is_configured:
        return  # what the ledger knew of levels is looked at again with the first quotas
    names = {state.leases[name].environment for name in state.queue.waiting}
    for environment in {*names, *state.budgets}:
        budget = state.budget(environment)
        quota, _source = state.quotas.resolve(environment)
        hours = quota.gpu_hours
        if environment in state.budgets and budget.per != quota.per:
            continue  # it is measured anew for the other period
        spent = hours is not None and budget.spent >= hours
        _require(
            (budget.level is BudgetLevel.SPENT) == spent,
            f"{environment} spent {budget.spent} of {hours} GPU-hours and is {budget.level.value}",
        )
        _require(hours is not None or budget.level is BudgetLevel.OK, "a level without a budget")


def _promises(state: State) -> None:
    """A share is of a task that may compute, and promises never claim a whole GPU together."""
    for name, share in state.given.items():
        phase = state.leases[name].phase
        _require(phase in (LeasePhase.HELD, LeasePhase.PARKED), f"{name} has a share and no GPU")
        _require(1 <= share <= WHOLE, f"{name} has {share} hundredths of a GPU")
    for name, known in state.promises.items():
        lease = state.leases[name]
        at_work = lease.parked is not None and lease.parked.at_work
        live = lease.phase is LeasePhase.HELD or (lease.phase is LeasePhase.PARKED and at_work)
        _require(live, f"{name} was promised something and holds no GPU")
        _require(name in state.given, f"{name} has no share for a promise")
        batch = known.named and compute.is_batch(lease)
        _require(not batch, f"{name} is batch, and was promised something")
    for uuid in state.gpus:
        floors = compute.floors_on(state, uuid)
        _require(floors <= MOST_FLOORS, f"promises claim {floors} hundredths of {uuid}")


def _loans(state: State) -> None:
    """Nothing is lent to a host without a pool."""
    book = state.quotas
    _require(book.pool is not None or not book.lent, "something is lent, and there is no pool")
    for name, one in book.lent.items():
        _require(one.loan.environment == name, f"the loan of {name} is another's")
        _require(one.loan.quota.gpus <= one.loan.whole, f"{name} is lent more than its quota")
