"""A server, its keeper and its proxy together, from the first request to the last.

What blocks is done on threads: waiting for GPUs, starting the server and waking it. The proxy is on
the event loop, and so is what looks whether the server has ended or the node manager must be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ..client.errors import GpuShareError
from ..client.memory.ladder import Framework
from ..client.session.session import Link
from ..console.verb import COMMAND
from ..keeper.holding import Holding, say
from ..keeper.keeper import Rest
from ..keeper.kept import Kept
from ..keeper.record import Noted, Record, noted, private_place
from ..protocol.messages import NAME, Method
from ..protocol.said import plain
from . import adapters
from .adapters.base import Adapter
from .gate import Bounds, Gate
from .proxy import Proxy
from .sleeping import OwnSleep, models
from .token import token_at
from .upstream import (
    NONSENSE,
    PORT,
    SOCKET,
    Control,
    ControlFailed,
    address_of,
    free_port,
    key_in,
    wait_until_ready,
)

#: Seconds between two looks at the server, and whether there is news of it.
_LOOK: Final = 0.3
#: Seconds after which it is told again how the server stands.
_TELLS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What its owner asked for."""

    command: Sequence[str]
    #: What is asked of the node manager.
    request: Mapping[str, Any]
    #: The ways to free its memory: sleep, driver, restart.
    rungs: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 8000
    idle: float = 30.0
    bounds: Bounds = field(default_factory=Bounds)
    adapter: str | None = None
    ready: str | None = None
    ready_within: float = 600.0
    share: Sequence[str] = ()
    token: bool = True


class Stopped(GpuShareError):
    """Its owner has ended it."""


class Serving(Kept):
    """One server. `run` is all of its life."""

    def __init__(self, wanted: Wanted, environ: Mapping[str, str], folder: Path) -> None:
        """``folder``: where the token is. Raises :class:`GpuShareError`."""
        self._wanted = wanted
        kept = f"serve-{wanted.port}"
        record = Record(environ, kept, f"the server at port {wanted.port}")
        self._noted = noted(environ, kept)
        name = self._noted.more["adapter"] if self._noted else wanted.adapter
        adapter = adapters.named(name) if name else adapters.by_command(wanted.command)
        can_sleep = "sleep" in wanted.rungs
        lacks = adapter.lacks(wanted.command) if can_sleep else ""
        # A mistake only where its owner named the adapter. One that was guessed is left out.
        if lacks and wanted.adapter is not None:
            raise GpuShareError(lacks)
        if lacks:
            say(f"{lacks} It is put to sleep by other means.")
        self._can_sleep = can_sleep and not lacks
        self._token = token_at(folder / f"{wanted.port}.token") if wanted.token else None
        self._control = self._place(environ)
        port, socket = str(self._control.port), self._control.socket
        self._own: OwnSleep | None = None
        self._model, self._sleeps, self._was_awake = "", 0, True
        self._is_up, self._ended = False, asyncio.Event()
        self._address = address_of(wanted.host, wanted.port)
        self._loop = asyncio.get_running_loop()
        super().__init__(
            Holding(environ, on_lost=self.lost, on_notice=self.noticed, heed=self._heed),
            wanted.request,
            [word.replace(PORT, port).replace(SOCKET, socket) for word in wanted.command],
            record=record,
            frameworks=self._frameworks if self._can_sleep else None,
            restarts="restart" in wanted.rungs,
            allowed="driver" in wanted.rungs,
            stdin=subprocess.DEVNULL,
            new_session=True,
            listens=socket,
        )
        gate = Gate(wanted.bounds)
        self.proxy = Proxy(
            self.keeper, self._control, adapter, gate, self._token, idle=wanted.idle, say=say
        )
        self._use(replace(adapter, ready=wanted.ready or adapter.ready))

    # -- where it is -------------------------------------------------------------------

    def _place(self, environ: Mapping[str, str]) -> Control:
        key = key_in(self._wanted.command)
        if self._noted is not None:
            return Control(self._noted.more["port"], self._noted.more["socket"], key)
        socket = ""
        if any(SOCKET in word for word in self._wanted.command):
            socket = private_place(environ, f"server-{self._wanted.port}.sock")
        return Control(free_port(), socket, key)

    def environ(self) -> Mapping[str, str]:
        port = self._control.port
        return {**super().environ(), "PORT": str(port), **self.proxy.adapter.environ(port)}

    # -- its life ----------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until the server ends, or a signal says so; the exit code.

        Raises :class:`GpuShareError`, ``OSError``.
        """
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._ended.set)
        looking = self._loop.create_task(self._look())
        try:
            await self.proxy.start(self._wanted.host, self._wanted.port)
            await self.proxy.starts(self._start)
            say(self._words())
            await self._ended.wait()
        except Stopped:
            pass
        finally:
            looking.cancel()
            self._ended.set()
            await self.proxy.stop()
            code = await asyncio.to_thread(self._close)
        return code

    def _close(self) -> int:
        if (code := self.tree.exit_code()) is not None:
            say(f"The server has ended by itself, with exit code {code}.")
        self.tree.stop()
        self.close()
        return code or 0

    def _heed(self) -> None:
        if self._ended.is_set():
            raise Stopped("It was ended before its server was ready.")

    def _start(self) -> None:
        """Have GPUs and start the server, or go on with one that runs; on a thread."""
        left = self._noted
        if left is None or not self.succeed(left, self._moved(left)):
            self.holding.ask(self.request, None)
            self._heed()
            self.tree.start()
        elif self.keeper.rest is Rest.AWAKE:
            self.until_ready()  # that keeper may have been killed before it was
        if self.keeper.rest is Rest.AWAKE:  # else it may not answer
            if self._wanted.adapter is None and self.proxy.adapter.name == "generic":
                found = adapters.by_answers(self._control)
                self._use(replace(found, ready=self.proxy.adapter.ready))
            with contextlib.suppress(ControlFailed, *NONSENSE):
                self._model = plain(next(iter(models(self._control)), ""), NAME).strip()
        self.note()
        self._is_up = True

    def _use(self, adapter: Adapter) -> None:
        self.proxy.adapter = adapter
        if self._can_sleep and adapter.sleeps:
            self._own = OwnSleep(
                adapter,
                self._control,
                lambda: self.used,
                lambda: setattr(self.tree, "is_damaged", True),
                say,
            )

    def until_ready(self) -> None:
        """The server was started: wait until it is well. Raises :class:`GpuShareError`."""
        self.note()  # from now on a successor finds it
        adapter, command = self.proxy.adapter, self._wanted.command
        named = adapter.variables or any(PORT in word or SOCKET in word for word in command)
        hint = "" if named else f"It may not read PORT: write {PORT} in its command. "
        try:
            wait_until_ready(
                self._control,
                adapter.ready,
                self._wanted.ready_within,
                lambda: self._ended.is_set() or self.tree.has_ended,
                hint,
            )
        except GpuShareError:
            self._heed()
            raise

    async def _look(self) -> None:
        """See all the time whether the server has ended, and tell the node manager what is new."""
        link, told, at = Link.UP, dict[str, Any](), 0.0
        while True:
            await asyncio.sleep(_LOOK)
            started = self.tree.started
            rests = self.keeper.rest in (Rest.AWAKE, Rest.ASLEEP)  # else it is the keeper's affair
            # The same one as before the look: the keeper may have started another one meanwhile.
            if self.tree.has_ended and rests and self._is_up and self.tree.started is started:
                self.keeper.ended()
            link, before = self.holding.session.link, link
            news, now = {"lease": self.holding.lease, **self._stands()}, self._loop.time()
            came_back = link is Link.UP and before is not Link.UP
            if news["lease"] and (came_back or news != told or now > at + _TELLS):
                told, at = news, now
                self.holding.session.tell(Method.SERVING, **news)

    # -- its memory, on the keeper's and the session's threads -------------------------

    def _frameworks(self) -> list[Framework]:
        """What can put it to sleep by itself, if anything can."""
        return [] if self._own is None else [Framework(self._own.adapter.name, self._own)]

    def rests(self, rest: Rest) -> None:
        """It has gone to sleep, or is awake."""
        super().rests(rest)
        if rest is Rest.ASLEEP:
            self._sleeps += self._was_awake
        if rest is not Rest.GOING:
            self._was_awake = rest is Rest.AWAKE
        if rest is Rest.ENDED:
            with contextlib.suppress(RuntimeError):  # the loop has ended, too
                self._loop.call_soon_threadsafe(self._ended.set)

    def more(self) -> dict[str, Any]:
        """What a successor needs to know beside."""
        own = self._own
        return {
            "port": self._control.port,
            "socket": self._control.socket,
            "adapter": self.proxy.adapter.name,
            "model": self._model,
            "own": None if own is None else (own.is_parked, own.answer, list(own.slept)),
        }

    def _moved(self, noted: Noted) -> Sequence[OwnSleep]:
        """What has put it to sleep by its own means."""
        own, self._model = self._own, noted.more["model"]
        if own is None or not noted.more["own"]:
            return ()
        own.is_parked, own.answer, own.slept = noted.more["own"]
        return [own] if own.is_parked else ()

    # -- what is said ------------------------------------------------------------------

    def _stands(self) -> dict[str, Any]:
        """What the node manager shows of the server."""
        return {
            "address": self._address,
            "requests": self.keeper.under_way,
            "held": len(self.proxy.gate),
            "sleeps": self._sleeps,
            "wake_seconds": self.proxy.gate.took,
            "share": list(self._wanted.share),
            "token": self._token,
            "model": self._model or None,
        }

    def _words(self) -> str:
        name = self._model or self._wanted.request["task"]["name"]
        own = "" if self._own is None else f"by itself ({self._own.adapter.name}), "
        return (
            f"{name} is at {self._address}: see `{COMMAND} servers`. "
            f"It sleeps {own}after {self._wanted.idle:g} s without a request if somebody waits "
            "for its GPU."
        )
