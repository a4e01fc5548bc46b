"""``jupyter gpushare pool join``: make this host one of a pool. It runs on the host, as root."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .._version import __version__
from ..cli.ledger import acting_as
from ..console.verb import Refused, UsageError, Verb, number, option
from ..daemon.membership import MISSING, POOL_DIRECTORY, BadMembership, Membership, ask
from ..protocol import secured
from ..protocol.errors import Reason
from ..protocol.tables import clean

#: Where systemd's node manager keeps its ledger; what it has of its pool is beside it.
_SYSTEM = Path("/var/lib/jupyter-gpushare")


def _host_name(text: str) -> str:
    if not secured.is_host_name(text):
        raise ValueError(
            "a host's name has at most 63 letters, digits, dots, dashes and underscores; its ends "
            "are letters or digits"
        )
    return text


class JoinApp(Verb):
    """Make this host one of a pool. At the pool `jupyter gpushare pool token` makes
    the token; it works once, for an hour. Run it as root, or as the node manager's own user, and
    restart the node manager afterwards: leases go on."""

    name = "pool join"
    arguments = "TOKEN"
    examples = """
    sudo jupyter gpushare pool join TOKEN
    sudo jupyter gpushare pool join TOKEN --name b --address 10.0.0.5
    """

    as_name = option(
        "", "This host's name in the pool. Left out: its own.", read=_host_name, name="name"
    )
    address = option(
        "", "Where the pool reaches this host. Left out: the address that it calls the pool from."
    )
    port = option(
        secured.HOST_PORT,
        "The port of c.NodeManagerApp.pool_listen on this host.",
        read=number(1, 65535),
    )
    directory = option(
        "", "Where the certificate goes. Left out: the directory `pool` beside the ledger."
    )

    token_file = option("", "A file with the token, so that no command line shows it.")

    def run(self, arguments: list[str]) -> int:
        try:
            from . import joining
        except ModuleNotFoundError as error:
            raise Refused(MISSING) from error

        folder = self._folder()
        name = self.as_name or _own_name()
        try:
            token = joining.Token.read(self._told(arguments))
            with _as_owner(folder):
                _prepare(folder, Membership.open(folder), name)
            asked = ask()
            said = {"name": name, "port": self.port, "csr": asked.csr, "version": __version__}
            if self.address:
                said["address"] = self.address
            told = asyncio.run(joining.ask(token, said, time.time()))
            with _as_owner(folder):
                Membership.keep(folder, asked, told)
        except joining.PoolAway as error:
            raise Refused(str(error), Reason.UNAVAILABLE.value) from error
        except (joining.NotJoined, BadMembership) as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(
                f"The certificate cannot be written into {folder} ({error.strerror}). Run it as "
                "root, or as the node manager's own user."
            ) from error
        pool, name, address = (clean(told[word]) for word in ("pool", "name", "address"))
        return self.say(
            {
                **{word: told[word] for word in ("pool", "name", "address")},
                **{"port": self.port, "directory": str(folder)},
            },
            f"This host is {name} in the pool {pool} now, which reaches it at "
            f"{address}:{self.port}. Restart the node manager "
            "(`systemctl restart jupyter-gpushare`); leases go on. "
            f"The certificate is in {folder} and is renewed by itself.",
        )

    def _told(self, arguments: list[str]) -> str:
        """The token's text. Raises `UsageError` and `Refused`."""
        if len(arguments) + bool(self.token_file) != 1:
            raise UsageError(
                "say the token that `jupyter gpushare pool token` printed at the pool, or where it "
                "is: --token-file=FILE"
            )
        if not self.token_file:
            return arguments[0]
        try:
            return Path(self.token_file).read_text()
        except (OSError, ValueError) as error:
            raise Refused(f"The token in {self.token_file} cannot be read ({error}).") from error

    def _folder(self) -> Path:
        if self.directory:
            return Path(self.directory).absolute()
        if os.geteuid() == 0 or _SYSTEM.is_dir():
            return _SYSTEM / POOL_DIRECTORY
        from jupyter_core.paths import jupyter_data_dir

        from ..ledger import place
        from ..protocol.address import host_id

        home = Path(jupyter_data_dir())
        return place.choose(home, host_id(os.environ), place.mounts())[0].parent / POOL_DIRECTORY


def _own_name() -> str:
    name = socket.gethostname()
    if not secured.is_host_name(name):
        raise Refused(f"This host calls itself {name!r}: give it a name for the pool with --name.")
    return name


def _as_owner(folder: Path) -> AbstractContextManager[None]:
    """Root writes as the node manager's own user: in that user's directory nothing else is safe.

    Raises `Refused`, `OSError`.
    """
    if not folder.parent.is_dir():
        raise Refused(
            f"There is no directory {folder.parent}. Start the node manager once, which makes it, "
            "or say another with --directory."
        )
    return acting_as(folder.parent.stat())


def _prepare(folder: Path, member: Any, name: str) -> None:
    """Find out what would fail before the token is used up. Raises `Refused` and `OSError`."""
    if member is not None and member.name != name:
        raise Refused(
            f"This host is {member.name} in the pool {member.pool} already. To leave it, stop the "
            f"node manager, remove {folder}, and say `jupyter gpushare pool forget {member.name}` "
            "at the pool."
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    probe = folder / "host.pem.new"
    probe.touch(0o600)
    probe.unlink()
