"""The pool's line to one host: reports come in, effects go out, and silence is noticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from ..ledger.ledger import LedgerError
from ..link.dial import Host as Place
from ..link.errors import NodeProblem, NodeTimedOut, NodeUnavailable
from ..link.nodelink import NodeLink
from ..protocol.background import Background
from ..protocol.calls import LentParams, named_of
from ..protocol.framing import MAX_LINE, MAX_REPORT, encode
from ..protocol.messages import Method, Notice, Notification
from ..protocol.reading import BadParameter
from .budget import HostBudget
from .words import commands as cmd
from .words.effects import Effect, Follow, Hint, Lend, TellService
from .words.hosts import Accepted, Host, HostReport, read_answer, read_report

#: What the pool's control line calls itself in ``hello``.
CLIENT: Final = "jupyter-gpushare-pool"
#: Seconds until a host is asked anew, after its message could not be worked on.
_PAUSE: Final = 1.0
#: Bytes of a line that are left for what is around the budgets or hints.
_AROUND: Final = 1024

Submit = Callable[[Callable[[float], cmd.Command]], Awaitable[object]]


class ControlLink(NodeLink):
    """A link whose documents are the host's reports, not a viewer's status."""

    LONGEST = MAX_REPORT

    def __init__(self, pool: str, **rest: Any) -> None:
        super().__init__(name=CLIENT, why=lambda: None, **rest)
        self._pool = pool

    async def _begin(self, within: float) -> dict[str, Any]:
        return await self._ask(Method.POOL_FOLLOW, within, pool=self._pool)

    def _news(self, message: Notification) -> Any:
        return message.params if message.notice is Notice.REPORT else None


class HostLink:
    """Keeps one host's commands and effects in order.

    Reports may come faster than they are worked on; then only the newest counts. ``patience``:
    seconds for a host to answer; ``silence``: seconds after which it is asked for a report.
    """

    def __init__(
        self,
        host: Host,
        pool: str,
        find: Callable[[], str | Place | None],
        submit: Submit,
        *,
        patience: float,
        silence: float,
        log: logging.Logger,
        budget: HostBudget | None = None,
    ) -> None:
        self.host = host
        #: Whoever works on a command of this host's spends it.
        self.budget = budget or HostBudget()
        #: Why the host cannot be reached, for people. Empty if it can.
        self.problem = NodeLink.UNTRIED
        self._submit = submit
        self._pool = pool
        self._silence = silence
        self._log = log
        self.link = ControlLink(pool, find=find, timeout=patience, log=log)
        self._news = asyncio.Event()
        self._refused = ""
        self._background = Background()

    def start(self) -> None:
        self.link.subscribe(self._news.set)
        self.link.start()
        for work in (self._follow(), self._look()):
            self._background.start(work)

    async def close(self) -> None:
        await self._background.cancel()
        await self.link.close()

    # -- in ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Tell the core of reports and of the connection's ends, one after the other."""
        connected, generation = False, 0
        while True:
            await self._news.wait()
            self._news.clear()
            state = self.link.state
            if connected and (not state.connected or state.generation != generation):
                connected = False
                await self._have(lambda at: cmd.HostLost(at, self.host))
            if state.status is None:
                self.problem = state.message
                continue
            if (report := self._read(state.status)) is not None:
                self.problem = ""
                connected, generation = True, state.generation
                await self._have(partial(cmd.HostReported, host=self.host, report=report))
                await self.budget.may_report()

    async def _have(self, make: Callable[[float], cmd.Command]) -> None:
        """Have a command worked on. If that fails, all is told anew on a new connection."""
        try:
            await self._submit(make)
            return
        except LedgerError as problem:
            self._log.error("%s", problem)
        except Exception:  # noqa: BLE001 - our bug must not end the line to this host; it is logged
            self._log.exception("What %s said could not be worked on", self.host)
        await asyncio.sleep(_PAUSE)
        self.link.drop()

    def _read(self, document: Any) -> HostReport | None:
        """A report that is well-formed; a host that was taken over may send anything."""
        try:
            # Its certificate says who it is, whatever it calls itself.
            return replace(read_report(document), name=self.host)
        except BadParameter as error:
            if str(error) != self._refused:
                self._refused = str(error)
                self._log.error("A report of %s cannot be used: %s", self.host, error)
            self.problem = f"Its report cannot be used: {error}"
            return None

    async def _look(self) -> None:
        """Ask a silent host for a report: a stopped process keeps its connections open."""
        while True:
            seen = self.link.state
            await asyncio.sleep(self._silence)
            # Each report replaces the state, so the same object means silence.
            if not seen.connected or self.link.state is not seen:
                continue
            await self._ask()

    async def _ask(self) -> None:
        try:
            document = await self.link.call(Method.POOL_FOLLOW, pool=self._pool)
        except NodeProblem as problem:
            self._failed("report", problem)
            return
        await self.budget.may_report()
        if (report := self._read(document)) is not None:
            await self._have(partial(cmd.HostReported, host=self.host, report=report))

    # -- out ---------------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """Send it; effects of one host leave in the order in which they came."""
        match effect:
            case Lend():
                self._background.start(self._lend(effect))
            case Follow():
                self._background.start(self._ask())
            case Hint(hints=hints):
                # As many as one line takes.
                told = next(_lines([msgspec.to_builtins(hint) for hint in hints]))
                self._background.start(self._tell(Method.POOL_HINT, hints=told))
            case TellService(reason=None):
                self._background.start(self._tell(Method.NODE_RESUME))
            case TellService(reason=reason):
                self._background.start(self._tell(Method.NODE_DRAIN, reason=reason))

    async def _tell(self, method: Method, **params: Any) -> None:
        try:
            await self.link.call(method, **params)
        except NodeProblem as problem:
            self._failed(method.value, problem)

    async def _lend(self, effect: Lend) -> None:
        as_of = {"boot_id": effect.boot_id, "at": effect.as_of}
        parts = list(_lines([_told(one) for one in effect.budgets]))
        calls = [
            self.link.call(
                Method.POOL_LEND,
                as_of=as_of,
                seconds=effect.seconds,
                # The first part says that all others have nothing; the next ones follow at once.
                complete=effect.complete and place == 0,
                budgets=part,
            )
            for place, part in enumerate(parts)
        ]
        accepted: dict[str, Accepted] = {}
        try:
            for answer in await asyncio.gather(*calls):
                for one in read_answer(answer).environments:
                    accepted[one.environment] = one
        except NodeProblem as problem:
            self._failed(Method.POOL_LEND.value, problem)
            return
        except BadParameter as error:
            self._log.error("The answer of %s cannot be used: %s", self.host, error)
            self.link.drop()
            return
        told = tuple(accepted.values())
        await self._have(lambda at: cmd.LendAnswered(at, self.host, effect.number, told))

    def _failed(self, what: str, problem: NodeProblem) -> None:
        if not self.link.state.connected or isinstance(problem, NodeUnavailable):
            return  # the end of the connection is told anyway, with its reason
        self._log.warning("%s: %s: %s", self.host, what, problem.message)
        # Nobody knows now what the host has. A new connection begins with a report and with all
        # that is lent there.
        if isinstance(problem, NodeTimedOut):
            self.link.drop("The host did not answer in time. It is tried again.")
        else:
            self.link.drop(f"{problem.message} It is tried again.")
            self._log.debug("%s refused %s (%s)", self.host, what, problem.reason)


def _told(budget: LentParams) -> dict[str, Any]:
    """As ``pool.lend`` has it."""
    return {**msgspec.to_builtins(budget), "quota": named_of(budget.quota)}


def _lines(objects: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """In parts that fit into a line each; at least one."""
    part: list[dict[str, Any]] = []
    size = 0
    for one in objects:
        needs = len(encode(one))
        # A host takes no list of more than 1,024 parts (``reading.MOST_PARTS``).
        if part and (size + needs > MAX_LINE - _AROUND or len(part) == 1000):
            yield part
            part, size = [], 0
        part.append(one)
        size += needs
    yield part
