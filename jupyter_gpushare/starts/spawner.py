"""Starts a person's server on the host of the pool that the pool ranks first.

For hosts that the Hub's machine reaches by a prefix of the command, as ``ssh b``. The server's
environment goes there over a pipe, and never onto a command line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Dict, List, Unicode

from ..protocol.poolcalls import POOL_SOCKET
from .placing import NoHost, choose_host
from .reach import HostAway, HostGone, NotStarted, Reached, Started, ask
from .wishes import Choice, PoolAway

_PERSON: Final = "{username}"
_HOST: Final = "{host}"
_PLACE: Final = "{place}"
#: Stands for every host of the pool that is not named.
_ANY: Final = "*"
#: Nothing in such a name is an option of a program, or means anything to a shell.
_PLAIN: Final = re.compile(r"\w[\w.@+-]*")


class PoolSpawner(LocalProcessSpawner):
    """A server on the host that has most of what its person wishes for."""

    hosts = Dict(
        key_trait=Unicode(),
        value_trait=List(Unicode()),
        config=True,
        help="""
        Each host of the pool, by its name there, with what is put before a command so that it
        runs there as the person. `{username}` is the person, whose name may have letters, digits
        and `_ . @ + -`, `{host}` the host, and `{place}` the host's own name, where two parts of
        it are hosts of the pool. An empty list is the Hub's own host. `*` stands for
        all hosts that are not named. A prefix that ends with the exit status 69 says that the host
        is gone, with all that ran there.

            c.PoolSpawner.hosts = {
                "a": ["ssh", "-o", "BatchMode=yes", "--", "{username}@a"],
                "b": ["ssh", "-o", "BatchMode=yes", "--", "{username}@b"],
            }
        """,
    )
    addresses = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        config=True,
        help="""
        Where the proxy reaches a host's servers, by the host's name. Default: the name itself.
        """,
    )
    pool_socket = Unicode(
        POOL_SOCKET, config=True, help="The socket of the pool's process on the Hub's host."
    )
    python = Unicode(
        sys.executable,
        config=True,
        help="The Python on the hosts that has jupyter_gpushare. Default: the Hub's.",
    )
    log_file = Unicode(
        "~/.local/state/jupyter-gpushare/server{dash}{servername}.log",
        config=True,
        help="""
        Where a server's output goes, on its host. `{servername}` is empty for the one without a
        name, and `{dash}` with it.
        """,
    )

    #: Where the server runs, by the pool's name and its own, and which process it is.
    host: str = ""
    place: str = ""
    started: Started | None = None
    #: Why it is there: said to the person while the server starts.
    _said: tuple[str, ...] = ()

    def prefix(self, host: str, place: str = "") -> list[str]:
        """What makes a command run on the host as the person.

        Raises :class:`NoHost` for a name that a program could take for an option, or a shell for a
        command: people may choose their names.
        """
        name: str = self.user.name
        parts: list[str] = self.hosts[host if host in self.hosts else _ANY]
        if any(_PERSON in part for part in parts) and not _PLAIN.fullmatch(name):
            raise NoHost(
                f"No server starts on another host for the name {name!r}: it may have only "
                "letters, digits and _ . @ + -, and begins with none of the last four. Ask an "
                "administrator for another name."
            )
        for mark, word in ((_PERSON, name), (_HOST, host), (_PLACE, place or host)):
            parts = [part.replace(mark, word) for part in parts]
        return parts

    def _reaches(self, host: str) -> bool:
        return host in self.hosts or bool(host and _ANY in self.hosts)

    # -- what is stored while the Hub is away ---------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The host and the process."""
        state: dict[str, Any] = super().get_state()
        if self.started is not None:
            state["gpushare"] = {"host": self.host, "place": self.place, **asdict(self.started)}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """From before the Hub started again."""
        super().load_state(state)
        if "gpushare" in state:
            told = state["gpushare"]
            # `pid` is what the base class takes for a server that runs.
            self.host, self.started = told["host"], Started.read(told)
            self.place = told.get("place", "")
            self.pid = self.started.pid

    def clear_state(self) -> None:
        """No server runs. The host stays known: it is the first to try while the pool is away."""
        super().clear_state()
        self.started = None

    # -- a server's life ------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Start it on the first of the ranked hosts that can be reached; its address and port."""
        away = []
        for choice in await self._ranked():
            if not self._reaches(choice.host):
                away.append(f"{choice.host} is not in c.PoolSpawner.hosts")
                continue
            try:
                return await self._start_on(choice)
            except HostAway as error:
                self.log.warning("jupyter_gpushare: %s", error)
                away.append(str(error))
            except NotStarted as error:
                raise NoHost(f"The server was not started: {error}") from error
        raise NoHost(
            f"No server was started, because no host can be reached: {'; '.join(away)}. "
            "Try again in a minute, or tell an administrator."
        )

    async def _ranked(self) -> tuple[Choice, ...]:
        try:
            return await choose_host(self, self.pool_socket)
        except PoolAway as away:
            self.log.warning("jupyter_gpushare: %s: the last host is tried first", away)
            known = [self.host] if self._reaches(self.host) else []
            known += [host for host in self.hosts if host not in (self.host, _ANY)]
            reason = ("The pool is away, so nobody knows which host has a free GPU.",)
            places = {self.host: self.place}
            return tuple(Choice(one, reasons=reason, place=places.get(one, "")) for one in known)

    async def _start_on(self, choice: Choice) -> tuple[str, int]:
        host = choice.host
        address = self.addresses.get(host, choice.at)
        prefix = self.prefix(host, choice.place)
        reached = await Reached.open(host, prefix, self.python)
        try:
            self.ip = address
            self.port = (await reached.call("port", address=address))["port"]
            # What the environment says may depend on it.
            self.host, self.place = host, choice.place
            environ = self.get_env()
            told = await reached.call(
                "start",
                command=[*self.cmd, *self.get_args()],
                environ=environ,
                cwd=environ.get("HOME"),
                output=self.log_file.format(
                    dash="-" if self.name else "", servername=quote(self.name, safe="")
                ),
            )
        finally:
            await reached.close()
        self.started = Started.read(told)
        self.pid = self.started.pid
        self._said = (f"The server starts on host {choice}",)
        self.log.info("jupyter_gpushare: server of %s: %s", self.user.name, choice)
        return address, self.port

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Which host it is, and why."""
        for said in self._said:
            yield {"progress": 50, "message": said}

    async def poll(self) -> int | None:
        """``None`` while it runs, and while its host cannot be asked: then nothing is known."""
        if self.started is None:
            return 0
        try:
            alive = await self._signal(0)
        except HostAway as away:
            self.log.warning("jupyter_gpushare: server of %s: %s", self.user.name, away)
            return None
        if alive:
            return None
        self.clear_state()
        return 0

    async def stop(self, now: bool = False) -> None:
        """End it, gently at first. On a host that cannot be reached it is forgotten.

        The Hub takes its token back, so that it can do nothing at the Hub any more.
        """
        if self.started is None:
            return
        try:
            # Looked first: the base class's `stop` expects of no signal that it cannot arrive.
            await self._signal(0)
        except HostAway as away:
            self.log.warning(
                "jupyter_gpushare: server of %s is forgotten, and may run on: %s",
                self.user.name,
                away,
            )
            self.clear_state()
            return
        await super().stop(now)

    async def _signal(self, sig: int) -> bool:
        """Signal 0 only looks. Whether it is alive. Raises :class:`HostAway`."""
        if self.started is None:
            return False
        if not self._reaches(self.host):
            raise HostAway(f"host {self.host} is no longer in c.PoolSpawner.hosts")
        told = {"number": int(sig), **asdict(self.started)}
        try:
            prefix = self.prefix(self.host, self.place)
        except NoHost as error:
            raise HostAway(str(error)) from error
        try:
            answer = await ask(self.host, prefix, "signal", python=self.python, **told)
        except HostGone as gone:
            self.log.info("jupyter_gpushare: server of %s: %s", self.user.name, gone)
            return False
        return bool(answer["alive"])
