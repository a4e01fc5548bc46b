"""Identifies connections: by the kernel or by a token, never by what a client says."""

from __future__ import annotations

import asyncio
import grp
import hashlib
import hmac
import os
import stat
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from ...daemon.loopback import network_of
from ...daemon.troubles import Trouble
from .osusers import person, user_entry

BELIEVED: Final = 30.0
#: Users whose entries are remembered; one may have many ids.
REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a socket, as the kernel says.

    ``pidfd`` belongs to the connection; ``None`` where the kernel has none. ``owner``: whose
    subordinate user it is, if any person's; of a peer on another host its address.
    """

    pid: int
    uid: int
    gid: int
    pidfd: int | None = None
    owner: str | None = None

    @property
    def charged(self) -> int | str:
        """The owner whose allowance it spends while no environment is known."""
        return self.uid if self.owner is None else self.owner


def elsewhere(address: str) -> Peer:
    """A peer on another host: no user of this one, and no process here."""
    return Peer(0, -1, -1, owner=f"address {network_of(address)}")


@dataclass(frozen=True, slots=True)
class Principal:
    """The environment that a connection acts for; quotas belong to it.

    With ``all_servers`` the user's named servers are environments of their own, ``environment/…``,
    and the connection may act for all of them. With ``pool`` it is the pool's, and nobody's.
    """

    environment: str
    groups: tuple[str, ...] = ()
    admin: bool = False
    all_servers: bool = False
    pool: bool = False


class IdentityRefused(Exception):
    """This peer may not come in; the text says why and what to do."""


class Identity(ABC):
    """Turns a peer, and the token it may have sent, into a principal."""

    #: Whether a token alone says who calls, from wherever.
    by_token = True

    @property
    def recheck(self) -> float | None:
        """Seconds after which a live connection is identified again, or ``None`` for never."""
        return None

    def vouched(self, name: str, groups: Sequence[str], admin: bool) -> Principal:
        """The person whom the pool names. Raises :class:`IdentityRefused` for no person's name."""
        return Principal(name, tuple(sorted(groups)), admin)

    @abstractmethod
    async def identify(self, peer: Peer, token: str | None) -> Principal:
        """Raises :class:`IdentityRefused`."""

    @abstractmethod
    async def knows(self, environment: str) -> bool | None:
        """Whether a user of that name exists, or ``None`` if that cannot be told now."""

    def close(self) -> None:  # noqa: B027 - not all have something to close
        """Nobody will be identified any more; never waits."""


class PeerIdentity(Identity):
    """The OS user of the peer is the environment.

    Administrators are root, the node manager's own user ``owner_uid``, and those named in
    ``admin_users`` or in a group of ``admin_groups``. What the user database says is believed for
    :data:`BELIEVED` seconds, and longer while it does not answer. A subordinate user
    (`osusers.SubordinateIds`) is its owner, and no administrator; an id without an entry and
    without a person as its owner is accepted only with ``nameless``.
    """

    by_token = False

    def __init__(
        self,
        admin_users: frozenset[str] = frozenset(),
        admin_groups: frozenset[str] = frozenset(),
        owner_uid: int | None = None,
        nameless: bool = False,
    ) -> None:
        self._nameless = nameless
        self._admin_users = admin_users
        self._admin_groups = admin_groups
        self._admin_uids = frozenset({0, os.getuid() if owner_uid is None else owner_uid})
        self._known: OrderedDict[tuple[Any, ...], tuple[float, Principal]] = OrderedDict()
        # The database may be on the network: a slow answer delays only whom it is about.
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="gpushare-identity")

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        """Accept every OS user of the host; quotas say what they may have.

        Raises :class:`IdentityRefused` for others, and while the user cannot be looked up.
        """
        loop = asyncio.get_running_loop()
        key = (peer.uid, peer.gid, peer.owner)
        until, principal = self._known.get(key, (0.0, None))
        if principal is None or loop.time() >= until:
            try:
                principal = await loop.run_in_executor(self._threads, self._look_up, peer)
            except OSError as error:
                if principal is None:
                    raise IdentityRefused(
                        f"The host's user database does not tell who user {peer.uid} is "
                        f"({error.strerror}). Try again in a moment; tasks that hold a GPU keep it."
                    ) from None
            self._known[key] = (loop.time() + BELIEVED, principal)
            self._known.move_to_end(key)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return principal

    async def knows(self, environment: str) -> bool | None:
        """Whether the host has a user of that name."""
        loop = asyncio.get_running_loop()
        if environment.startswith("uid-"):  # a user of a container, without a name here
            return self._nameless
        try:
            found = await loop.run_in_executor(self._threads, user_entry, environment)
        except OSError:
            return None
        return found is not None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look_up(self, peer: Peer) -> Principal:
        """Raises :class:`OSError` when the database does not answer."""
        try:
            user, gid = user_entry(peer.uid), peer.gid
        except OSError:
            if peer.uid not in self._admin_uids:
                raise
            user = None
        is_owner = False
        if user is None and peer.owner is not None and peer.uid not in self._admin_uids:
            user = person(peer.owner)
            if user is not None:
                is_owner, gid = True, user.pw_gid
        if user is None:
            if peer.uid in self._admin_uids or self._nameless:
                # A user of a container, say: the number is still a fact of the kernel's.
                return Principal(f"uid-{peer.uid}", (), peer.uid in self._admin_uids)
            raise IdentityRefused(
                f"User {peer.uid} has no entry in this host's user database and is not a person's "
                "subordinate user (/etc/subuid), so no quota applies to it. The administrator "
                "can make an entry, or let such users in: c.NodeManagerApp.nameless_users = True."
            )
        name = user.pw_name
        groups = tuple(sorted(_groups_of(name, gid)))
        admin = (
            peer.uid in self._admin_uids
            or name in self._admin_users
            or not self._admin_groups.isdisjoint(groups)
        )
        # A person's container has the person's quota, but not the person's powers.
        return Principal(name, groups, admin and not is_owner)


def _groups_of(user: str, gid: int) -> set[str]:
    names = set()
    for number in os.getgrouplist(user, gid):
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            names.add(f"gid-{number}")
    return names


class TokenFileUnusable(ValueError):
    """The token file cannot be read or trusted; the text says why, and names the file."""


class TokenFileIdentity(Identity):
    """Tokens in a file that only its owner may read; for demos and tests.

    The file is JSON; docs/how-to/node-manager.md says what is in it. It is read again when it
    changes. While it cannot be used nobody comes in, and ``trouble`` tells why. Raises
    :class:`IdentityRefused` then, and for a missing or unknown token.
    """

    def __init__(self, path: str | os.PathLike[str], trouble: Trouble | None = None) -> None:
        self._path = Path(path)
        self._trouble = trouble
        self._seen: tuple[int, ...] | None = None
        self._known: Mapping[str, Principal] = {}

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        if not token:
            raise IdentityRefused(
                "This node manager asks for a token. Set JUPYTER_GPUSHARE_TOKEN to yours."
            )
        try:
            self.read()
        except TokenFileUnusable as error:
            if self._trouble is not None:
                self._trouble.came(f"Nobody is let in: {error}")
            raise IdentityRefused(f"{error} Ask the administrator.") from error
        if self._trouble is not None:
            self._trouble.is_over()
        digest = _digest(token)
        found: Principal | None = None
        for known, principal in self._known.items():
            # All are compared, so that the time taken reveals nothing.
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise IdentityRefused("This token is not known to the node manager.")
        return found

    async def knows(self, environment: str) -> bool | None:
        """Whether the file had a token of that name when it was last read."""
        return any(one.environment == environment for one in self._known.values())

    def read(self) -> None:
        """Read the file again if it changed. Raises :class:`TokenFileUnusable`."""
        try:
            # A change of mode or owner shows in ctime only.
            mark = _mark(self._path.stat())
            if mark == self._seen:
                return
            # The open file is checked, because the path may be replaced meanwhile.
            with self._path.open("rb") as file:
                there = os.fstat(file.fileno())
                self._check_trust(there)
                known = _read_tokens(file.read())
        except TokenFileUnusable:
            raise
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unusable(str(error)) from error
        self._known, self._seen = known, _mark(there)

    def _unusable(self, why: str) -> TokenFileUnusable:
        return TokenFileUnusable(f"The token file {self._path} cannot be used: {why}.")

    def _check_trust(self, there: os.stat_result) -> None:
        if stat.S_IMODE(there.st_mode) & 0o077:
            raise TokenFileUnusable(
                f"The token file {self._path} can be read by others; run `chmod 600 {self._path}`."
            )
        if there.st_uid not in (0, os.getuid()):
            raise TokenFileUnusable(
                f"The token file {self._path} belongs to user {there.st_uid}, who could write "
                "tokens into it. Make it the node manager's own user's."
            )


def _mark(there: os.stat_result) -> tuple[int, ...]:
    return (there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    environment: Annotated[str, msgspec.Meta(min_length=1)]
    token: str | None = None
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None
    groups: tuple[str, ...] = ()
    admin: bool = False


class _Tokens(msgspec.Struct):
    tokens: tuple[_Entry, ...]


def _read_tokens(text: bytes) -> dict[str, Principal]:
    """Principals by their token's hash.

    Raises :class:`ValueError` and :class:`msgspec.MsgspecError` with what is wrong where.
    """
    known: dict[str, Principal] = {}
    for number, entry in enumerate(msgspec.json.decode(text, type=_Tokens).tokens, start=1):
        digest = entry.sha256 or (_digest(entry.token) if entry.token else None)
        if digest is None:
            raise ValueError(f"entry {number} has neither a token nor a sha256 of one")
        known[digest.lower()] = Principal(entry.environment, entry.groups, entry.admin)
    return known


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
