"""What a step asks of the process: messages to hosts, made from its events and the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..policy.words.described import Happening
from ..protocol.calls import LentParams, QuotaFields
from ..quota import Quota, plain
from .state import NOT_USED, Host, State
from .words import effects as eff, events as ev
from .words.config import PoolConfig
from .words.hosts import Environment

#: What a quota need not say, to keep lines short. The number of its GPUs is always told.
_UNTOLD: Final = {**plain(Quota(gpus=0)), "gpus": None}


def effects(
    state: State, events: Iterable[Happening], config: PoolConfig
) -> tuple[eff.Effect, ...]:
    """The effects of ``events``, which led to ``state``; nothing is sent to a lost host."""
    found: list[eff.Effect] = []
    lent: dict[str, dict[Environment, None]] = {}
    whole: set[str] = set()
    for event in events:
        host: str = getattr(event, "host", "")
        if host not in state.hosts or not state.hosts[host].connected:
            continue
        match event:
            case ev.BudgetLent():
                lent.setdefault(host, {})[event.environment] = None
            case ev.Renewed():
                whole.add(host)
            case ev.ReportAsked():
                found.append(eff.Follow(host))
            case ev.HintsGiven():
                found.append(eff.Hint(host, event.hints))
            case ev.HostServiceChanged():
                found.append(drain(state.hosts[host]))
    for name in sorted({*lent, *whole}):
        to = state.hosts[name]
        some = to.everybody if name in whole else lent[name]
        budgets = tuple(_budget(state, to, one) for one in sorted(some) if one in to.out)
        found.append(_lend(state, to, config, complete=name in whole, budgets=budgets))
    return tuple(found)


def drain(host: Host) -> eff.Effect:
    """What a host is to be told about draining."""
    return eff.TellService(host.name, None if host.drain is None else host.drain.reason)


def _lend(
    state: State, host: Host, config: PoolConfig, *, complete: bool, budgets: tuple[LentParams, ...]
) -> eff.Lend:
    # Only a host that is connected is lent anything, and it is so from its first report on.
    boot, at = ("", 0.0) if host.report is None else (host.report.boot_id, host.report.at)
    return eff.Lend(host.name, state.number, boot, at, config.validity, complete, budgets)


def _budget(state: State, host: Host, environment: Environment) -> LentParams:
    out = host.out[environment]
    here = host.here.get(environment)
    hours = out.asked_hours
    if hours is not None:
        hours = max(0.0, hours - (0.0 if here is None else here.spent))
    quota = plain(state.quota(host, environment)).items()
    told = QuotaFields(**{name: value for name, value in quota if value != _UNTOLD[name]})
    borrowed = min(out.asked, _over(state, host, environment))
    why = out.why or None
    return LentParams(environment, out.asked, told, hours, out.reclaim, why, borrowed)


def _over(state: State, host: Host, environment: Environment) -> int:
    """What the environment's group uses beyond its own."""
    name = state.group(host, environment)
    if name is None:
        return 0
    return max(0, state.used.get(name, NOT_USED).gpus - state.groups[name].nominal)
