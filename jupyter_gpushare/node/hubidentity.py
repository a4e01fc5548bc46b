"""Who a connection is, by its JupyterHub token: needed where containers share one OS user.

The Hub is asked whose the token is; what it says is believed for a while, so
that a class that starts at nine does not ask for each kernel's heartbeat. A
token is kept in no form but its hash.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import pwd
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .hubapi import HubApi, HubUnreachable
from .identity import IdentityRefused, Peer, Principal

#: Tokens that are remembered; the longest unused ones are forgotten first.
REMEMBERED: Final = 10_000
LONGEST_TOKEN: Final = 1024
_OWN_SERVER: Final = re.compile(r"access:servers!server=(?P<user>[^/]+)/(?P<server>.*)")

NO_TOKEN: Final = (
    "This node manager knows people by their JupyterHub token, and none was shown. In a server "
    "that JupyterHub started it is in JUPYTERHUB_API_TOKEN and is sent by itself when "
    "JUPYTER_GPUSHARE_IDENTITY=hub is set; elsewhere put one into JUPYTER_GPUSHARE_TOKEN."
)
NOT_VALID: Final = (
    "JupyterHub does not know this token: it was revoked, has expired, or belongs to another Hub. "
    "Restart your server, or take a new token at JupyterHub's token page."
)


@dataclass(frozen=True, slots=True)
class HubTrust:
    """What is believed for how long (seconds), and who is what.

    ``believed``: a token that the Hub knew, so a revoked one works at most so
    long. ``refused``: one that it did not know. ``grace``: one that it knew,
    while the Hub cannot be reached. ``per_server``: named servers are
    environments of their own, ``user/server``.
    """

    believed: float = 60.0
    refused: float = 5.0
    grace: float = 600.0
    per_server: bool = False
    hub_admins: bool = True
    admin_groups: frozenset[str] = frozenset()
    admin_services: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Known:
    """What the Hub said of a token at ``asked``; ``principal`` ``None``: it does not know it."""

    asked: float
    principal: Principal | None


class HubIdentity:
    """Asks the Hub whose a token is. ``own_token`` is the node manager's, as a Hub service.

    Root and the node manager's own user need no token: they are administrators
    of the host. ``now`` gives seconds that only go forward.
    """

    def __init__(
        self,
        api: HubApi,
        own_token: str,
        trust: HubTrust,
        *,
        now: Callable[[], float],
        owner_uid: int | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        self._api = api
        self._own_token = own_token
        self._trust = trust
        self._now = now
        self._host_admins = frozenset({0, os.getuid() if owner_uid is None else owner_uid})
        self._log = log or logging.getLogger(__name__)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Known]] = {}

    @property
    def recheck(self) -> float:
        """Seconds after which a live connection has to be identified again."""
        return self._trust.believed

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        """Raises :class:`IdentityRefused` without a valid token."""
        if not token:
            if peer.uid in self._host_admins:
                return Principal(_os_name(peer.uid), (), True)
            raise IdentityRefused(NO_TOKEN)
        if len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            raise IdentityRefused(NOT_VALID)
        digest = hashlib.sha256(token.encode("ascii")).hexdigest()
        known = self._known.get(digest)
        if known is None or not self._is_fresh(known):
            known = await self._ask_once(digest, token, known)
        if known.principal is None:
            raise IdentityRefused(NOT_VALID)
        return known.principal

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        self._api.close()

    def _is_fresh(self, known: _Known) -> bool:
        lasts = self._trust.refused if known.principal is None else self._trust.believed
        return self._now() < known.asked + lasts

    async def _ask_once(self, digest: str, token: str, before: _Known | None) -> _Known:
        """Ask the Hub; whoever shows the same token meanwhile waits for the same answer."""
        task = self._asking.get(digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(token))
            self._asking[digest] = task
            task.add_done_callback(lambda done: self._asking.pop(digest, None))
        try:
            # Shielded: one who hangs up must not take the answer from the others.
            known = await asyncio.shield(task)
        except HubUnreachable as error:
            grace = self._trust.grace if before and before.principal else 0.0
            if before is not None and self._now() < before.asked + grace:
                return before
            raise IdentityRefused(
                f"JupyterHub cannot be asked whose token this is: {error}. Try again in a moment; "
                "tasks that hold a GPU keep it."
            ) from None
        self._known[digest] = known
        self._known.move_to_end(digest)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known

    async def _ask(self, token: str) -> _Known:
        asked = self._now()
        answer = await self._api.get("user", token=token)
        if answer.status in (401, 403, 404):
            return _Known(asked, None)
        model = answer.body
        if answer.status != 200 or not isinstance(model, Mapping):
            raise HubUnreachable(f"it answered with HTTP {answer.status}")
        name = model.get("name")
        if not isinstance(name, str) or not name:
            raise HubUnreachable("it did not say whose the token is")
        if model.get("kind") == "service":
            admin = name in self._trust.admin_services
            return _Known(asked, Principal(f"service:{name}", (), admin))
        if model.get("kind") != "user":
            return _Known(asked, None)
        groups, is_hub_admin = await self._look_up(name)
        admin = self._trust.hub_admins and is_hub_admin
        admin = admin or not self._trust.admin_groups.isdisjoint(groups)
        environment = environment_of(name, model.get("scopes"), self._trust.per_server)
        return _Known(asked, Principal(environment, groups, admin))

    async def _look_up(self, name: str) -> tuple[tuple[str, ...], bool]:
        """The user's groups and whether they administer the Hub, by our own token.

        Not from the answer to the user's token: what that tells depends on
        scopes that users give their tokens themselves.
        """
        answer = await self._api.get("users", name, token=self._own_token)
        model = answer.body
        if answer.status != 200 or not isinstance(model, Mapping):
            self._log.error(
                "The Hub did not tell the groups of %r (HTTP %d): give this service the scopes "
                "read:users:name, read:users:groups and read:roles:users",
                name,
                answer.status,
            )
            raise HubUnreachable("it does not let the node manager read users")
        groups = model.get("groups")
        names = groups if isinstance(groups, list) else []
        return (
            tuple(sorted(group for group in names if isinstance(group, str))),
            model.get("admin") is True,
        )


def environment_of(name: str, scopes: Any, per_server: bool) -> str:
    """The environment of a token of ``name``: the user, or (``per_server``) a named server.

    A server's own token may access that server and no other; a token for
    several servers, or for all of a user's, is the user's.
    """
    if not per_server or not isinstance(scopes, list):
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
    return f"{name}/{server}" if server else name


def _os_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
