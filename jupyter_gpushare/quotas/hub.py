"""Reads quotas from the properties of JupyterHub's groups.

``load_groups = {"students": {"properties": {"gpushare": {"gpus": 1, "memory": "16GiB"}}}}`` is a
quota of the group ``students``. It replaces a quota of that group in the node manager's own
configuration.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from ..daemon.hubapi import HubApi, HubUnreachable
from ..daemon.troubles import Trouble
from ..ledger.ledger import Ledger, LedgerError
from ..policy.words.model import EnvironmentName
from ..protocol.background import event_or_time
from .config import NodeSize, parse_quota

#: The property of a Hub group that is ours.
PROPERTY: Final = "gpushare"
#: Groups that are read at most: something that always has one more is no Hub.
MOST_GROUPS: Final = 100_000
#: Under this name the ledger keeps the last answer: of which Hub, when, and what it said.
KEPT: Final = "hub_quotas"
#: Seconds between two looks while the Hub is away, where ``refresh`` is longer.
AWAY_REFRESH: Final = 10.0


class Told(NamedTuple):
    """What the Hub's groups say: quotas by group, their members, and what makes no sense."""

    quotas: dict[str, Any]
    wrong: dict[str, str]
    members: dict[EnvironmentName, tuple[str, ...]]


def told_by(groups: Any, node: NodeSize, before: Mapping[str, Any]) -> Told:
    """What groups say that have a quota; of a user, which of these groups they are in.

    A group whose entry makes no sense keeps the quota it had ``before``: a typing error must not
    take GPUs away.
    """
    told = Told({}, {}, {})
    for group in groups if isinstance(groups, list) else []:
        if not isinstance(group, Mapping) or not isinstance(group.get("name"), str):
            continue
        name, properties = group["name"], group.get("properties")
        if not isinstance(properties, Mapping) or PROPERTY not in properties:
            continue
        quota, users = properties[PROPERTY], group.get("users")
        try:
            parse_quota(f"JupyterHub group {name!r}", quota, node)
            told.quotas[name] = quota
        except ValueError as error:
            told.wrong[name] = str(error)
            if name in before:
                told.quotas[name] = before[name]
        for user in users if isinstance(users, list) else []:
            if isinstance(user, str):
                who = EnvironmentName(user)
                told.members[who] = (*told.members.get(who, ()), name)
    return told


class HubQuotas:
    """Looks at the Hub's groups every ``refresh`` seconds; ``apply`` gets them when they changed.

    While the Hub is away the last known quotas stay; the ledger keeps them over a restart.
    ``in_ledger`` does something with it where it may wait for the disk. ``wall`` gives Unix
    seconds.
    """

    def __init__(
        self,
        api: HubApi,
        own_token: str,
        *,
        refresh: float,
        node: Callable[[], NodeSize],
        apply: Callable[[dict[str, Any]], Awaitable[object]],
        in_ledger: Callable[[Callable[[Ledger], Any]], Awaitable[Any]],
        wall: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._api = api
        self._own_token = own_token
        self._refresh = refresh
        self._node = node
        self._apply = apply
        self._in_ledger = in_ledger
        self._wall = wall
        self._log = log
        self._known: dict[str, Any] = {}
        self._members: Mapping[EnvironmentName, tuple[str, ...]] = {}
        self._answered: float | None = None
        self._told: dict[str, str] = {}
        self._away = Trouble(log, time.monotonic, "JupyterHub's groups can be read again")
        self._unkept = Trouble(log, time.monotonic, "Their quotas are kept again")
        self._now = asyncio.Event()
        self._then: list[Callable[[], object]] = []

    def when_away(self) -> float | None:
        """When the Hub told the quotas in force, Unix seconds; ``None`` while it answers.

        ``None`` also if it never answered: no quota of the Hub is then in force.
        """
        return self._answered if self._away.lasts else None

    def members(self) -> Mapping[EnvironmentName, tuple[str, ...]]:
        """The members of groups that have a quota, by the Hub. Empty before its first answer."""
        return self._members

    def hurry(self, then: Callable[[], object] = lambda: None) -> None:
        """Ask the Hub now; ``then`` is called after that, also if it failed."""
        self._then.append(then)
        self._now.set()

    async def run(self) -> None:
        """Look for ever; cancel it to stop."""
        while True:
            self._now.clear()
            waiting, self._then = self._then, []
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - quotas must not stand still for ever
                # This is our bug, or the ledger cannot be written: the next look may succeed.
                self._log.exception("The quotas of JupyterHub's groups could not be applied")
            for then in waiting:
                then()
            await event_or_time(self._now, self._pause())

    def _pause(self) -> float:
        return min(self._refresh, AWAY_REFRESH) if self._away.lasts else self._refresh

    async def first(self, node: NodeSize) -> dict[str, Any]:
        """The quotas to begin with; those told last, while the Hub is away.

        The caller applies them.
        """
        quotas = await self._read(node)
        self._known = await self._recall(node) if quotas is None else quotas
        return self._known

    async def look(self) -> None:
        """Read the groups once, and apply what is new in them."""
        quotas = await self._read(self._node())
        if quotas is not None and quotas != self._known:
            await self._apply(quotas)
            self._known = quotas

    async def _read(self, node: NodeSize) -> dict[str, Any] | None:
        try:
            groups = await self._groups()
        except HubUnreachable as error:
            self._away.came(f"JupyterHub's groups cannot be read, and their quotas stay: {error}")
            return None
        self._away.is_over()
        told = told_by(groups, node, self._known)
        for name, why in told.wrong.items():
            if self._told.get(name) != why:
                self._log.error("%s It is ignored.", why)
        self._told, self._members = told.wrong, told.members
        self._answered = self._wall()
        await self._keep({"hub": self._api.url, "at": self._answered, "quotas": told.quotas})
        return told.quotas

    async def _keep(self, answer: dict[str, Any]) -> None:
        with self._unkept.about(LedgerError, "The quotas of JupyterHub's groups could not be kept"):
            await self._in_ledger(lambda ledger: ledger.remember(KEPT, answer))

    async def _recall(self, node: NodeSize) -> dict[str, Any]:
        """Take the Hub's answer from before this node manager started."""
        last = await self._in_ledger(lambda ledger: ledger.recollect(KEPT))
        # Another Hub's groups are nobody's here.
        if last is None or last["hub"] != self._api.url:
            self._log.warning(
                "What JupyterHub said of its groups before is not known: their members have what "
                "the configuration says, or the default quota, until it answers."
            )
            return {}
        self._answered = last["at"]
        # As they are written: the node may have other GPUs by now.
        quotas = last["quotas"].items()
        rows = [{"name": one, "properties": {PROPERTY: quota}} for one, quota in quotas]
        quotas, wrong, _members = told_by(rows, node, {})
        for why in wrong.values():
            self._log.error("%s It is ignored.", why)
        age = max(0.0, self._wall() - self._answered)
        self._log.warning(
            "The quotas of %d JupyterHub groups are those of its last answer, %d minutes ago.",
            len(quotas),
            age // 60,
        )
        return quotas

    async def _groups(self) -> list[Any]:
        """All groups; the Hub gives them in pages. Raises :class:`HubUnreachable`."""
        groups: list[Any] = []
        while len(groups) < MOST_GROUPS:
            answer = await self._api.get("groups", token=self._own_token, offset=len(groups))
            if answer.status != 200 or not isinstance(answer.body, list):
                raise HubUnreachable(
                    f"it answered with HTTP {answer.status}: does this service have the scopes "
                    "list:groups and read:groups?"
                )
            if not answer.body:
                break
            groups += answer.body
        return groups
