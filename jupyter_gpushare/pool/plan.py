"""Divides an environment's quota among hosts.

What it wants on one host and leaves unused on another is lowered there first, and lent here when
that host has answered: in between it counts for neither. What is in use stays.

The bound: of one environment all hosts together hold never more than its quota, and what was out at
hosts that had been given up. A host is given up when it could not be reached for the whole validity
of what was lent to it (with a margin for the drift of its clock). The proof, which the random
histories of the tests try:

- A host holds no more than what it was lent (its rule), and ``Out.gpus`` is never less than what it
  may go by: it grows before a larger number is sent, and falls when a smaller one is answered.
- A lost host counts until its time is over by the slowest clock. After a restart of the pool
  everything counts as lent just now.
- Nothing is lent unless what counts then is within the quota. So what counts is above it only
  after the quota was lowered, or after a host came back that had been given up. Then nothing is
  lent on any host: what runs goes on, and the next loan follows from the hosts' answers. To renew
  even what is in use would let something new begin in its place when it ends, while another host
  may have begun already.

The same holds for all members of a group that is beyond what it may have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from . import texts
from .draft import Draft
from .state import NOT_LENT, NOTHING, Host, Out, State
from .words.hosts import Environment, GroupName

_FIRST: Final = float("-inf")


@dataclass(slots=True)
class Place:
    """A host while an environment is planned. ``counts`` until the host says less."""

    host: Host
    out: Out
    held: int
    counts: int
    limit: int
    target: int
    why: str = ""
    loaned: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """GPUs that a request, or a loan, needs on a host beyond those held there."""

    since: float
    place: Place = field(compare=False)
    gpus: int = field(compare=False)


def plan(
    draft: Draft,
    environment: Environment,
    *,
    group: GroupName | None = None,
    room: int = 0,
    beyond: bool = False,
    taken: dict[str, int] | None = None,
    why: Callable[[int], str] | None = None,
    give_back: str = "",
) -> list[int]:
    """Lend what follows from an environment's quota, requests and use.

    A member of a ``group`` that breathes gets no spare sub-budget, and not more than ``room`` GPUs
    beyond those that count for it; ``beyond``: more counts for the group than it may have;
    ``taken`` is what the member has to give back on hosts. ``why`` and ``give_back`` say so.
    Returns the GPUs of each request that only the lack of room prevented.
    """
    state = draft.state
    places = [_place(state, host, environment) for host in state.at(environment)]
    needs = sorted(_needs(state, environment, places), key=lambda need: need.since)
    total = sum(place.counts for place in places)
    # Hosts may name other groups of somebody, and so differ in limits: the least stops only itself.
    is_beyond = beyond or total > max((place.limit for place in places), default=0)
    met, lacking = _targets(state, places, needs, None if group is None else total + room)
    for need in lacking:
        need.place.why = need.place.why or (why(need.gpus) if why else need.place.out.why)
    spare = group is None
    _spread(places, [need.place for need in met], spare=spare)
    taken = taken or {}
    reach = {id(place): place.held for place in places}
    levels: dict[int, int] = {}
    for need in met:
        place, key = need.place, id(need.place)
        reach[key] += need.gpus
        level = levels.get(key, place.counts)
        more = reach[key] - level
        if more <= 0:
            continue
        # Only what counts now decides, and not what will: the other host's memory is not given back
        # yet.
        if total + more <= place.limit and (group is None or more <= room):
            levels[key], total, room = reach[key], total + more, room - more
        # Else another host is to give it up first: its answer comes in one round trip.
    for place in places:
        if not place.host.connected:
            continue
        key = id(place)
        level = levels.get(key, place.counts)
        if spare and reach[key] <= level < place.target and total < place.limit:
            more = min(place.target - level, place.limit - total)
            level, total = level + more, total + more
        # Lowered at once, but raised only as far as there was room in this step.
        gpus = min(place.target, level) if place.target < place.counts else level
        back = taken.get(place.host.name, 0)
        text = place.why
        if back:
            # It says how many are to stay, too, and in the place of these something new may begin.
            gpus, text = max(0, min(gpus, place.held) - back), give_back
        if is_beyond:
            gpus = 0  # who gives back anything there gives back all
        hours = _hours(state, environment, place, places)
        draft.lend(place.host, environment, gpus, hours, text, reclaim=bool(back))
    return [need.gpus for need in lacking]


def _place(state: State, host: Host, environment: Environment) -> Place:
    here = host.here.get(environment, NOTHING)
    counts = host.count(environment)
    # What a lost host has it keeps, until its time is over. So does one where a request waits for
    # a GPU with the sub-budget that it has.
    keeps = counts if not host.connected else here.held
    limit = state.quota(host, environment).gpus
    out = host.out.get(environment, NOT_LENT)
    loaned = state.loaned(host, environment)
    return Place(host, out, here.held, counts, limit, keeps, loaned=loaned)


def _needs(state: State, environment: Environment, places: list[Place]) -> list[Need]:
    needs = []
    for place in places:
        host = place.host
        here = host.here.get(environment, NOTHING)
        if not host.serves:
            if here.wants:
                place.why = texts.out_of_service(host.name, host.out_of_service)
            continue
        loaned = max(0, place.loaned - place.held)
        if loaned:
            needs.append(Need(_FIRST, place, loaned))
        covered = place.counts - place.held
        # Others wait for a GPU, with a sub-budget that suffices for them.
        kept = min(place.counts, here.lent) - place.held
        if here.waiting > len(here.wants) and kept > 0:
            needs.append(Need(_FIRST, place, kept))
            covered -= kept
        for want in here.wants:
            if want.gpus <= loaned:
                loaned -= want.gpus
                continue
            # What was lent for a request stays for it: else two would take it from each other.
            is_lent = want.gpus <= covered
            needs.append(Need(_FIRST if is_lent else host.since(want), place, want.gpus))
            covered -= want.gpus if is_lent else 0
    return needs


def _targets(
    state: State, places: list[Place], needs: list[Need], most: int | None
) -> tuple[list[Need], list[Need]]:
    """The requests that can be met, and those that only their group prevents (``most`` in all).

    It says of the others why the quota does not allow them.
    """
    met, lacking = [], []
    total = sum(place.target for place in places)
    for need in needs:
        if total + need.gpus > need.place.limit:
            need.place.why = need.place.why or _why(state, need, places)
        elif most is not None and total + need.gpus > most:
            lacking.append(need)
        else:
            need.place.target += need.gpus
            total += need.gpus
            met.append(need)
    return met, lacking


def _why(state: State, need: Need, places: list[Place]) -> str:
    limit = need.place.limit
    if need.gpus > limit:
        return texts.too_many(need.gpus, limit)
    for place in places:
        if not place.host.connected and place.counts:
            return texts.lost(place.host.name, place.counts, place.host.until + state.unix)
    used = [(place.host.name, place.held) for place in places if place.held]
    return texts.in_use(limit, used) if used else texts.others_first(limit)


def _spread(places: list[Place], wanting: list[Place], *, spare: bool) -> None:
    """What nobody wants stays where it is; what is left goes where something is wanted."""
    if not spare:
        return
    total = sum(place.target for place in places)
    for place in places:
        if place.host.connected and (more := min(place.counts, place.limit) - place.target) > 0:
            more = max(0, min(more, place.limit - total))
            place.target += more
            total += more
    for place in wanting[-1:]:
        more = max(0, place.limit - total)
        place.target += more


def _hours(
    state: State, environment: Environment, place: Place, places: list[Place]
) -> float | None:
    """The total of GPU-hours that the environment may reach on a host, of its quota for all."""
    quota = state.quota(place.host, environment).gpu_hours
    if quota is None:
        return None
    spent = _spent(place, environment)
    others = [one for one in places if one is not place]
    bound = sum(_bound(one, environment) for one in others)
    active = [
        one
        for one in places
        if one.host.connected and one.host.here.get(environment, NOTHING).is_active
    ]
    lost = sum(_bound(one, environment) for one in others if not one.host.connected)
    here = sum(_spent(one, environment) for one in places if one.host.connected)
    goal = spent
    if place in active:
        goal += max(0.0, quota - here - lost) / len(active)
    known = place.out.asked_hours
    # A new number for every second of use would be a message for every second.
    if known is not None and abs(goal - known) <= 0.01 * quota and known - spent > 0.01 * quota:
        goal = known
    if goal <= _bound(place, environment):
        return goal
    # Never below what was spent there, which cannot be taken back.
    return max(spent, min(goal, quota - bound))


def _spent(place: Place, environment: Environment) -> float:
    return place.host.here.get(environment, NOTHING).spent


def _bound(place: Place, environment: Environment) -> float:
    """The most that a host lets it reach; it counts when the host is lost, too."""
    if place.out.hours is None:
        return float("inf")
    return max(_spent(place, environment), place.out.hours)
