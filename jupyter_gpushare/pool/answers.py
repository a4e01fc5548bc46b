"""Answers what administrators, the Hub and whoever starts servers ask the pool."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from enum import Enum
from functools import partial
from typing import Any, Final, cast

import msgspec

from .._version import __version__
from ..compose.quotas import says as quota_says
from ..ledger.ledger import LedgerError
from ..link.errors import NodeProblem
from ..policy.say.quotas import environment_row, group_row
from ..policy.say.telling import Telling
from ..policy.words.model import EnvironmentName, Reserve
from ..protocol.calls import Call, QuotaName, QuotaParams
from ..protocol.documents import HeldQuota
from ..protocol.errors import Reason
from ..protocol.messages import PROTOCOL, Method
from ..protocol.periods import moment
from ..protocol.poolcalls import (
    DrainHostParams,
    HeldParams,
    HostParams,
    PoolMethod,
    TokenParams,
)
from ..protocol.quota import period_text
from ..quotas import edits
from .groups import full, unlikely
from .joining import NotJoined
from .ledger import audit
from .manager import PoolManager
from .pki import BadRequest
from .state import NOT_USED, Host, State
from .texts import no_host
from .where import LASTS, newest, rank
from .words import commands as cmd, events as ev
from .words.hosts import Group, Holding, Ranked, Wish

_RANKED: Final = tuple(part.name for part in fields(Ranked))


class PoolAnswers:
    """``by`` is the administrator who asks, for the audit."""

    def __init__(self, manager: PoolManager) -> None:
        self._manager = manager
        self._calls: Final[dict[Enum, Callable[[Any, str], Awaitable[Any]]]] = {
            Method.HELLO: self._hello,
            Method.QUOTA_LIST: self._quotas,
            Method.QUOTA_SET: self._set_quota,
            Method.QUOTA_UNSET: self._unset_quota,
            PoolMethod.HOSTS: self._hosts,
            PoolMethod.WHERE: self._where,
            PoolMethod.TOKEN: self._token,
            PoolMethod.HELD: self._held,
            PoolMethod.DRAIN: self._change_service,
            PoolMethod.RESUME: self._change_service,
            PoolMethod.FORGET: self._forget,
            PoolMethod.GROUP_LIST: self._groups,
            PoolMethod.GROUP_SET: self._set_group,
            PoolMethod.GROUP_UNSET: self._unset_group,
            PoolMethod.LEND_GPUS: self._lend,
            PoolMethod.RETURN_GPUS: self._return,
            PoolMethod.HISTORY: self._history,
            PoolMethod.ROTATE: self._rotate,
        }

    async def answer(self, call: Call, by: str) -> Any:
        """The result. Raises :class:`NodeProblem`."""
        try:
            return await self._answer(call, by)
        except NodeProblem as refused:
            self._manager.metrics.refusals.labels(refused.reason).inc()
            raise

    async def _answer(self, call: Call, by: str) -> Any:
        try:
            return await self._calls[call.method](call.params, by)
        except LedgerError as problem:
            raise NodeProblem(Reason.UNAVAILABLE.value, str(problem)) from problem
        except NotJoined as problem:
            raise NodeProblem(Reason.NOT_ALLOWED.value, str(problem)) from problem

    async def _submit(self, make: Callable[[float], cmd.Command]) -> None:
        """Have a command worked on; its no is ours."""
        step = await self._manager.submit(make)
        if step.refusal is not None:
            raise NodeProblem(Reason.BAD_REQUEST.value, step.refusal)

    # -- hosts -------------------------------------------------------------------------------------

    async def _hello(self, _params: Any, _by: str) -> Any:
        return {
            "protocol": PROTOCOL,
            "node": {"name": self._manager.settings.title, "version": __version__},
            "features": [method.value for method in self._calls],
        }

    async def _hosts(self, _params: Any, _by: str) -> Any:
        state = self._manager.state
        return {
            "pool": self._manager.settings.title,
            "hosts": [self._host(state.hosts[name]) for name in sorted(state.hosts)],
        }

    def _host(self, host: Host) -> dict[str, Any]:
        told = None if host.report is None else msgspec.to_builtins(host.report)
        return {
            "host": host.name,
            "address": self._manager.address(host.name),
            "connected": host.connected,
            "problem": "" if host.connected else self._manager.problem(host.name),
            # A host that has just joined, and was never reached, has no loans to lose.
            "until": None if host.connected or not host.until else self._manager.unix(host.until),
            "drain": None if host.drain is None else asdict(host.drain),
            "held": held_row(host),
            "empty": _is_empty(host),
            "report": told,
            "lent": {
                name: {"gpus": out.gpus, "reclaim": out.reclaim, "why": out.why}
                for name, out in host.out.items()
            },
        }

    def _known(self, name: str) -> Host:
        host = self._manager.state.hosts.get(name)
        if host is None:
            known = sorted(self._manager.state.hosts)
            raise NodeProblem(Reason.BAD_REQUEST.value, no_host(name, known))
        return host

    async def _where(self, params: Any, _by: str) -> Any:
        state, name = self._manager.state, EnvironmentName(params.environment)
        quota, _source = state.quotas.resolve(name)
        by_estimate = params.memory is None and quota.reserve is Reserve.ESTIMATE
        memory = quota.memory if params.memory is None and not by_estimate else params.memory
        with self._manager.metrics.where.time():
            hosts = list(state.hosts.values())
            expected = newest(hosts, name)
            until = time.time() + LASTS
            wish = Wish(name, params.gpus, memory, params.kind, expected, by_estimate, until)
            group_full = full(state, name, params.gpus)
            ranked = rank(hosts, wish, lambda host: state.quota(host, name).gpus, group_full)
        # Not asdict(): it copies each sentence, which takes longer than the ranking.
        return {"hosts": [{part: getattr(one, part) for part in _RANKED} for one in ranked]}

    async def _token(self, params: Any, by: str) -> Any:
        if not self._manager.join_port:
            raise NodeProblem(
                Reason.UNAVAILABLE.value,
                "Hosts cannot join: Pool.listen is empty. Set it, and start the pool again.",
            )
        held = None
        if params.engine and params.piece:
            held = _holding(params, params.engine, params.piece)
        token, expires = self._manager.token(by, params.host, params.seconds, held)
        return {"token": token, "expires": expires}

    async def _held(self, params: Any, _by: str) -> Any:
        held = _holding(params, params.engine, params.piece)
        await self._submit(lambda at: cmd.Deed(at, ev.HostHeld(at, params.host, held)))
        return self._host(self._known(params.host))

    async def _change_service(self, params: HostParams, by: str) -> dict[str, Any]:
        """The host as it says itself, once it has heard; one that is lost hears later."""
        name = params.host
        reason, gives_back = None, False
        if isinstance(params, DrainHostParams):
            reason, gives_back = params.reason, params.gives_back
        await self._submit(
            lambda at: cmd.Deed(at, ev.HostServiceChanged(at, name, reason, by, gives_back))
        )

        def heard(state: State) -> bool:
            host = state.hosts.get(name)
            # Who asked hears what the host has done, unless that takes longer than people wait.
            return host is None or not host.connected or not host.due

        await self._manager.until(heard, self._manager.settings.answer_timeout)
        return self._host(self._known(name))

    async def _forget(self, params: Any, by: str) -> Any:
        self._known(params.host)
        await self._manager.forget(params.host, by)
        return {"host": params.host}

    async def _rotate(self, _params: Any, by: str) -> Any:
        try:
            await self._manager.rotate(by)
        except BadRequest as error:
            raise NodeProblem(Reason.BAD_REQUEST.value, str(error)) from error
        return {}

    # -- quotas and groups -------------------------------------------------------------------------

    async def _quotas(self, _params: Any, _by: str) -> Any:
        state = self._manager.state
        book = state.quotas
        # Also people with nothing anywhere: their quota can be set before they come.
        names = {*state.places, *book.users, *book.overrides, *book.groups_of}
        return {
            "default": group_row(state.quotas, None),
            "groups": [group_row(book, name) for name in sorted(book.of_groups)],
            "quotas": [quota_row(state, name) for name in sorted(names)],
            "warnings": [],
        }

    async def _set_quota(self, params: QuotaParams, by: str) -> Any:
        await self._submit(lambda at: edits.edit(at, EnvironmentName(by), params))
        return self._now(params.whose)

    async def _unset_quota(self, whose: QuotaName, by: str) -> Any:
        await self._submit(lambda at: edits.unset(at, EnvironmentName(by), whose))
        return self._now(whose)

    def _now(self, whose: QuotaName) -> dict[str, Any]:
        state = self._manager.state
        if whose.environment is None:
            return {**group_row(state.quotas, whose.group), "warnings": []}
        return {**quota_row(state, EnvironmentName(whose.environment)), "warnings": []}

    async def _groups(self, _params: Any, _by: str) -> Any:
        state = self._manager.state
        groups = [_group(state, group) for _name, group in sorted(state.groups.items())]
        return {"groups": groups, "warnings": unlikely(state)}

    async def _set_group(self, params: Any, by: str) -> Any:
        group = Group(params.group, params.nominal, params.borrowing, params.lending)
        await self._submit(lambda at: cmd.Deed(at, ev.GroupSet(at, group, by)))
        state = self._manager.state
        return {**_group(state, group), "warnings": unlikely(state, group)}

    async def _unset_group(self, params: Any, by: str) -> Any:
        await self._submit(lambda at: cmd.Deed(at, ev.GroupRemoved(at, params.group, by)))
        return {"group": params.group}

    # -- loans, and who did what -------------------------------------------------------------------

    async def _lend(self, params: Any, by: str) -> Any:
        loan = secrets.token_hex(8)
        await self._submit(
            lambda at: cmd.LendGpus(
                at, loan, params.environment, params.gpus, params.seconds, by, params.host
            )
        )
        return asdict(self._manager.state.loans[loan])

    async def _return(self, params: Any, by: str) -> Any:
        await self._submit(lambda at: cmd.Deed(at, ev.GpusReturned(at, params.loan, by)))
        return {"loan": params.loan}

    async def _history(self, params: Any, _by: str) -> Any:
        found = await self._manager.in_ledger(partial(audit, limit=params.limit))
        return {
            "events": [
                {
                    "wall": wall,
                    "by": event.by,
                    "kind": type(event).__name__,
                    "data": msgspec.to_builtins(event),
                    "text": Telling().of(event, event.ABOUT.deed),
                }
                for wall, event in found
            ]
        }


# -- documents -------------------------------------------------------------------------------------


def _holding(params: HeldParams | TokenParams, engine: str, piece: str) -> Holding:
    return Holding(engine, piece, params.until, params.place or "")


def _is_empty(host: Host) -> bool:
    """Whether a host that takes nothing new has nothing left; only a report after that can say."""
    report = host.report
    if report is None or not host.connected or host.due:
        return False
    return report.empty and report.draining is not None


def held_row(host: Host) -> dict[str, Any] | None:
    """What holds a host, with the words for people."""
    return None if host.held is None else {**asdict(host.held), "text": held_by(host)}


def held_by(host: Host) -> str:
    """``Slurm job 17 until 2026-11-29 14:00 UTC``; empty where an administrator let it join."""
    held = host.held
    if held is None:
        return ""
    until = "" if held.until is None else f" until {moment(held.until)}"
    return f"{held.engine} {held.piece}{until}"


def quota_row(state: State, environment: EnvironmentName) -> dict[str, Any]:
    """A row of the list of quotas, as a node manager has it; what is held is held on all hosts."""
    row = environment_row(state.quotas, environment)
    hosts = state.at(environment)
    here = [host.here[environment] for host in hosts if environment in host.here]
    hours = row["gpu_hours"]
    spent = sum(one.spent for one in here)
    return {
        **row,
        "used_gpus": sum(one.held for one in here),
        "budget": None
        if hours is None
        else {
            "hours": hours,
            "spent": spent,
            "per": row["per"],
            # Each host has a rolling window of its own.
            "when": period_text(row["per"]) or "lately",
            "level": "spent" if spent >= hours else "ok",
        },
        "seen": bool(here),
    }


def own_quota(state: State, environment: EnvironmentName) -> dict[str, Any]:
    """A person's own quota on all hosts together, and what there is to say of it."""
    row = quota_row(state, environment)
    return row | {"says": quota_says(cast(HeldQuota, row), None, (), None)}


def _group(state: State, group: Group) -> dict[str, Any]:
    return {**asdict(group), "used": state.used.get(group.name, NOT_USED).gpus}
