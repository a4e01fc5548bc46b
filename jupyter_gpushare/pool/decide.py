"""Decides a command: the result is an answer for the caller, events, and what to send.

A quota of the pool is a number of GPUs on all hosts together, but each host grants by itself, also
while the pool is away. So the pool never grants. It splits a quota into loans, one for each host,
which add up to no more than the quota; each holds for a short time from a moment that the host has
reported, by the host's own clock. A loan that is lowered counts in full until the host has agreed,
or until it is surely over: what two could use at once was never lent twice.

A command changes what is known (a host spoke, a quota was set, time passed), and notes whose loans
may have to change for it. After the command the loans of those, and of nobody else, are planned
anew (:mod:`.plan`, :mod:`.groups`), so that a report costs what changed and not what there is.

Pure: the same state, command and settings always give the same result. No command raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from ..policy.words.described import Happening
from ..policy.words.events import GroupsChanged, QuotasConfigured
from ..policy.words.registry import registering
from . import texts
from .draft import Draft
from .effects import drain, effects
from .evolve import changed
from .groups import breathe, member_of
from .hints import give_hints
from .plan import plan
from .state import NOTHING, Host, State
from .where import rank
from .words import commands as cmd, effects as eff, events as ev
from .words.config import PoolConfig
from .words.hosts import Environment, HostReport, Loan, Wish

#: What works a command out; a sentence where it is refused.
ANSWERS: Final[dict[type[cmd.Command], Callable[[Draft, Any], str | None]]] = {}
_decides: Final = registering(ANSWERS)

#: The most environments to which something is lent on one host. A host that was taken over can
#: invent names, and need not say what becomes of a loan. A loan that nobody uses stays where it is,
#: since it will be wanted there again; but from three quarters of this number on, those who have
#: nothing there any more lose theirs.
MOST_HERE: Final = 4096


#: Seconds after the end of what held it for which a lost host is still known, since an engine may
#: have given it more time. Then nobody has to forget it.
ENDED_FOR: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Step:
    """Why a command is refused, its events, the state after them, and what the process does then.

    ``refusal`` is a sentence, or ``None`` where the command is carried out.
    """

    refusal: str | None
    events: tuple[Happening, ...]
    state: State
    effects: tuple[eff.Effect, ...]


def step(state: State, command: cmd.Command, config: PoolConfig) -> Step:
    """Decide ``command``. The durable events are to be in the ledger before the effects."""
    about = command.event if isinstance(command, cmd.Deed) else command
    host = getattr(about, "host", None)
    if host is not None and host not in state.hosts and not getattr(about, "joins", False):
        return Step(texts.no_host(host, sorted(state.hosts)), (), state, ())
    draft = Draft(state, config, command.at)
    refusal = ANSWERS[type(command)](draft, command)
    _plan(draft)
    messages = effects(draft.state, draft.events, config)
    return Step(refusal, tuple(draft.events), draft.state, (*messages, *_again(draft, command)))


def _plan(draft: Draft) -> None:
    """Lend what follows for all environments that changed."""
    if not draft.state.quotas.is_configured:
        return  # nobody's quota is known yet
    members = {}
    for one in sorted(draft.plan):
        group = member_of(draft.state, one) if draft.state.groups else None
        if group is None:
            plan(draft, one)
        else:
            members[one] = group
    if members or draft.state.used is not draft.used:
        breathe(draft, members)


def _again(draft: Draft, command: cmd.Command) -> list[eff.Effect]:
    """What a host was told about draining, told again: it came back, or has not done it yet."""
    if isinstance(command, cmd.Tick):
        return [drain(host) for host in draft.state.hosts.values() if host.due and host.connected]
    if isinstance(command, cmd.HostReported) and command.host in draft.renewed:
        host = draft.state.hosts[command.host]
        return [drain(host)] if host.due else []
    return []


# -- hosts -------------------------------------------------------------------------------------


@_decides(cmd.Start)
def _start(draft: Draft, command: cmd.Start) -> None:
    draft.emit(ev.PoolStarted(command.at, command.unix, draft.until))


@_decides(cmd.Deed)
def _deed(draft: Draft, command: cmd.Deed) -> str | None:
    event, state = command.event, draft.state
    match event:
        case ev.HostsChanged(joins=True) if event.host in state.hosts:
            return None
        case ev.GroupRemoved() if event.group not in state.groups:
            return texts.no_group(event.group, sorted(state.groups))
        case ev.GpusReturned() if event.loan not in state.loans:
            return "There is no such loan."
        case ev.HostsChanged(joins=False) | ev.HostServiceChanged(reason=None):
            draft.plan |= state.hosts[event.host].everybody
        case ev.GroupSet() | ev.GroupRemoved():
            draft.plan |= {*state.places}
        case ev.GpusReturned():
            draft.plan.add(state.loans[event.loan].environment)
    draft.emit(event)
    return None


@_decides(cmd.HostReported)
def _reported(draft: Draft, command: cmd.HostReported) -> None:
    host = draft.state.hosts[command.host]
    report = _bounded(host, command.report)
    known = host.report
    if (
        known is not None
        and host.connected
        and report.boot_id == known.boot_id
        and report.at < known.at
    ):
        return  # a message that came twice, or late
    draft.emit(ev.HostSpoke(command.at, command.host, report))
    now = draft.state.hosts[command.host]
    # From the host as it was before: now it has said what it says.
    draft.plan |= {*changed(host, dict(now.here)), *_unsettled(now)}
    _make_room(draft, now)
    if host.serves != now.serves:
        draft.plan |= now.everybody
    for want in report.wants:
        known_groups = draft.state.quotas.groups_of.get(want.environment)
        told = draft.state.hosts[command.host].told.get(want.environment, ())
        if known_groups is None and told != want.groups:
            draft.emit(ev.GroupsTold(command.at, command.host, want.environment, want.groups))
    # A host that comes back may have been started anew, and then knows of no loan.
    if not host.connected or _is_due(draft, now, report):
        draft.plan |= now.everybody
        draft.renew(command.host)
    _see_drain(draft, now, report)


def _is_due(draft: Draft, host: Host, report: HostReport) -> bool:
    """Whether all is to be sent again: at half of the validity, or because little of it is left.

    A message that came late, or was made from an old report, is over sooner.
    """
    config = draft.config
    is_short = bool(host.out) and report.seconds < config.validity / 4
    after = config.interval if is_short else config.validity / 2
    return draft.at >= host.renewed + after


def _bounded(host: Host, report: HostReport) -> HostReport:
    """The report without the last of the names that are new there, where these are too many."""
    told = [one.environment for one in report.environments]
    told += [one.environment for one in report.wants]
    new = [one for one in dict.fromkeys(told) if one not in host.out]
    room = max(0, MOST_HERE - len(host.out))
    if len(new) <= room:
        return report
    left_out = frozenset(new[room:])
    return replace(
        report,
        environments=tuple(x for x in report.environments if x.environment not in left_out),
        wants=tuple(x for x in report.wants if x.environment not in left_out),
    )


def _make_room(draft: Draft, host: Host) -> None:
    """Take back what was lent longest ago to those who have nothing there."""
    excess = len(host.out) - 3 * MOST_HERE // 4
    if excess <= 0:
        return
    idle = [
        (out.since, one)
        for one, out in host.out.items()
        if out.answered and out.asked and one not in host.here
        if not draft.state.loaned(host, one)
    ]
    for _since, one in sorted(idle)[:excess]:
        draft.lend(host, one, 0, host.out[one].asked_hours)


def _unsettled(host: Host) -> list[Environment]:
    """Those that kept more than they were asked to keep, because it was in use, and do not now."""
    return [
        one
        for one, out in host.out.items()
        if out.gpus > out.asked and out.answered and host.here.get(one, NOTHING).held < out.gpus
    ]


def _see_drain(draft: Draft, host: Host, report: HostReport) -> None:
    drains = report.draining is not None
    if host.due and drains == (host.drain is not None):
        draft.emit(ev.DrainSeen(draft.at, host.name))
    elif not host.due and host.drain is not None and not drains:
        # Its own administrator has ended it: the host owns its GPUs.
        draft.emit(ev.HostServiceChanged(draft.at, host.name, None, host.name))
        draft.emit(ev.DrainSeen(draft.at, host.name))


@_decides(cmd.HostLost)
def _lost(draft: Draft, command: cmd.HostLost) -> None:
    host = draft.state.hosts[command.host]
    if host.connected:
        draft.emit(ev.HostSilent(command.at, command.host, expired=False))
        draft.plan |= host.everybody


@_decides(cmd.LendAnswered)
def _answered(draft: Draft, command: cmd.LendAnswered) -> None:
    if not draft.state.hosts[command.host].connected:
        return  # a new connection begins with a report, and with all that is lent there
    for one in command.environments:
        out = draft.state.hosts[command.host].out.get(one.environment)
        if out is None or command.number < out.number:
            continue  # something else was sent meanwhile: its answer counts
        # A host that says less than it was told, or more than it had, is not believed.
        gpus = min(max(one.gpus, out.asked), max(out.gpus, one.held))
        if (gpus, out.asked_hours, True) != (out.gpus, out.hours, out.answered):
            draft.emit(ev.BudgetAccepted(command.at, command.host, one.environment, gpus))
            if gpus <= out.asked or gpus < out.gpus:
                draft.plan.add(one.environment)
            # Else it is in use there, as the next report will say.


@_decides(cmd.Tick)
def _tick(draft: Draft, command: cmd.Tick) -> None:
    for host in draft.state.hosts.values():
        if host.connected:
            # It is asked first, since a loan counts from a moment that the host itself has said.
            if command.at >= host.renewed + draft.config.validity / 2:
                draft.emit(ev.ReportAsked(command.at, host.name))
        elif not host.expired and command.at >= host.until:
            draft.emit(ev.HostSilent(command.at, host.name, expired=True))
            draft.plan |= host.everybody
        elif host.ends_before(command.at + draft.state.unix - ENDED_FOR):
            draft.emit(ev.HostsChanged(command.at, host.name, joins=False, by=""))
            draft.plan |= host.everybody
    for key, loan in draft.state.loans.items():
        if command.at >= loan.until:
            draft.emit(ev.GpusReturned(command.at, key, ""))
            draft.plan.add(loan.environment)
    give_hints(draft)


@_decides(cmd.LendGpus)
def _lend_gpus(draft: Draft, command: cmd.LendGpus) -> str | None:
    until = command.at + command.seconds
    wish = Wish(command.environment, command.gpus, until=until + draft.state.unix)
    hosts = draft.state.hosts
    some = hosts.values() if command.host is None else (hosts[command.host],)
    best = next(iter(rank(some, wish)), None)
    if best is None or not best.fits_now:
        why = "No host is in the pool." if best is None else " ".join(best.reasons)
        return f"No host has {command.gpus} whole GPUs free now. {why}"
    loan = Loan(command.loan, command.environment, best.host, command.gpus, until)
    draft.emit(ev.GpusLent(command.at, loan, command.by))
    draft.plan.add(command.environment)
    if best.host not in draft.state.places.get(command.environment, ()):
        # It has nothing there yet: the plan looks only where it has something.
        new = (best.host, command.environment, 0, draft.number, draft.until)
        draft.emit(ev.BudgetLent(command.at, *new))
    return None


# -- quotas and groups -------------------------------------------------------------------------


def _all(draft: Draft) -> None:
    """Quotas of many changed: plan everybody, and tell all hosts."""
    draft.plan |= {*draft.state.places}
    draft.resend |= {*draft.state.places}


@_decides(cmd.ConfigureQuotas)
def _configure(draft: Draft, command: cmd.ConfigureQuotas) -> None:
    parts = (command.default, command.groups, command.users)
    book = draft.state.quotas
    known = (book.default, tuple(sorted(book.groups.items())), tuple(sorted(book.users.items())))
    if book.is_configured and known == parts:
        return  # as nearly always when hosts join: the quotas do not depend on GPUs
    draft.emit(QuotasConfigured(command.at, *parts))
    _all(draft)


@_decides(cmd.Introduce)
def _introduce(draft: Draft, command: cmd.Introduce) -> None:
    # A person who is known to be in no group is in none, whatever a host says.
    if draft.state.quotas.groups_of.get(command.environment) != command.groups:
        draft.emit(GroupsChanged(command.at, command.environment, command.groups))
        draft.plan.add(command.environment)
        draft.resend.add(command.environment)


@_decides(*get_args(cmd.EditsBook))
def _edit(draft: Draft, command: cmd.EditsBook) -> None:
    event = draft.state.quotas.event(command)
    if event is None:
        return
    draft.emit(event)
    if command.environment is not None:
        draft.plan.add(command.environment)
        draft.resend.add(command.environment)
    else:
        _all(draft)
