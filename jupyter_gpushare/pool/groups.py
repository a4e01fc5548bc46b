"""Groups that breathe: they lend what they do not use, and take it back when they need it.

The model is Kueue's. A group's ``nominal`` GPUs are its own; it lends up to ``lending`` of those
that it does not use, and uses up to ``borrowing`` beyond its own while others lend. The group with
the smallest dominant share for its size borrows next. A group below its nominal takes back what is
lent, from the newest borrower first.

What counts for a group is what is lent to its members' hosts, in use or not. So what counts in all
groups is never more than all nominals together, but for edits and for hosts that came back after
they had been given up (:mod:`.plan`); then nothing new begins (:func:`is_beyond`). A group that
asks for its nominal has it when borrowers have given it back: idle kernels, batch programs that can
be stopped, and, where their host moves tasks, those that compute (``reclaim_after`` later).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..policy.books.table import replace
from . import texts
from .draft import Draft
from .plan import plan
from .state import NOT_LENT, NOT_USED, NOTHING, State
from .words.hosts import Environment, Group, GroupName


def lends(group: Group) -> int:
    """How many of its GPUs others may use."""
    return group.nominal if group.lending is None else min(group.lending, group.nominal)


def common(state: State) -> int:
    """GPUs that groups lend and nobody uses; below 0 after an edit."""
    free = 0
    for name, group in state.groups.items():
        lent = lends(group)
        free += lent - max(0, _used(state, name) - (group.nominal - lent))
    return free


def _used(state: State, name: GroupName) -> int:
    return state.used.get(name, NOT_USED).gpus


def own(state: State, name: GroupName) -> int:
    """How much of its nominal a group does not use."""
    return max(0, state.groups[name].nominal - _used(state, name))


def available(state: State, group: Group) -> int:
    """How many GPUs more may count for a group."""
    used = _used(state, group.name)
    room = max(0, group.nominal - lends(group) - used) + max(0, common(state))
    if group.borrowing is not None:
        room = min(room, group.nominal + group.borrowing - used)
    return max(0, room)


def size(state: State) -> tuple[int, int]:
    """How many GPUs and bytes of memory the pool has, and at least one of each."""
    gpus = [g.memory for host in state.hosts.values() if host.report for g in host.report.gpus]
    return max(1, len(gpus)), max(1, sum(gpus))


def is_beyond(state: State, name: GroupName) -> bool:
    """Whether more counts for a group than it may have: then nothing new begins in it.

    Where groups use more of the common GPUs than there are, this holds for all that use any: what
    one of them has by its nominal, another has borrowed by now.
    """
    group, used = state.groups[name], _used(state, name)
    if group.borrowing is not None and used > group.nominal + group.borrowing:
        return True
    return used > group.nominal - lends(group) and common(state) < 0


def unlikely(state: State, group: Group | None = None) -> list[str]:
    """What an administrator may not have meant by one group's numbers, or by all groups'."""
    said = [
        texts.lends_less(one)
        for one in (state.groups.values() if group is None else (group,))
        if one.lending is not None and one.lending > one.nominal
    ]
    own = sum(one.nominal for one in state.groups.values())
    have = sum(len(host.report.gpus) for host in state.hosts.values() if host.report)
    # Groups may be set before the first host joins.
    if own > have > 0:
        said.append(texts.more_than_there_are(own, have))
    return said


def shares(state: State, count: int, memory: int) -> dict[GroupName, float]:
    """Each group's dominant share of the pool (GPUs, memory), for one nominal GPU."""
    found = {}
    for name, group in state.groups.items():
        used = state.used.get(name, NOT_USED)
        held = used.memory + used.whole * memory / count
        # A group without GPUs of its own counts as half a GPU: it borrows after those that have
        # some.
        found[name] = max(used.gpus / count, held / memory) / max(0.5, group.nominal)
    return found


def breathe(draft: Draft, members: dict[Environment, GroupName]) -> None:
    """Plan members of groups: those that changed, and those that wait or give back."""
    state = draft.state
    members = members | _turned(draft)
    reclaimed = {one for one in state.wanting if _gives_back(state, one)}
    # A member whose group can have no more, and who was told so, is looked at when that changes.
    open_ = {n for n, group in state.groups.items() if own(state, n) or available(state, group)}
    waiting = {one: name for one, name in state.wanting.items() if name in open_} | members
    owed = _serve(draft, {one: of for one, of in waiting.items() if one not in reclaimed}, members)
    taken = _victims(draft.state, owed)
    for one in sorted({*reclaimed, *taken}):
        if (name := member_of(draft.state, one)) is not None:
            back = texts.given_back(draft.state.groups[name])
            beyond = is_beyond(draft.state, name)
            plan(draft, one, group=name, beyond=beyond, taken=taken.get(one), give_back=back)


def _turned(draft: Draft) -> dict[Environment, GroupName]:
    """All members of the groups that are beyond what they may have since now, or no longer."""
    state, before = draft.state, replace(draft.state, used=draft.used)
    if state.used is draft.used:
        return {}
    turned = {name for name in state.groups if is_beyond(state, name) != is_beyond(before, name)}
    if not turned:
        return {}
    return {one: name for one in state.places if (name := member_of(state, one)) in turned}


def member_of(state: State, environment: Environment) -> GroupName | None:
    """The group for which an environment counts."""
    groups = (state.group(host, environment) for host in state.at(environment))
    return next((group for group in groups if group is not None), None)


def _gives_back(state: State, environment: Environment) -> bool:
    return any(host.out.get(environment, NOT_LENT).reclaim for host in state.at(environment))


def _serve(
    draft: Draft, waiting: dict[Environment, GroupName], members: dict[Environment, GroupName]
) -> dict[GroupName, int]:
    """Lend what is groups' own, then what they borrow. What they lack of their own is owed."""
    owed: dict[GroupName, int] = {}
    lacking: dict[Environment, GroupName] = {}
    for one, name in _in_turn(draft, waiting):
        room = min(own(draft.state, name), available(draft.state, draft.state.groups[name]))
        for gpus in _lend(draft, one, name, room, told=one not in members):
            lacking[one] = name
            if owed.get(name, 0) + gpus <= own(draft.state, name):
                owed[name] = owed.get(name, 0) + gpus
    for one, name in _in_turn(draft, lacking):
        # What groups lack of their own is not lent once more.
        room = available(draft.state, draft.state.groups[name]) - sum(owed.values())
        if room > 0:
            _lend(draft, one, name, room)
    return owed


def _in_turn(
    draft: Draft, waiting: dict[Environment, GroupName]
) -> Iterator[tuple[Environment, GroupName]]:
    """The oldest of the group that has the smallest dominant share by then, again and again."""
    queues: dict[GroupName, list[Environment]] = {}
    for one in sorted(waiting, key=lambda one: (-_oldest(draft.state, one), one)):
        queues.setdefault(waiting[one], []).append(one)
    if not queues:
        return
    pool = size(draft.state)
    used, share = draft.state.used, shares(draft.state, *pool)
    while queues:
        if used is not draft.state.used:
            used, share = draft.state.used, shares(draft.state, *pool)
        name = min(queues, key=lambda name: (share[name], name))
        yield queues[name].pop(), name
        if not queues[name]:
            del queues[name]


def _lend(
    draft: Draft, one: Environment, name: GroupName, room: int, *, told: bool = False
) -> list[int]:
    """Plan a member, and return what it lacks for its requests, which it knows if ``told``."""
    state = draft.state

    def why(gpus: int) -> str:
        return _why(state, name, gpus)

    if told and not own(state, name):
        return [1]  # it can only borrow, and is planned when there is something to borrow
    return plan(draft, one, group=name, room=room, why=why, beyond=is_beyond(state, name))


def _oldest(state: State, environment: Environment) -> float:
    """When its first request began to wait."""
    found = float("inf")
    for host in state.at(environment):
        for want in host.here.get(environment, NOTHING).wants:
            found = min(found, host.since(want))
    return found


def full(state: State, environment: Environment, gpus: int) -> str:
    """Why somebody's group may not have this many GPUs more now. Empty if it may."""
    # A person with nothing on any host is in the groups that are known all the same.
    groups = (state.group(host, environment) for host in state.hosts.values())
    name = next((group for group in groups if group is not None), None)
    if name is None or gpus <= available(state, state.groups[name]):
        return ""
    return _why(state, name, gpus)


def _why(state: State, name: GroupName, gpus: int) -> str:
    group = state.groups[name]
    if gpus <= own(state, name):
        return texts.taken_back(group)
    return texts.group_full(group, _used(state, name))


def _victims(state: State, owed: dict[GroupName, int]) -> dict[Environment, dict[str, int]]:
    """How much each borrower gives back on each host, the newest borrower first."""
    missing = -max(0, common(state))
    for name, lack in owed.items():
        group = state.groups[name]
        kept = group.nominal - lends(group) - _used(state, name)
        # What a group keeps for itself nobody has borrowed, so nobody needs to give it back.
        missing += max(0, lack - max(0, kept))
    if not owed or missing <= 0:
        return {}
    over = {
        name: used.gpus - state.groups[name].nominal
        for name, used in state.used.items()
        if name in state.groups
    }
    borrowed = [
        (-host.out[one].since, host.name, one, of)
        for host in state.hosts.values()
        if host.connected
        for one in host.out
        if (of := state.group(host, one)) is not None and over.get(of, 0) > 0
    ]
    taken: dict[Environment, dict[str, int]] = {}
    for _since, host, one, of in sorted(borrowed):
        take = min(state.hosts[host].count(one), missing, over[of])
        if take > 0:
            taken.setdefault(one, {})[host] = take
            missing, over[of] = missing - take, over[of] - take
    return taken
