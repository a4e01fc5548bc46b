"""Groups that breathe: they lend what they do not use, and take it back when they need it.

The model is Kueue's. A group's ``nominal`` GPUs are its own; it lends up to ``lending`` of those
that it does not use, and uses up to ``borrowing`` beyond its own while others lend. The group with
the smallest dominant share for its size borrows next. A group below its nominal takes back what is
lent, from the newest borrower first.

What counts for a group is what is lent to its members' hosts, in use or not. So what counts in all
groups is never more than all nominals together, but for edits and for hosts that came back after
they had been given up (:mod:`.check`). A group that asks for its nominal has it after a round trip
and the time in which borrowers give back (``reclaim_after`` of their hosts), whatever others do.
"""

from __future__ import annotations

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
        free += lent - max(0, state.used.get(name, NOT_USED).gpus - (group.nominal - lent))
    return free


def available(state: State, group: Group) -> int:
    """How many GPUs more may count for a group."""
    used = state.used.get(group.name, NOT_USED).gpus
    room = max(0, group.nominal - lends(group) - used) + max(0, common(state))
    if group.borrowing is not None:
        room = min(room, group.nominal + group.borrowing - used)
    return max(0, room)


def shares(state: State) -> dict[GroupName, float]:
    """Each group's dominant share of the pool (GPUs, memory), for one nominal GPU."""
    gpus = [g for host in state.hosts.values() if host.report for g in host.report.gpus]
    memory = max(1, sum(gpu.memory for gpu in gpus))
    count = max(1, len(gpus))
    found = {}
    for name, group in state.groups.items():
        used = state.used.get(name, NOT_USED)
        held = used.memory + used.whole * memory / count
        found[name] = max(used.gpus / count, held / memory) / max(0.5, group.nominal)
    return found


def breathe(draft: Draft, members: dict[Environment, GroupName]) -> None:
    """Plan members of groups: those that changed, and those that wait or give back."""
    reclaimed = {one for one in draft.state.wanting if _gives_back(draft.state, one)}
    waiting = {**draft.state.wanting, **members}
    owed = _serve(draft, {one: of for one, of in waiting.items() if one not in reclaimed}, members)
    taken = _victims(draft.state, owed)
    for one in sorted({*reclaimed, *taken}):
        name = waiting.get(one) or member_of(draft.state, one)
        if name is not None:
            group = draft.state.groups[name]
            why, back = _why(draft.state, group), texts.given_back(group)
            plan(draft, one, group=name, taken=taken.get(one), why=why, give_back=back)


def member_of(state: State, environment: Environment) -> GroupName | None:
    """The group for which an environment counts."""
    groups = (state.group(host, environment) for host in state.at(environment))
    return next((group for group in groups if group is not None), None)


def _gives_back(state: State, environment: Environment) -> bool:
    return any(host.out.get(environment, NOT_LENT).reclaim for host in state.at(environment))


def _serve(
    draft: Draft, waiting: dict[Environment, GroupName], members: dict[Environment, GroupName]
) -> dict[GroupName, int]:
    """Lend in order; what groups lack of their own nominal is the result."""
    queues: dict[GroupName, list[Environment]] = {}
    for one in sorted(waiting, key=lambda one: (-_oldest(draft.state, one), one)):
        queues.setdefault(waiting[one], []).append(one)
    owed: dict[GroupName, int] = {}
    share = shares(draft.state) if len(queues) > 1 else {}
    while queues:
        state = draft.state
        name = min(queues, key=lambda name: (_borrows(state, name), share.get(name, 0.0), name))
        one = queues[name].pop()
        if not queues[name]:
            del queues[name]
        group = state.groups[name]
        own = group.nominal - state.used.get(name, NOT_USED).gpus
        room = available(state, group)
        # What others lack of their own is not lent once more.
        others = sum(lack for other, lack in owed.items() if other != name)
        room = max(min(room, own), room - others, 0)
        why = _why(state, group)
        if room == 0 and one not in members:
            lack = _told(state, one, why)
        else:
            lack = sum(unmet.gpus for unmet in plan(draft, one, group=name, room=room, why=why))
            if queues and draft.state.used is not state.used:
                share = shares(draft.state)
        own -= owed.get(name, 0)
        if lack and own > 0:
            owed[name] = owed.get(name, 0) + min(lack, own)
    return owed


def _borrows(state: State, name: GroupName) -> bool:
    return state.used.get(name, NOT_USED).gpus >= state.groups[name].nominal


def _oldest(state: State, environment: Environment) -> float:
    """When its first request began to wait."""
    found = float("inf")
    for host in state.at(environment):
        for want in host.here.get(environment, NOTHING).wants:
            found = min(found, host.since(want))
    return found


def _told(state: State, environment: Environment, why: str) -> int:
    """What it lacked when it was planned last, and told ``why``."""
    return sum(
        want.gpus
        for host in state.at(environment)
        if host.serves and host.out.get(environment, NOT_LENT).why == why
        for want in host.here.get(environment, NOTHING).wants
    )


def _why(state: State, group: Group) -> str:
    used = state.used.get(group.name, NOT_USED).gpus
    return texts.taken_back(group) if used < group.nominal else texts.group_full(group, used)


def _victims(state: State, owed: dict[GroupName, int]) -> dict[Environment, dict[str, int]]:
    """Who gives back how much on which host, the newest borrower first."""
    missing = -max(0, common(state))
    for name, lack in owed.items():
        group = state.groups[name]
        own = group.nominal - lends(group) - state.used.get(name, NOT_USED).gpus
        missing += max(0, lack - max(0, own))
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
