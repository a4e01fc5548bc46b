"""Applies each event to the state. Total and deterministic; it makes no decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace as remake
from typing import Any, Final, get_args

from ..policy.books.quotas import QuotaBook
from ..policy.books.table import Map, replace
from ..policy.words.described import Happening
from ..policy.words.events import ChangesBook
from ..policy.words.registry import registering
from .state import NOT_LENT, NOT_USED, NOTHING, Drained, Here, Host, Out, State, Used
from .words import events as ev
from .words.hosts import Environment, GroupName, HostReport, Want

CHANGES: Final[dict[type[Happening], Callable[[State, Any], State]]] = {}
_evolves: Final = registering(CHANGES)


def evolve(state: State, event: Happening) -> State:
    """The state after ``event``; one about a host that was forgotten changes nothing."""
    host = getattr(event, "host", None)
    if host is not None and host not in state.hosts and not getattr(event, "joins", False):
        return state
    return CHANGES[type(event)](state, event)


def _drop(index: Map[Any, Any], key: object) -> Map[Any, Any]:
    return index.delete(key) if key in index else index


# -- indexes -----------------------------------------------------------------------------------


def _with(state: State, host: Host, touched: Iterable[Environment]) -> State:
    """The state with this host, which changed for the environments ``touched``."""
    old = state.hosts.get(host.name)
    hosts, places = state.hosts.set(host.name, host), state.places
    for one in touched:
        has = one in host.out or one in host.here
        known = places.get(one, ())
        if has and host.name not in known:
            places = places.set(one, tuple(sorted((*known, host.name))))
        elif not has and host.name in known:
            rest = tuple(name for name in known if name != host.name)
            places = places.set(one, rest) if rest else places.delete(one)
    after = replace(state, hosts=hosts, places=places)
    return _regroup(state, after, old, host, touched) if state.groups else after


def _regroup(
    before: State, after: State, old: Host | None, new: Host | None, touched: Iterable[Environment]
) -> State:
    used, wanting = after.used, after.wanting
    for one in touched:
        # By the old state and by the new one, as the group of somebody may be what has changed.
        for state, host, sign in ((before, old, -1), (after, new, 1)):
            if host is not None and (group := state.group(host, one)) is not None:
                count = host.count(one)
                if count:
                    memory = state.quota(host, one).memory
                    used = used.set(group, used.get(group, NOT_USED).plus(sign * count, memory))
        group = wants(after, one)
        if group is None:
            wanting = _drop(wanting, one)
        elif wanting.get(one) != group:
            wanting = wanting.set(one, group)
    return replace(after, used=used, wanting=wanting)


def wants(state: State, environment: Environment) -> GroupName | None:
    """Its group, where it waits for a sub-budget or gives one back."""
    for host in state.at(environment):
        asks = host.here.get(environment, NOTHING).wants or state.loaned(host, environment)
        if host.connected and (asks or host.out.get(environment, NOT_LENT).reclaim):
            group = state.group(host, environment)
            if group is not None:
                return group
    return None


def reindexed(state: State) -> State:
    """The state with the indexes of groups made anew: who belongs to which may have changed."""
    used: dict[GroupName, Used] = {}
    for host in state.hosts.values():
        for one in host.everybody:
            if (group := state.group(host, one)) is not None and (count := host.count(one)):
                memory = state.quota(host, one).memory
                used[group] = used.get(group, NOT_USED).plus(count, memory)
    wanting = {one: group for one in state.places if (group := wants(state, one)) is not None}
    return replace(state, used=Map(used), wanting=Map(wanting))


# -- hosts -------------------------------------------------------------------------------------


@_evolves(ev.PoolStarted)
def _started(state: State, event: ev.PoolStarted) -> State:
    # Nobody remembers what was answered last: all that was lent counts as lent at this moment.
    hosts = {
        name: replace(host, connected=False, expired=False, until=event.until)
        for name, host in state.hosts.items()
    }
    return reindexed(replace(state, hosts=Map(hosts), unix=event.unix - event.at))


@_evolves(ev.HostsChanged)
def _hosts_changed(state: State, event: ev.HostsChanged) -> State:
    host = state.hosts.get(event.host, Host(event.host))
    if event.joins:
        return replace(state, hosts=state.hosts.set(event.host, host))
    loans = {key: one for key, one in state.loans.items() if one.host != event.host}
    state = replace(state, loans=Map(loans))
    state = _with(state, replace(host, out=Map(), here={}), host.everybody)
    return replace(state, hosts=state.hosts.delete(event.host))


def _heard(report: HostReport) -> dict[Environment, Here]:
    asked: dict[Environment, list[Want]] = {}
    for want in report.wants:
        asked.setdefault(want.environment, []).append(want)
    heard = {
        one.environment: Here(
            one.held,
            one.waiting,
            one.parked,
            one.lent,
            one.short,
            tuple(asked.pop(one.environment, ())),
            one.gpu_hours,
            one.parked_bytes,
        )
        for one in report.environments
        if one.held or one.waiting or one.parked or one.gpu_hours or one.environment in asked
    }
    return heard | {one: Here(wants=tuple(several)) for one, several in asked.items()}


@_evolves(ev.HostSpoke)
def _spoke(state: State, event: ev.HostSpoke) -> State:
    host = state.hosts[event.host]
    here = _heard(event.report)
    touched = changed(host, here)
    # While it was away people may have gone, of whom no report says anything more.
    gone = touched if host.connected else {*touched, *host.told}
    now = replace(
        host, connected=True, expired=False, report=event.report, received=event.at, here=here
    )
    return _with(state, _untold(now, gone), touched)


def _untold(host: Host, gone: Iterable[Environment]) -> Host:
    """The host without the groups that it named for those who have nothing there any more."""
    told = host.told
    for one in gone:
        if one in told and one not in host.out and one not in host.here:
            told = told.delete(one)
    return host if told is host.told else replace(host, told=told)


def changed(host: Host, here: dict[Environment, Here]) -> set[Environment]:
    """The environments for which a report says something new."""
    if not host.connected:
        return {*host.everybody, *here}
    old = host.here
    news = {one for one, what in here.items() if old.get(one) != what}
    return news | {one for one in old if one not in here}


@_evolves(ev.HostSilent)
def _silent(state: State, event: ev.HostSilent) -> State:
    host = state.hosts[event.host]
    return _with(state, replace(host, connected=False, expired=event.expired), host.everybody)


@_evolves(ev.AuthorityRotated, ev.ReportAsked)
def _unchanged(state: State, _event: Happening) -> State:
    return state


@_evolves(ev.HostServiceChanged)
def _service_changed(state: State, event: ev.HostServiceChanged) -> State:
    reason = event.reason
    drain = None if reason is None else Drained(reason, event.by, event.gives_back)
    return _with(state, replace(state.hosts[event.host], drain=drain, due=True), ())


@_evolves(ev.HostHeld)
def _held(state: State, event: ev.HostHeld) -> State:
    return _with(state, replace(state.hosts[event.host], held=event.held), ())


@_evolves(ev.DrainSeen)
def _drain_seen(state: State, event: ev.DrainSeen) -> State:
    return _with(state, replace(state.hosts[event.host], due=False), ())


@_evolves(ev.HintsGiven)
def _hinted(state: State, event: ev.HintsGiven) -> State:
    return _with(state, replace(state.hosts[event.host], hints=event.hints), ())


# -- sub-budgets -------------------------------------------------------------------------------


def _more(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


@_evolves(ev.BudgetLent)
def _lent(state: State, event: ev.BudgetLent) -> State:
    host = state.hosts[event.host]
    old = host.out.get(event.environment, NOT_LENT)
    out = Out(
        # It may go by either number until it answers, so the larger one counts.
        max(old.gpus, event.gpus),
        event.gpus,
        event.number,
        False,
        _more(old.hours, event.hours),
        event.hours,
        event.at if event.gpus > old.gpus else old.since,
        event.reclaim,
        event.why,
    )
    now = replace(
        host, out=host.out.set(event.environment, out), until=max(host.until, event.until)
    )
    state = replace(state, number=max(state.number, event.number))
    return _with(state, now, (event.environment,))


@_evolves(ev.BudgetAccepted)
def _accepted(state: State, event: ev.BudgetAccepted) -> State:
    host = state.hosts[event.host]
    old = host.out.get(event.environment, NOT_LENT)
    # It keeps more than was asked of it, so it has still to give back.
    given_back = old.reclaim and event.gpus > old.asked
    out = remake(old, gpus=event.gpus, hours=old.asked_hours, answered=True, reclaim=given_back)
    idle = not (out.gpus or out.asked or out.why)
    outs = _drop(host.out, event.environment) if idle else host.out.set(event.environment, out)
    now = _untold(replace(host, out=outs), (event.environment,))
    return _with(state, now, (event.environment,))


@_evolves(ev.BudgetStands)
def _stands(state: State, event: ev.BudgetStands) -> State:
    host = state.hosts[event.host]
    out = Out(**{part.name: getattr(event, part.name) for part in fields(Out)})
    state = replace(state, number=max(state.number, event.number))
    now = replace(host, out=host.out.set(event.environment, out))
    return _with(state, now, (event.environment,))


@_evolves(ev.Renewed)
def _renewed(state: State, event: ev.Renewed) -> State:
    host = state.hosts[event.host]
    until = max(host.until, event.until)
    state = replace(state, number=max(state.number, event.number))
    return _with(state, replace(host, renewed=event.at, until=until), ())


@_evolves(ev.GpusLent)
def _gpus_lent(state: State, event: ev.GpusLent) -> State:
    state = replace(state, loans=state.loans.set(event.loan.id, event.loan))
    return reindexed(state) if state.groups else state


@_evolves(ev.GpusReturned)
def _gpus_returned(state: State, event: ev.GpusReturned) -> State:
    state = replace(state, loans=_drop(state.loans, event.loan))
    return reindexed(state) if state.groups else state


# -- quotas and groups -------------------------------------------------------------------------


def _requoted(state: State, whose: Environment | None, book: QuotaBook) -> State:
    """The state after the quotas changed, for one environment or for many."""
    after = replace(state, quotas=book)
    if not state.groups:
        return after
    if whose is None:
        return reindexed(after)
    for host in state.at(whose):
        after = _regroup(state, after, host, host, (whose,))
    return after


@_evolves(*get_args(ChangesBook))
def _book_changed(state: State, event: ChangesBook) -> State:
    return _requoted(state, getattr(event, "environment", None), state.quotas.after(event))


@_evolves(ev.GroupsTold)
def _told(state: State, event: ev.GroupsTold) -> State:
    host = state.hosts[event.host]
    told = host.told.set(event.environment, event.groups)
    return _with(state, replace(host, told=told), (event.environment,))


@_evolves(ev.GroupSet)
def _group_set(state: State, event: ev.GroupSet) -> State:
    return reindexed(replace(state, groups=state.groups.set(event.group.name, event.group)))


@_evolves(ev.GroupRemoved)
def _group_removed(state: State, event: ev.GroupRemoved) -> State:
    return reindexed(replace(state, groups=_drop(state.groups, event.group)))
