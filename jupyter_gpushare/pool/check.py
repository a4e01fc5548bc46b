"""What must hold in every step of the pool.

The bound: of one environment all hosts together hold never more than its quota, and what was out at
hosts that had been given up. A host is given up when it could not be reached for the whole validity
of what was lent to it (with a margin for the drift of its clock): it starts nothing new by
then, but what runs there goes on. The excess
is over when enough of that has ended: nothing new begins in its place. The
proof, which the random histories of the tests check:

- A host holds no more than what it was lent (its rule), and ``Out.gpus`` is never less than what it
  may go by: it grows before a larger number is sent, and falls when a smaller one is answered.
- A lost host counts until its time is over by the slowest clock. After a restart of the pool
  everything counts as lent just now.
- Nothing is lent unless what counts then is within the quota. So what counts is above it only
  after the quota was lowered, or after a host came back that had been given up. Then nothing is
  lent until hosts have answered that they hold less.

For groups the same holds with what counts for their members: no group exceeds its nominal and what
it may borrow, and all together no more than all nominals, but for what was out at hosts that had
been given up. While one does, its members are lent nothing, on any host.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..policy.words.described import Happening
from ..policy.words.events import ChangesQuotas
from .evolve import evolve, reindexed
from .groups import is_beyond, lends
from .state import NOT_USED, State
from .words import events as ev
from .words.hosts import Environment

#: After these more may count for somebody, or less, than before.
_ALLOWS_OTHERS = (ChangesQuotas, ev.GroupSet, ev.GroupRemoved, ev.GroupsTold)


def check(before: State, events: Sequence[Happening], after: State) -> list[str]:
    """What is wrong with a step. Empty if all is well. For tests: it looks at everything."""
    return [*_indexes(after), *_grown(before, events, after), *_renewed(after)]


def _indexes(state: State) -> list[str]:
    wrong = []
    places: dict[str, set[str]] = {}
    for host in state.hosts.values():
        for one in host.everybody:
            places.setdefault(one, set()).add(host.name)
        for one, out in host.out.items():
            if out.asked > out.gpus:
                wrong.append(f"{host.name} was sent {out.asked} for {one}, {out.gpus} counts")
    if {one: {*names} for one, names in state.places.items()} != places:
        wrong.append("places are not where environments have something")
    anew = reindexed(state)
    used = {name: used for name, used in state.used.items() if used.gpus}
    if state.groups and (used != dict(anew.used) or state.wanting != anew.wanting):
        wrong.append(f"groups use {dict(anew.used)}, not {used}")
    return wrong


def _grown(before: State, events: Sequence[Happening], after: State) -> list[str]:
    """What was lent beyond a quota, or beyond what a group may have."""
    wrong = []
    lent = {event.environment for event in events if isinstance(event, ev.BudgetLent)}
    for one in lent:
        limits = [after.quota(host, one).gpus for host in after.at(one)]
        # It may have been above before: what a host held when it came is its own.
        least = max((*limits, _heard(before, events, one)))
        if after.total(one) > least:
            wrong.append(f"{after.total(one)} GPUs count for {one}, {least} may")
    if any(isinstance(event, _ALLOWS_OTHERS) for event in events):
        return wrong
    for name, group in after.groups.items():
        used, was = (state.used.get(name, NOT_USED).gpus for state in (after, before))
        most = used if group.borrowing is None else group.nominal + group.borrowing
        if used > max(most, was) and not _came(events):
            wrong.append(f"{used} GPUs count for group {name}, {most} may")
    used, was = (_lendable(state) for state in (after, before))
    if used > max(was, 0) and not _came(events):
        wrong.append(f"groups use {used} GPUs more than are theirs together")
    return wrong


def _renewed(state: State) -> list[str]:
    """What something new may begin by, though more counts than may."""
    wrong = []
    for host in state.hosts.values():
        if not host.connected or not state.quotas.is_configured:
            continue
        for one, out in host.out.items():
            group = state.group(host, one)
            if out.asked and state.total(one) > max(
                state.quota(at, one).gpus for at in state.at(one)
            ):
                wrong.append(f"{one} is beyond the quota, and {host.name} was sent {out.asked}")
            if out.asked and group is not None and is_beyond(state, group):
                wrong.append(
                    f"group {group} is beyond, and {host.name} was sent {out.asked} for {one}"
                )
    return wrong


def _heard(before: State, events: Sequence[Happening], one: Environment) -> int:
    """What counted before the first loan of this step."""
    state = before
    for event in events:
        if isinstance(event, ev.BudgetLent):
            break
        state = evolve(state, event)
    return state.total(one)


def _came(events: Sequence[Happening]) -> bool:
    """Whether a host said what it holds, after it had been given up or before it was known."""
    return any(isinstance(event, ev.HostSpoke | ev.PoolStarted) for event in events)


def _lendable(state: State) -> int:
    """By how much groups use more of the common GPUs than there are."""
    over = 0
    for name, group in state.groups.items():
        own = group.nominal - lends(group)
        over += max(0, state.used.get(name, NOT_USED).gpus - own) - lends(group)
    return over
