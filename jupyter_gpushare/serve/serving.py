"""A server, its keeper and its proxy together, from the first request to the last.

What blocks is done on threads: waiting for GPUs, starting the server and waking it. The proxy is on
the event loop, and so is what looks whether the server has ended or the node manager must be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..client.errors import GpuShareError
from ..client.memory.bystanders import Bystanders
from ..client.memory.ladder import CONTEXT, Framework, Ladder
from ..client.memory.oneatatime import one_at_a_time
from ..client.session.session import Link
from ..client.words.recalls import MEMORY, read_recall
from ..console.verb import COMMAND
from ..keeper.holding import Holding
from ..keeper.keeper import Keeper, Rest
from ..keeper.record import Noted, Record
from ..keeper.tree import KeptTree
from ..protocol import hostmemory
from ..protocol.checkpoint import State
from ..protocol.messages import NAME, Notification
from ..protocol.privateplace import private_file
from ..protocol.said import plain
from . import adapters
from .adapters.base import Adapter, models
from .gate import Bounds, Gate
from .proxy import Proxy
from .sleeping import OwnSleep
from .token import Token
from .upstream import (
    NONSENSE,
    PORT,
    SOCKET,
    Control,
    ControlFailed,
    address_of,
    filled,
    free_port,
    key_in,
    wait_until_ready,
)

#: Seconds between two looks at the server and at the link to the node manager.
_LOOK: Final = 0.2
#: Seconds after which it is told again how the server stands.
_TELLS: Final = 30.0
#: The ways to free its memory, as its owner names them.
SLEEP, DRIVER, RESTART = "sleep", "driver", "restart"
RUNGS: Final = (SLEEP, DRIVER, RESTART)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What its owner asked for."""

    command: Sequence[str]
    #: What is asked of the node manager.
    request: Mapping[str, Any]
    host: str = "127.0.0.1"
    port: int = 8000
    idle: float = 30.0
    bounds: Bounds = field(default_factory=Bounds)
    rungs: Sequence[str] = RUNGS
    adapter: str | None = None
    ready: str | None = None
    ready_within: float = 600.0
    share: Sequence[str] = ()
    token: bool = True


class Stopped(GpuShareError):
    """Its owner has ended it."""


class Serving:
    """One server. `run` is all of its life."""

    def __init__(
        self, wanted: Wanted, environ: Mapping[str, str], folder: Path, say: Callable[[str], None]
    ) -> None:
        """``folder``: where the token is. Raises :class:`GpuShareError`."""
        self._wanted, self._environ, self._say = wanted, environ, say
        self._adapter = adapters.named(wanted.adapter or adapters.by_command(wanted.command))
        self._adapter.ready = wanted.ready or self._adapter.ready
        lacks = self._adapter.lacks(wanted.command) if SLEEP in wanted.rungs else ""
        if lacks and wanted.adapter is not None:
            raise GpuShareError(lacks)
        self._token = Token.at(folder / f"{wanted.port}.token") if wanted.token else None
        self._record = Record(environ, f"serve-{wanted.port}", f"the server at port {wanted.port}")
        self._noted = self._record.read()
        self._control = self._place()
        if lacks:
            say(f"{lacks} It is put to sleep by other means.")
        self._own: OwnSleep | None = None
        self._can_sleep = SLEEP in wanted.rungs and not lacks
        self._used, self._model, self._sleeps, self._was_awake = 0, "", 0, True
        self._stops, self._is_up, self._ended = False, False, asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._holding = Holding(
            environ, on_lost=self._lost, on_notice=self._noticed, heed=self._heed
        )
        self._tree = KeptTree(
            self._holding,
            filled(wanted.command, self._control),
            self._server_environ,
            restarts=RESTART in wanted.rungs,
            allowed=DRIVER in wanted.rungs,
            ready=self._until_ready,
            parks=lambda: self._note(checkpointed=True),
            stdin=subprocess.DEVNULL,
            new_session=True,
            listens=self._control.socket,
        )
        self._ladder = Ladder(
            self._frameworks if self._can_sleep else None,
            self._tree,
            say,
            self._tree.objection,
            bystanders=Bystanders,  # its code may run: it waits in its next CUDA call
            room=lambda: hostmemory.room(hostmemory.look()),
            alone=lambda: one_at_a_time(environ),
        )
        self.keeper = Keeper(
            self._holding, wanted.request, self._ladder, self._tree, on_rest=self._rests, say=say
        )
        self.proxy = Proxy(
            self.keeper,
            self._control,
            self._adapter,
            Gate(wanted.bounds),
            self._token,
            idle=wanted.idle,
            tell=self.tell,
            say=say,
        )

    # -- where it is -------------------------------------------------------------------

    def _place(self) -> Control:
        key = key_in(self._wanted.command)
        if self._noted is not None:
            return Control(self._noted.more["port"], self._noted.more["socket"], key)
        socket = ""
        if any(SOCKET in word for word in self._wanted.command):
            socket = private_file(self._environ, f"server-{self._wanted.port}.sock")
        return Control(free_port(), socket, key)

    def _server_environ(self) -> Mapping[str, str]:
        port = self._control.port
        holding = self._holding
        leased = self._environ if holding.grant is None else holding.environ_of_program()
        return {**leased, "PORT": str(port), **self._adapter.environ(port)}

    @property
    def address(self) -> str:
        """Where people find it."""
        return address_of(self._wanted.host, self._wanted.port)

    # -- its life ----------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until the server ends, or a signal says so; the exit code.

        Raises :class:`GpuShareError`, ``OSError``.
        """
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._stop)
        try:
            runner = await self.proxy.start(self._wanted.host, self._wanted.port)
            looking = self._loop.create_task(self._look())
            try:
                await self.proxy.starts(self._start)
                self._say(self._words())
                await self._ended.wait()
            except Stopped:
                pass
            finally:
                looking.cancel()
                self._stop()
                await self.proxy.stop(runner)
        finally:
            code = await asyncio.to_thread(self._close)
        return code

    def _stop(self) -> None:
        self._stops = True
        self._ended.set()

    def _close(self) -> int:
        code = 0
        if self._tree.has_ended:
            told = self._tree.exit_code()
            code = 1 if told is None else told
            self._say(f"The server has ended by itself, with exit code {code}.")
        self._tree.stop()
        self._record.close()
        self._holding.close()
        return code

    def _heed(self) -> None:
        if self._stops:
            raise Stopped("It was ended before its server was ready.")

    def _start(self) -> None:
        """Have GPUs and start the server, or go on with one that runs; on a thread."""
        if self._noted is None or not self._succeeds(self._noted):
            self._holding.ask(self._wanted.request, None)
            self._heed()
            self._tree.start()
        elif self.keeper.rest is Rest.AWAKE:
            self._until_ready()  # that keeper may have been killed before it was
        if self.keeper.rest is Rest.AWAKE:  # else it may not answer
            if self._wanted.adapter is None and self._adapter.name == "generic":
                self._use(adapters.by_answers(self._control))
            with contextlib.suppress(ControlFailed, *NONSENSE):
                self._model = plain(next(iter(models(self._control)), ""), NAME).strip()
        self._can_sleep = self._can_sleep and self._adapter.sleeps
        self._note()
        self._is_up = True

    def _succeeds(self, noted: Noted) -> bool:
        """Whether it goes on with the server of a keeper that was killed."""
        try:
            holds = self._holding.succeed(noted.grant, noted.secret, noted.root.pid)
        except GpuShareError as error:
            self._say(f"{error} The server that was left is started anew.")
            self._tree.succeed(noted)
            self._tree.stop()
            return False
        state = self._tree.succeed(noted)
        self._use(adapters.named(noted.more["adapter"]))
        self._model, self._adapter.slept = noted.more["model"], noted.more["slept"]
        sleeping = self._frameworks() if noted.more["sleeps"] else []
        if self._own is not None and sleeping:
            self._own.is_parked, self._own.answer = True, noted.more["answer"]
        self.keeper.succeeds(
            holds=holds,
            # The driver may say it to ancestors only, of which the last was killed.
            checkpointed=noted.more["checkpointed"]
            if state is None
            else state is not State.RUNNING,
            moved=[framework.parker for framework in sleeping if framework.parker is not None],
        )
        self._say("It goes on with the server that another one has left.")
        return True

    def _use(self, adapter: Adapter) -> None:
        adapter.ready = self._adapter.ready
        self._adapter = self.proxy.adapter = adapter

    def _until_ready(self) -> None:
        """The server was started: wait until it is well. Raises :class:`GpuShareError`."""
        self._note()  # from now on a successor finds it
        named = any(PORT in word or SOCKET in word for word in self._wanted.command)
        by_environ = bool(self._adapter.environ(self._control.port))
        hint = "" if named or by_environ else f"It may not read PORT: write {PORT} in its command. "
        try:
            wait_until_ready(
                self._control,
                self._adapter.ready,
                self._wanted.ready_within,
                lambda: self._stops or self._tree.has_ended,
                hint,
            )
        except GpuShareError:
            self._heed()
            raise

    async def _look(self) -> None:
        """See all the time whether the server has ended, and the node manager came back."""
        link, told = Link.UP, self._loop.time()
        while True:
            await asyncio.sleep(_LOOK)
            started = self._tree.started
            rests = self.keeper.rest in (Rest.AWAKE, Rest.ASLEEP)  # else it is the keeper's affair
            if self._tree.has_ended and rests and self._is_up and self._tree.started is started:
                self.keeper.ended()
            link, before = self._holding.session.link, link
            came_back = link is Link.UP and before is not Link.UP
            if came_back or self._loop.time() > told + _TELLS:
                told = self._loop.time()
                self.tell()

    # -- its memory, on the keeper's and the session's threads -------------------------

    def _frameworks(self) -> list[Framework]:
        """What can put it to sleep by itself, if anything can."""
        if self._own is None and self._can_sleep and self._adapter.sleeps:
            self._own = OwnSleep(
                self._adapter,
                self._control,
                lambda: self._used,
                lambda: setattr(self._tree, "is_damaged", True),
                self._say,
            )
        return [] if self._own is None else [Framework(self._adapter.name, self._own)]

    def _noticed(self, message: Notification) -> None:
        recall = read_recall(message)
        if recall is None or recall.lease != self._holding.lease or recall.give not in MEMORY:
            return
        self._used = sum(CONTEXT if need.used is None else need.used for need in recall.needs)
        self.keeper.asked(recall)

    def _lost(self, lease: str, message: str, _released: bool) -> None:
        if lease == self._holding.lease:
            self.keeper.lost(message)

    def _rests(self, rest: Rest) -> None:
        if rest is Rest.ASLEEP and self._was_awake:
            self._sleeps += 1
        self._was_awake = rest is Rest.AWAKE or (self._was_awake and rest is Rest.GOING)
        if rest in (Rest.AWAKE, Rest.ASLEEP):
            self._note()
        self._loop.call_soon_threadsafe(self._rests_now, rest)

    def _rests_now(self, rest: Rest) -> None:
        if rest is Rest.ENDED:
            self.proxy.end("The server has ended.")
            self._ended.set()
        self.tell()

    def _note(self, *, checkpointed: bool | None = None) -> None:
        """What a successor needs to know; ``checkpointed``: the driver is about to do that."""
        if self._tree.started is None or self._holding.lease is None:
            return
        own = self._own
        self._record.write(
            self._tree.noted(
                port=self._control.port,
                socket=self._control.socket,
                adapter=self._adapter.name,
                model=self._model,
                sleeps=own is not None and own.is_parked,
                checkpointed=self._ladder.checkpointed if checkpointed is None else checkpointed,
                answer=None if own is None else own.answer,
                slept=list(self._adapter.slept),
            )
        )

    # -- what is said ------------------------------------------------------------------

    def tell(self) -> None:
        """Tell the node manager how the server stands."""
        self.keeper.tell(
            address=self.address,
            requests=self.proxy.under_way,
            held=len(self.proxy.gate),
            sleeps=self._sleeps,
            wake_seconds=self.proxy.gate.took,
            share=list(self._wanted.share),
            token=None if self._token is None else self._token.text,
            model=self._model or None,
        )

    def _words(self) -> str:
        name = self._model or self._wanted.request["task"]["name"]
        own = f"by itself ({self._adapter.name}), " if self._can_sleep else ""
        return (
            f"{name} is at {self.address}: see `{COMMAND} servers`. "
            f"It sleeps {own}after {self._wanted.idle:g} s without a request if somebody waits "
            "for its GPU."
        )
