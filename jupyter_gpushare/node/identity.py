"""Who a connection is: from the kernel, or from a token, never from what a client says."""

from __future__ import annotations

import grp
import hashlib
import hmac
import json
import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a socket, as the kernel says.

    ``pidfd`` belongs to the connection; ``None`` where the kernel has none.
    """

    pid: int
    uid: int
    gid: int
    pidfd: int | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a connection acts for: the environment that quotas belong to."""

    environment: str
    groups: tuple[str, ...] = ()
    admin: bool = False


class IdentityRefused(Exception):
    """This peer may not come in; the text says why and what to do."""


class Identity(Protocol):
    """Turns a peer, and the token it may have sent, into a principal."""

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        """Raises :class:`IdentityRefused`."""


class PeerIdentity:
    """The OS user of the peer is the environment.

    Administrators are root, the node manager's own user ``owner_uid``, and
    those named in ``admin_users`` or in a group of ``admin_groups``.
    """

    def __init__(
        self,
        admin_users: frozenset[str] = frozenset(),
        admin_groups: frozenset[str] = frozenset(),
        owner_uid: int | None = None,
    ) -> None:
        self._admin_users = admin_users
        self._admin_groups = admin_groups
        self._admin_uids = frozenset({0, os.getuid() if owner_uid is None else owner_uid})

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        """Never refuses: every OS user is somebody; quotas say what they may have."""
        try:
            name = pwd.getpwuid(peer.uid).pw_name
        except KeyError:
            # A user of a container, say: the number is still a fact of the kernel's.
            return Principal(f"uid-{peer.uid}", (), peer.uid in self._admin_uids)
        groups = tuple(sorted(_groups_of(name, peer.gid)))
        admin = (
            peer.uid in self._admin_uids
            or name in self._admin_users
            or not self._admin_groups.isdisjoint(groups)
        )
        return Principal(name, groups, admin)


def _groups_of(user: str, gid: int) -> set[str]:
    names = set()
    for number in os.getgrouplist(user, gid):
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            names.add(f"gid-{number}")
    return names


class TokenFileIdentity:
    """Tokens in a file that only its owner may read; for demos and tests.

    The file is JSON: ``{"tokens": [{"sha256": HEX or "token": TEXT,
    "environment": NAME, "groups"?: [NAME], "admin"?: BOOL}]}``. It is read
    again when it changes. Raises :class:`IdentityRefused` for a missing or
    unknown token, and when the file cannot be trusted or read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._known: Mapping[str, Principal] = {}

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        if not token:
            raise IdentityRefused(
                "This node manager asks for a token. Set JUPYTER_GPUSHARE_TOKEN to yours."
            )
        self._refresh()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found: Principal | None = None
        for known, principal in self._known.items():
            # All are compared, so that the time taken tells nothing.
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise IdentityRefused("This token is not known to the node manager.")
        return found

    def _refresh(self) -> None:
        try:
            there = self._path.stat()
            mark = (there.st_ino, there.st_size, there.st_mtime_ns)
            if mark == self._seen:
                return
            if stat.S_IMODE(there.st_mode) & 0o077:
                raise IdentityRefused(
                    f"The token file {self._path} can be read by others; run "
                    f"`chmod 600 {self._path}`."
                )
            known = _read_tokens(json.loads(self._path.read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IdentityRefused(
                f"The token file {self._path} cannot be used: {error}. Ask the administrator."
            ) from error
        self._known, self._seen = known, mark


def _read_tokens(data: Any) -> dict[str, Principal]:
    known = {}
    for entry in data["tokens"]:
        environment = entry["environment"]
        if not isinstance(environment, str) or not environment:
            raise ValueError("an entry has no environment")
        digest = entry.get("sha256")
        if digest is None:
            digest = hashlib.sha256(entry["token"].encode()).hexdigest()
        groups = tuple(str(group) for group in entry.get("groups", ()))
        known[str(digest).lower()] = Principal(environment, groups, entry.get("admin") is True)
    return known
