"""The pool as a role of the Hub's service: it runs in the same process.

The pages reach all hosts by the pool's certificate, which says for whom they ask. So no person's
token leaves the Hub's host. Quotas are edited at the pool, once for all hosts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages.hosts import Host, Own
from jupyter_gpushare.pages.shown import Shown
from jupyter_gpushare.pages.viewer import Viewer
from jupyter_gpushare.pool.answers import PoolAnswers, own_quota
from jupyter_gpushare.pool.manager import PoolManager
from jupyter_gpushare.pool.state import Host as PoolHost
from jupyter_gpushare.pool.words.hosts import Environment
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import RemoteProtocolError
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.poolcalls import PoolMethod, parse_pool_call

from .hubviews import (
    PoolGroups,
    group_text,
    host_of,
    owners,
    pool_groups,
)

_DEEDS: Final = 50


@dataclass(slots=True)
class _Told:
    """What everybody is told of a host, and what each person has there; kept until that changes.

    There may be many open pages, and each looks every second.
    """

    made_of: PoolHost
    problem: str
    host: Host
    owners: dict[str, Own]
    own: dict[str, Host] = field(default_factory=dict)

    def to(self, viewer: Viewer) -> Host:
        """The host as the viewer sees it."""
        who = viewer.environment
        if who not in self.owners:
            return self.host
        if who not in self.own:
            self.own[who] = replace(self.host, own=self.owners[who])
        return self.own[who]


class HubPool:
    """What the pages ask of the pool."""

    def __init__(self, manager: PoolManager) -> None:
        self.places = manager.places
        self._manager = manager
        self._answers = PoolAnswers(manager)
        self._told: dict[str, _Told] = {}

    # -- what everybody may know -------------------------------------------------------------------

    def hosts(self, viewer: Viewer) -> list[Host]:
        """All hosts, as the pool knows them now, with what the viewer has there."""
        known = self._manager.state.hosts
        for gone in self._told.keys() - set(known):
            del self._told[gone]
        return [self._look(known[name]).to(viewer) for name in sorted(known)]

    def problem(self, name: str) -> str:
        """Why a host cannot be asked; empty if it can."""
        host = self._manager.state.hosts.get(name)
        return "" if host is None else self._look(host).host.problem

    def _look(self, host: PoolHost) -> _Told:
        problem = "" if host.connected else self._manager.problem(host.name)
        told = self._told.get(host.name)
        # What changes is a new object.
        if told is None or told.made_of is not host or told.problem != problem:
            told = _Told(host, problem, host_of(host, problem), owners(host))
            self._told[host.name] = told
        return told

    def quotas(self, viewer: Viewer) -> list[tuple[str, Shown]]:
        """The viewer's own quota over all hosts, and those of servers that have their own."""
        state, own = self._manager.state, viewer.environment
        names = {own, *(one for one in state.places if one.startswith(f"{own}/"))}
        return [
            (name.removeprefix(own).lstrip("/"), Shown(own_quota(state, Environment(name)), 0.0))
            for name in sorted(names)
        ]

    def group_text(self, viewer: Viewer) -> str:
        """How the viewer's groups stand, where groups have GPUs."""
        return group_text(pool_groups(self._manager.state).rows, viewer.groups)

    # -- administrators ----------------------------------------------------------------------------

    def groups(self) -> PoolGroups:
        """The groups whose GPUs breathe."""
        return pool_groups(self._manager.state)

    async def deeds(self, viewer: Viewer) -> list[dict[str, Any]]:
        """What people did to the pool, the newest first. Raises :class:`NodeProblem`."""
        return list((await self.ask(PoolMethod.HISTORY, viewer, limit=_DEEDS))["events"])

    async def ask(
        self, method: Method | PoolMethod, viewer: Viewer, **params: Any
    ) -> dict[str, Any]:
        """Ask in an administrator's name. Raises :class:`NodeProblem`."""
        if not viewer.admin:
            raise NodeProblem("not_allowed", "Only an administrator of the Hub may do this.")
        return await self._ask(method, viewer, **params)

    async def where(self, viewer: Viewer, **wish: Any) -> dict[str, Any]:
        """The hosts ranked for the viewer's own wish. Raises :class:`NodeProblem`."""
        return await self._ask(PoolMethod.WHERE, viewer, environment=viewer.environment, **wish)

    async def _ask(
        self, method: Method | PoolMethod, viewer: Viewer, **params: Any
    ) -> dict[str, Any]:
        try:
            call = parse_pool_call(ClientConnection().call(method, **params)[1])
            answer: dict[str, Any] = await self._answers.answer(call, viewer.environment)
        except RemoteProtocolError as error:
            raise NodeProblem(error.reason.value, str(error)) from error
        return answer
