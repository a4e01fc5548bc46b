"""Identifies connections by their JupyterHub tokens: containers may share one OS user.

Only the Hub knows whose a token is, so the Hub is asked. But it is a web server that many depend
on, and it is away now and then. Three things follow.

Its answer is believed for a while, and all connections that show a token meanwhile wait for one
answer, so a class that starts at nine asks once for each person. A revoked token works for no
longer than that while: a live connection is looked at again early enough.

Nobody may use us to keep the Hub busy. A question about a token that was never good costs an
allowance, of the OS user in its container and of all newcomers together. Known people's tokens do
not count against that, so a flood of wrong tokens shuts out nobody who was here before.

While the Hub is away, whoever it vouched for lately stays who they were (:mod:`.hubmemory`). *Away*
means that it does not answer, or has an error. A Hub that is there and says no is believed at once.

Groups and rights are read with our own token, since what a user's token may tell is chosen by the
user. Only a keyed hash of a token is kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...daemon.fairness import Purse, Purses
from ...daemon.hubapi import HubApi, HubAway, HubUnreachable
from ...daemon.troubles import Trouble
from ...policy.words.settings import Unit, setting
from ...protocol.sockets import user_name
from ..host.processes import container_of
from .hubmemory import HubMemory
from .identity import Identity, IdentityRefused, Peer, Principal

#: Good tokens that are remembered, and as many bad ones; the oldest are forgotten first.
REMEMBERED: Final = 10_000
#: The allowance for questions about tokens that were never good: at once, and a second. Without it
#: a person with wrong tokens could take the Hub's time. Tokens that were good do not count.
NEW_AT_ONCE: Final = 500
NEW_PER_SECOND: Final = 50.0
#: The same of one OS user in one container; less than the above, so that others can ask too. And
#: of one person whose tokens are asked about again.
ONES_AT_ONCE: Final = 200
ONES_PER_SECOND: Final = 10.0
#: Seconds for which a person's question waits for that; a connection that is looked at again goes
#: on meanwhile.
PATIENCE: Final = 2.0
#: The share of ``believed`` after which a live connection is looked at again.
LOOK_AGAIN: Final = 0.25
LONGEST_TOKEN: Final = 1024
#: The Hub's answers for an unknown token or user, and for a refusal.
NO: Final = (401, 403, 404)
#: The prefix of services' environments; no user's name has it.
SERVICE: Final = "service:"
_OWN_SERVER: Final = re.compile(r"access:servers!server=(?P<user>[^/]+)/(?P<server>.*)")

NO_TOKEN: Final = (
    "This node manager knows people by their JupyterHub token, and none was shown. In a server "
    "that JupyterHub started it is in JUPYTERHUB_API_TOKEN and is sent by itself when "
    "JUPYTER_GPUSHARE_IDENTITY=hub is set; elsewhere put one into JUPYTER_GPUSHARE_TOKEN."
)
TOO_MANY: Final = (
    "Too many tokens were shown to this node manager at once. Try again in a few seconds."
)
NOT_VALID: Final = (
    "JupyterHub does not know this token: it was revoked, has expired, or belongs to another Hub. "
    "Restart your server, or take a new token at JupyterHub's token page."
)
TOO_NARROW: Final = (
    "JupyterHub knows this token, but it is not for GPUs: it lacks the scope "
    "access:services!service=… of the gpushare service. Restart your server, or take a token with "
    "that scope."
)


@dataclass(frozen=True, slots=True)
class HubTrust:
    """How long the Hub's answers count, and which connections are an administrator's.

    Do not set ``host_admins`` where a user's server or container runs as root or as the node
    manager's user: a connection without a token would get more rights than one with a token.
    A token that the Hub did not know is not asked about again for ``refused`` seconds.
    """

    believed: float = setting(
        60.0,
        Unit.SECONDS,
        "Seconds for which a token that the Hub accepted is not checked again; a revoked "
        "token works at most that long.",
        least=1.0,
    )
    refused: float = 5.0
    hub_away: float = setting(
        600.0,
        Unit.SECONDS,
        "Seconds since the Hub last accepted a token for which the token still counts while "
        "the Hub is away (it does not answer, or answers with HTTP 5xx). This also holds "
        "after a restart of the node manager, but then nobody is an administrator.",
    )
    per_server: bool = setting(
        False,
        Unit.FLAG,
        "A quota for each running named server (user/server) instead of one a user; needs the "
        "scope read:servers too.",
    )
    host_admins: bool = setting(
        False,
        Unit.FLAG,
        "Root and the node manager's own user need no token and are administrators. Only "
        "where nobody's server or container runs as one of them.",
    )
    hub_admins: bool = setting(
        True,
        Unit.FLAG,
        "Administrators of the Hub are administrators here.",
    )
    admin_groups: frozenset[str] = setting(
        frozenset(),
        Unit.NAMES,
        "Hub groups whose members are administrators here.",
    )
    admin_services: frozenset[str] = setting(
        frozenset(),
        Unit.NAMES,
        "Services of the Hub that are administrators here, by name.",
    )
    service: str = setting(
        "",
        Unit.TEXT,
        "Only tokens that may access the Hub's service of this name are taken (the scope "
        "access:services!service=NAME): one made for something else gets no GPU. Not set: "
        "any.",
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """The Hub's answer about a token at ``asked``. Without ``principal`` it is unknown there."""

    asked: float
    principal: Principal | None
    # It is somebody's, but not for this.
    narrow: bool = False


class _HubSaysNo(HubUnreachable):
    """The Hub is there, and does not tell us who somebody is."""


class HubIdentity(Identity):
    """Asks the Hub whose a token is. ``own_token`` is the node manager's, as a Hub service.

    ``now`` gives seconds that only go forward; ``memory`` outlives this process.
    """

    def __init__(
        self,
        api: HubApi,
        own_token: str,
        trust: HubTrust,
        *,
        now: Callable[[], float],
        memory: HubMemory | None = None,
        owner_uid: int | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._api = api
        self._own_token = own_token
        self._trust = trust
        self._now = now
        self._memory = memory or HubMemory(trust.hub_away, now=now, key=secrets.token_bytes(32))
        self._host_admins = frozenset({0, os.getuid() if owner_uid is None else owner_uid})
        self._log = log or logging.getLogger(__name__)
        self._scopes_trouble = Trouble(self._log, now, "The Hub tells people's groups again")
        # Two, or a flood of bad tokens would push the good ones out.
        self._good: OrderedDict[str, _Known] = OrderedDict()
        self._bad: OrderedDict[str, _Known] = OrderedDict()
        self._allowance = Purse(NEW_PER_SECOND, NEW_AT_ONCE, now())
        self._allowances = Purses(ONES_PER_SECOND, ONES_AT_ONCE)
        self._asking: dict[str, asyncio.Task[_Known]] = {}

    @property
    def recheck(self) -> float:
        """Seconds after which a live connection has to be identified again.

        An answer of the Hub's counts as much shorter than ``believed``, so that
        the last connection of a revoked token is closed within ``believed``.
        """
        return self._trust.believed * LOOK_AGAIN

    def vouched(self, name: str, groups: Sequence[str], admin: bool) -> Principal:
        if name.startswith(SERVICE):
            raise IdentityRefused(f"{name} is a service's name, and no person's.")
        return self._person_named(name, groups, admin)

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        """Raises :class:`IdentityRefused` without a valid token."""
        if not token:
            if self._trust.host_admins and peer.uid in self._host_admins:
                return Principal(user_name(peer.uid), (), True)
            raise IdentityRefused(NO_TOKEN)
        # It goes into a header of HTTP, where a line break would begin another one.
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            raise IdentityRefused(NOT_VALID)
        digest = self._memory.name_of(token)
        known = self._good.get(digest) or self._bad.get(digest)
        if known is None or not self._is_fresh(known):
            before = known.principal if known is not None else None
            try:
                known = await self._ask_once(peer, digest, token)
            except HubUnreachable as error:
                recalled = self._memory.recall(digest, peer.uid)
                # A Hub that answers and says no is not away: then nobody gets in by what it said
                # before.
                if recalled is None or not isinstance(error, HubAway):
                    raise IdentityRefused(
                        f"JupyterHub cannot be asked whose token this is: {error}. Try again in a "
                        "moment; tasks that hold a GPU keep it."
                    ) from None
                # A person whom the Hub called an administrator to this process stays one.
                return before or recalled
        if known.principal is None:
            raise IdentityRefused(TOO_NARROW if known.narrow else NOT_VALID)
        self._memory.keep(digest, peer.uid, known.asked, known.principal)
        return known.principal

    async def knows(self, environment: str) -> bool | None:
        """Whether the Hub has that user, or the user of that named server."""
        name = environment.partition("/")[0] if self._trust.per_server else environment
        try:
            answer = await self._api.get("users", name, token=self._own_token)
        except HubUnreachable:
            return None
        return {200: True, 404: False}.get(answer.status)

    def close(self) -> None:
        for task in tuple(self._asking.values()):
            task.cancel()
        self._memory.close()
        self._api.close()

    def _is_fresh(self, known: _Known) -> bool:
        believed, refused = self._trust.believed * (1 - LOOK_AGAIN), self._trust.refused
        return self._now() < known.asked + (refused if known.principal is None else believed)

    async def _ask_once(self, peer: Peer, digest: str, token: str) -> _Known:
        """Ask the Hub. Connections that show the same token meanwhile wait for the same answer.

        Raises :class:`HubUnreachable`.
        """
        task = self._asking.get(digest)
        if task is None:
            person = self._person(digest)
            owner = (peer.charged, container_of(peer.pid)) if person is None else person
            pause = self._spend(owner, is_new=person is None)
            task = asyncio.get_running_loop().create_task(self._ask(digest, token, owner, pause))
            self._asking[digest] = task
            task.add_done_callback(lambda done: self._answered(digest, done))
        # Shielded: a connection that closes must not cancel the others' answer.
        return await asyncio.shield(task)

    def _answered(self, digest: str, task: asyncio.Task[_Known]) -> None:
        """Remember what the Hub said, even if all who asked have hung up meanwhile."""
        self._asking.pop(digest, None)
        if task.cancelled() or task.exception() is not None:
            return
        known = task.result()
        goes, stays = self._good, self._bad
        if known.principal is not None:
            goes, stays = stays, goes
        # A token is in one of the two only: its older answer must not be found first.
        goes.pop(digest, None)
        stays[digest] = known
        stays.move_to_end(digest)
        while len(stays) > REMEMBERED:
            stays.popitem(last=False)

    def _person(self, digest: str) -> str | None:
        """The user whose token it was by the Hub's last answer; for a named server, its owner."""
        known = self._good.get(digest)
        if known is not None and known.principal is not None:
            environment: str | None = known.principal.environment
        else:
            environment = self._memory.environment(digest)
        return None if environment is None else environment.partition("/")[0]

    def _spend(self, owner: Hashable, is_new: bool) -> float:
        """Spend one question of the allowances of its owner and of all new tokens.

        Returns the wait.

        Raises :class:`IdentityRefused` where an allowance is used up.
        """
        now = self._now()
        ones = self._allowances.of(owner, now)
        pause = ones.wait(1.0, now)
        # A new token may be anybody's and is not waited for. A person's own question may wait a
        # little.
        if pause > (0.0 if is_new else PATIENCE) or (is_new and self._allowance.left(now) < 1.0):
            raise IdentityRefused(TOO_MANY)
        ones.spend(1.0, now)
        if is_new:
            self._allowance.spend(1.0, now)
        return pause

    async def _ask(self, digest: str, token: str, owner: Hashable, pause: float) -> _Known:
        await asyncio.sleep(pause)
        try:
            known = await self._asked(token, owner)
        except _HubSaysNo:
            await self._memory.erase(digest)
            raise
        if known.principal is None:
            await self._memory.erase(digest)
        return known

    async def _asked(self, token: str, owner: Hashable) -> _Known:
        asked = self._now()
        answer = await self._api.get("user", token=token, owner=owner)
        if answer.status in NO:
            return _Known(asked, None)
        model = answer.body
        if answer.status != 200 or not isinstance(model, Mapping):
            raise HubUnreachable(f"it answered with HTTP {answer.status}")
        name = model.get("name")
        if not isinstance(name, str) or not name:
            raise HubUnreachable("it did not say whose the token is")
        if model.get("kind") == "service":
            admin = name in self._trust.admin_services
            wanted = self._trust.service
            if not admin and wanted and not may_access(wanted, model.get("scopes")):
                return _Known(asked, None, narrow=True)
            return _Known(asked, Principal(f"{SERVICE}{name}", (), admin))
        if model.get("kind") != "user":
            return _Known(asked, None)
        # Else a user could take the environment of a service, and what that has.
        if name.startswith(SERVICE):
            self._log.error("The user %r has a service's name and is not let in", name)
            return _Known(asked, None)
        # Before the look-up: a token that is not for GPUs costs the Hub no second question.
        if self._trust.service and not may_access(self._trust.service, model.get("scopes")):
            return _Known(asked, None, narrow=True)
        groups, is_hub_admin, servers = await self._look_up(name, owner)
        person = self._person_named(name, groups, is_hub_admin)
        if self._trust.per_server:
            environment = environment_of(name, model.get("scopes"), servers)
            # A named server acts for itself only, its owner for all of them.
            person = replace(person, environment=environment, all_servers=environment == name)
        return _Known(asked, person)

    def _person_named(self, name: str, groups: Sequence[str], is_hub_admin: bool) -> Principal:
        """A user of the Hub, with all that is theirs."""
        admin = self._trust.hub_admins and is_hub_admin
        admin = admin or not self._trust.admin_groups.isdisjoint(groups)
        is_whole = self._trust.per_server and "/" not in name  # else it is one server of theirs
        return Principal(name, tuple(sorted(groups)), admin, is_whole)

    async def _look_up(
        self, name: str, owner: Hashable
    ) -> tuple[tuple[str, ...], bool, frozenset[str]]:
        """The user's groups, whether they administer the Hub, and their servers, by our own token.

        Not from the answer to the user's token: what that tells depends on
        scopes that users give their tokens themselves.
        """
        answer = await self._api.get("users", name, token=self._own_token, owner=owner)
        model = answer.body
        if answer.status != 200 or not isinstance(model, Mapping):
            self._scopes_trouble.came(
                f"The Hub did not tell people's groups (HTTP {answer.status}): give this service "
                "the scopes read:users:name, read:users:groups and read:roles:users"
            )
            refused = _HubSaysNo if answer.status in NO else HubUnreachable
            raise refused("it does not let the node manager read users")
        self._scopes_trouble.is_over()
        groups = model.get("groups")
        names = groups if isinstance(groups, list) else []
        servers = model.get("servers")
        return (
            tuple(sorted(group for group in names if isinstance(group, str))),
            model.get("admin") is True,
            frozenset(servers if isinstance(servers, Mapping) else ()),
        )


def may_access(service: str, scopes: Any) -> bool:
    """Whether a token with these expanded ``scopes`` may access the Hub's ``service``."""
    given = scopes if isinstance(scopes, list) else []
    return "access:services" in given or f"access:services!service={service}" in given


def environment_of(name: str, scopes: Any, running: frozenset[str]) -> str:
    """The environment of a token of ``name``, if named servers have environments of their own.

    A token that may access one server and no other belongs to that server's environment. A token
    for several servers, or for all of a user's, belongs to the user's. So does a token for a server
    that is not ``running``: the Hub gives users tokens for servers that do not exist, and each
    would have a quota of its own.
    """
    if not isinstance(scopes, list):
        return name
    servers = {
        match["server"]
        for scope in scopes
        if isinstance(scope, str)
        and (match := _OWN_SERVER.fullmatch(scope)) is not None
        and match["user"] == name
    }
    if len(servers) != 1:
        return name
    (server,) = servers
    return f"{name}/{server}" if server in running and server else name
