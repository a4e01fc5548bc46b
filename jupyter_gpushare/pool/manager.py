"""The pool's process: an asyncio shell around the pure rules of :mod:`.decide`.

A pool makes many hosts look like one, and must not become the part whose failure stops all of them.
So it owns nothing. GPUs belong to node managers; the pool lends each host parts of people's quotas,
for a while, and a host decides with them alone. While the pool is away, hosts go on with what they
were lent, until that is too old; then nothing new begins, and nothing that runs is stopped.

Commands are worked on one after the other. Durable events are in the ledger before the state
changes and before anything leaves for a host, so the pool may be killed at any time. What hosts
report is not recorded: they say it again when they are called.

A host may be taken over by somebody, so what comes from one is bounded (:class:`.budget.HostBudget`
in time and records, the rules in names), and a host can say nothing of another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ..daemon.onethread import OneThread
from ..ledger.ledger import Ledger, LedgerError
from ..link.dial import Host as Place
from ..link.errors import NodeProblem
from ..link.nodelink import NodeLink
from ..protocol.background import Background, event_or_time
from ..protocol.messages import Method
from . import ledger
from .budget import HostBudget
from .clock import PoolClock
from .configuration import Pool
from .decide import Step, step
from .evolve import evolve
from .hostlink import HostLink
from .joining import Invitations, JoinEndpoint, Token
from .metrics import PoolMetrics
from .pki import Authority, BadRequest, exists
from .quotas import PoolQuotas
from .state import State
from .words import commands as cmd, events as ev
from .words.hosts import Holding, Host

LEDGER: Final = "ledger.sqlite"
#: Records after which the ledger is made shorter; seconds between two looks at the certificates.
_SHORTEN_AFTER: Final = 10_000
_RENEW_EVERY: Final = 600.0

T = TypeVar("T")


class Places(Mapping[Host, Place]):
    """Where the hosts are, as it stands at each look."""

    def __init__(self, manager: PoolManager) -> None:
        self._manager = manager

    def __getitem__(self, host: Host) -> Place:
        return self._manager.place(host)

    def __iter__(self) -> Iterator[Host]:
        return iter(sorted(self._manager.state.hosts))

    def __len__(self) -> int:
        return len(self._manager.state.hosts)


class PoolManager:
    """``settings`` say where it keeps what it knows."""

    def __init__(self, settings: Pool, *, log: logging.Logger) -> None:
        self.settings = settings
        self.log = log
        self.config = settings.rules()
        self.state = State()
        self.places = Places(self)
        self.metrics = PoolMetrics(lambda: self.state)
        self.links: dict[Host, HostLink] = {}
        self.quotas = PoolQuotas(settings.quotas, self.submit)
        self._addresses: dict[Host, str] = {}
        self._budgets: dict[Host, HostBudget] = {}
        self._turn = asyncio.Lock()
        #: Set, and replaced by another, at the next step.
        self._stepped = asyncio.Event()
        #: A look at the certificates is due.
        self._due = asyncio.Event()
        self._background = Background()
        self._joins: JoinEndpoint | None = None
        self._open: Ledger | None = None
        #: The port where hosts join; 0 where none can.
        self.join_port = 0
        self._disk = OneThread("pool-ledger")
        self._written = 0

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the ledger and call the hosts. Raises :class:`LedgerError`, :class:`OSError`,
        :class:`.pki.NoAuthority`, :class:`.joining.NotJoined` for a file that has no token, and
        ``ValueError`` for a quota that makes no sense.
        """
        folder = Path(self.settings.folder)
        self._open = await self._disk.do(partial(ledger.opened, folder / LEDGER))
        events = await self.in_ledger(ledger.load)
        for event in events:
            self.state = evolve(self.state, event)
        last = max((event.at for event in events), default=0.0)
        self._clock = await self.in_ledger(partial(PoolClock, last=last))
        await self._shorten()
        addresses: Any = await self._disk.do(partial(self._ledger.recollect, "addresses"))
        self._addresses = addresses or {}
        self._authority = await self._disk.do(lambda: self._open_authority(folder))
        self._invitations = Invitations(folder / "tokens.json")
        if self.settings.join_token_file:
            text = await self._disk.do(Path(self.settings.join_token_file).read_text)
            self._invitations.stand(Token.read(text), self.settings.join_token_engine)
        self.quotas.recall(await self._disk.do(partial(self._ledger.recollect, "size")))
        wall = self._clock.wall()
        await self.submit(lambda at: cmd.Start(at, wall))
        await self.quotas.apply()
        await self._listen()
        self._background.start(self._tick())
        self._background.start(self._renew())

    async def close(self) -> None:
        """End; hosts go on."""
        if self._joins is not None:
            await self._joins.close()
        await self._background.cancel()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        if self._open is not None:
            await self._disk.do(self._open.close)
        self._disk.close()

    @property
    def _ledger(self) -> Ledger:
        assert self._open is not None, "start() opens it"
        return self._open

    def _open_authority(self, folder: Path) -> Authority:
        if exists(folder):
            return Authority.open(folder, self._clock.wall())
        given = self.settings.authority_file
        begins = Path(given) if given else None
        return Authority.create(folder, self.settings.title, self._clock.wall(), begins)

    async def _listen(self) -> None:
        if not self.settings.listen:
            return
        address, _, port = self.settings.listen.rpartition(":")
        self._joins = JoinEndpoint(
            self._authority,
            self._invitations,
            is_known=lambda host: host in self.state.hosts,
            joined=self.add,
            wall=self._clock.wall,
            log=self.log,
        )
        self.join_port = await self._joins.start(address, int(port))

    # -- commands ----------------------------------------------------------------------------------

    async def submit(self, make: Callable[[float], cmd.Command]) -> Step:
        """Work on a command, which gets the time of its turn. Raises :class:`LedgerError`."""
        async with self._turn:
            command = make(self._clock.now())
            begun = time.monotonic()
            done = step(self.state, command, self.config)
            host = self.state.hosts.get(getattr(command, "host", ""))
            had_report = host is not None and host.connected
            durable = [event for event in done.events if event.DURABLE]
            if host is not None and isinstance(command, cmd.HostReported | cmd.LendAnswered):
                self._budget(host.name).spend(time.monotonic() - begun, len(durable))
            if durable:
                wall = self._clock.wall()
                await self._disk.do(partial(ledger.append, self._ledger, durable, wall))
                self._written += len(durable)
            self.state = done.state
            if self._written >= _SHORTEN_AFTER:
                await self._shorten()
        # No waiting from here on: effects leave in the order of their commands.
        self._follow_hosts()
        self._stepped.set()
        self._stepped = asyncio.Event()
        for effect in done.effects:
            if (link := self.links.get(effect.host)) is not None:
                link.carry_out(effect)
        if isinstance(command, cmd.HostReported) and not had_report:
            self._due.set()  # it may have been away while its certificate was due
        if isinstance(command, cmd.HostReported) and self.quotas.grows(command.report):
            size = (self.quotas.size.gpus, self.quotas.size.smallest)
            await self._disk.do(partial(self._ledger.remember, "size", size))
            await self.quotas.apply()
        return done

    async def until(self, holds: Callable[[State], bool], seconds: float) -> None:
        """Wait until ``holds`` is true of the state, for at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds(self.state):
                    await self._stepped.wait()

    async def _shorten(self) -> None:
        self._written = 0
        now = (self.state, self._clock.now(), self._clock.wall())
        try:
            await self._disk.do(partial(ledger.shorten, self._ledger, *now))
        except LedgerError as problem:
            self.log.error("The ledger could not be made shorter: %s", problem)

    async def _tick(self) -> None:
        """Time passes: what is lent is renewed, or counts no more; people get hints."""
        while True:
            await asyncio.sleep(self.config.interval)
            try:
                await self.submit(cmd.Tick)
            except LedgerError as problem:
                self.log.error("%s", problem)
            except Exception:
                self.log.exception("A look at the time failed")

    async def _renew(self) -> None:
        """Keep certificates valid: the pool's own, and those of the hosts that can be reached."""
        while True:
            self._due.clear()
            try:
                await self._disk.do(lambda: self._authority.renew(self._clock.wall()))
            except OSError as error:
                self.log.error("The pool's certificate could not be renewed: %s", error)
            for host, link in tuple(self.links.items()):
                try:
                    await self._certify(host, link.link)
                except (NodeProblem, BadRequest) as error:
                    self.log.info("%s has no new certificate yet: %s", host, error)
            await event_or_time(self._due, _RENEW_EVERY)

    async def _certify(self, host: Host, link: NodeLink) -> None:
        """Give a host its next certificate if that is due, or if the authority was rotated since.

        Raises :class:`NodeProblem` and :class:`BadRequest`.
        """
        now = self._clock.wall()
        if link.shown is None or self._authority.is_current(link.shown, now):
            return
        asked = await link.call(Method.POOL_CERTIFY)
        signed = self._authority.sign(str(asked.get("csr")), host, now)
        known = self._authority.authorities
        await link.call(Method.POOL_CERTIFY, certificates=signed, authorities=known)
        link.drop()  # the next connection shows it

    async def rotate(self, by: str) -> None:
        """Have a new authority sign from now on. Raises :class:`.pki.BadRequest`."""
        await self._disk.do(lambda: self._authority.rotate(self._clock.wall()))
        await self.submit(lambda at: cmd.Deed(at, ev.AuthorityRotated(at, by)))
        self._due.set()

    def in_ledger(self, work: Callable[[Ledger], T]) -> Awaitable[T]:
        """Do something with the ledger where it may wait for the disk."""
        return self._disk.do(partial(work, self._ledger))

    # -- hosts -------------------------------------------------------------------------------------

    def place(self, host: Host) -> Place:
        """Where a host is. Raises :class:`KeyError`."""
        name, _, port = self._addresses[host].rpartition(":")
        return Place(host, name, self._authority.call_context, int(port), self._budget(host))

    def _budget(self, host: Host) -> HostBudget:
        return self._budgets.setdefault(host, HostBudget())

    async def add(self, host: Host, address: str, by: str, held: Holding | None = None) -> None:
        """A host joined, or joined anew at another address; ``held``: what holds it."""
        # First: when the event says that the host is there, its link is made, and that needs the
        # address.
        await self._keep_address(host, address)
        if host not in self.state.hosts:
            await self.submit(lambda at: cmd.Deed(at, ev.HostsChanged(at, host, True, by)))
        elif (link := self.links.get(host)) is not None:
            link.link.drop()
            link.link.hurry()
        if held is not None:
            await self.submit(lambda at: cmd.Deed(at, ev.HostHeld(at, host, held)))

    async def forget(self, host: Host, by: str) -> None:
        """An administrator says that the host is gone."""
        # First: as long as the host counts, it must be reachable.
        await self.submit(lambda at: cmd.Deed(at, ev.HostsChanged(at, host, False, by)))
        await self._keep_address(host, None)

    async def _keep_address(self, host: Host, address: str | None) -> None:
        """Note where a host is. One after the other: of two that join at once both are known."""
        async with self._turn:
            addresses = {one: at for one, at in self._addresses.items() if one != host}
            if address is not None:
                addresses[host] = address
            await self._disk.do(partial(self._ledger.remember, "addresses", addresses))
            self._addresses = addresses

    def _follow_hosts(self) -> None:
        """Have a link to each host of the pool, and to no other."""
        for host in self.state.hosts:
            if host not in self.links and host in self._addresses:
                link = self.links[host] = HostLink(
                    host,
                    self.settings.title,
                    partial(self.places.get, host),
                    self.submit,
                    patience=self.settings.answer_timeout,
                    silence=self.settings.silence,
                    log=self.log,
                    budget=self._budget(host),
                )
                link.start()
        for host in [one for one in self.links if one not in self.state.hosts]:
            gone = self.links.pop(host)
            self._budgets.pop(host, None)
            self._background.start(gone.close())

    # -- what administrators ask -------------------------------------------------------------------

    def unix(self, at: float) -> float:
        """A time of the pool's clock as Unix time, for people."""
        return self._clock.wall() + at - self._clock.now()

    def problem(self, host: Host) -> str:
        """Why a host cannot be reached. Empty if it can."""
        link = self.links.get(host)
        return "The pool does not know its address." if link is None else link.problem

    def address(self, host: Host) -> str:
        return self._addresses.get(host, "")

    def token(
        self, by: str, host: Host | None, lasts: float, held: Holding | None
    ) -> tuple[str, float]:
        """A token by which a host joins, and its Unix time of expiry. Raises :class:`NotJoined`."""
        now = self._clock.wall()
        secret, expires = self._invitations.invite(now, by, host, lasts=lasts, held=held)
        token = Token(
            self.settings.address, self.join_port, self._authority.pinned, secret, expires
        )
        return str(token), expires
