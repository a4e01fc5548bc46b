"""One process's dealings with the node manager: its lease, and who must hear of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ..protocol import names
from ..protocol.address import SYSTEM_SOCKET, Found, find_socket
from ..protocol.errors import Reason
from ..protocol.messages import Method, Notice, Notification
from ..protocol.sizes import format_size
from . import display
from .adapters import registry
from .errors import GpuShareError, LeaseLost, NodeUnavailable
from .grant import Grant, read_grant
from .limits import Limits, read_limits
from .parking.rungs import Given, Need, NotBroughtBack, Rung, read_needs
from .session import Link, NobodyThere, Session
from .settings import Acquire, Ask, Fallback, Settings, read_settings, read_token
from .task import describe_task
from .turns import Turns, before_first_use_of_torch
from .visible import Visible, cuda_started

if TYPE_CHECKING:
    from ..protocol.checkpoint import SeenGpu
    from .parking.ladder import Framework, Ladder

#: Rungs after which something of this process stays on its GPUs.
_LEAVE_SOMETHING: Final = (Rung.TRIM, Rung.TEMPORARY, Rung.STORAGE)
#: Bytes that may stay on a GPU when a person parks it by hand, and nobody said what is needed.
_MAY_STAY: Final = 1024**3
#: Seconds after a training step in which a task is at work though no cell runs.
_A_STEP_IS_WORK: Final = 10.0
_QUOTA_IS_FRESH: Final = 30.0  # seconds for which `Broker.expected` remembers a failure


#: Waits for an answer; gets what to call with each notification, and now and then.
_Waits = Callable[
    [Callable[[Mapping[str, Any]], None], Callable[[], None]],
    dict[str, Any],
]


class Standing(Enum):
    """How this process stands with its GPUs."""

    FREE = "free"
    HELD = "held"
    JOINED = "joined"
    FELL_BACK = "fell_back"
    PARKING = "parking"
    PARKED = "parked"
    LOST = "lost"


class Broker:
    """See the module.

    ``environ`` is changed: ``CUDA_VISIBLE_DEVICES`` becomes the granted UUIDs,
    and the lease's id and secret are left there for child processes to join.
    ``traits`` gives the weakest settings, anew each time.
    """

    def __init__(
        self,
        environ: MutableMapping[str, str],
        traits: Callable[[], Settings] = Settings,
        *,
        make_display: Callable[[], display.Display] = display.waiting_display,
        say: Callable[[str], None] = display.say,
    ) -> None:
        self.standing = Standing.FREE
        self.grant: Grant | None = None
        self.lost: str | None = None
        self._environ = environ
        self._traits = traits
        self._make_display = make_display
        self._say = say
        self._said: set[str] = set()
        self._asked = Ask()
        self._visible = Visible(environ)
        self._limits = Limits(self._set_limits, self._answer_limits)
        self._session: Session | None = None
        self._adapters: dict[str, tuple[registry.Adapter, ModuleType | None]] = {}
        self.turns = Turns(
            lambda: self._session,
            lambda: self.grant if self.standing is Standing.HELD else None,
            say=say,
        )
        self.turns.limited = self._limit_turn
        self._lock = threading.RLock()  # held while waiting in the queue
        self._session_lock = threading.Lock()  # never held for longer than a hello
        self._found: Found | None = find_socket(environ)
        self._busy: bool | None = None
        self._cuda_had: tuple[str, ...] | None = None  # UUIDs that CUDA started with, if known
        self._lost_gpus: tuple[str, ...] | None = None
        self._deserted = False
        self._silent_until = 0.0
        self._parked: str | None = None  # the lease, while its GPUs are given back
        self._given = Given(Rung.RELEASE)
        self._had: tuple[str, ...] = ()  # UUIDs of the GPUs it had
        self._ladder: Ladder | None = None  # made when CUDA must be given up
        self._told_ability: str | None = None  # of which lease
        #: Why the cell that begins must not run; the next one tries again.
        self.barred: str | None = None
        # Held for an instant: a cell that begins and a GPU that is given back exclude each other.
        self._between_cells = threading.Lock()
        # Our parent's marks; without them this process asks for itself.
        self._parent_lease = environ.get(names.LEASE) if environ.get(names.SECRET) else None
        self._parent_secret = environ.get(names.SECRET)

    @property
    def settings(self) -> Settings:
        """The settings in force; a value that cannot be used is complained of once."""
        settings = read_settings(self._environ, self._traits())
        for complaint in settings.complaints:
            self._say_once(complaint)
        return settings

    # -- what the import hook needs --------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether there is a node manager to ask; if not, everything here is inert."""
        if self._found is None:
            self._found = find_socket(self._environ)
        return self._found is not None and not self._deserted

    def before_framework(self, module: str) -> None:
        """Called before a framework's module runs; may wait in the queue.

        Raises :class:`GpuShareError` only with ``fallback = "error"``, and
        :class:`KeyboardInterrupt` when the user leaves the queue.
        """
        if not self.configured or self._visible.hidden_by_user:
            return
        adapter = self._adapter(module)
        if adapter is None:
            return
        if self._late(adapter) and self._parent_lease is None:
            # Whatever reaches CUDA by a way we do not see finds no GPU, not somebody else's.
            self._visible.hide(children_may_ask=True)
            adapter.before(None)
        else:
            adapter.before(self.ensure(f"import {module}"))
        if self.configured:
            self._adapters[module] = (adapter, None)

    def after_framework(self, module: str, loaded: ModuleType) -> None:
        """Called when the framework's module has run."""
        if module not in self._adapters:
            return
        adapter, _ = self._adapters[module]
        self._adapters[module] = (adapter, loaded)
        if self._late(adapter):
            adapter.first_use(loaded, lambda: self.ensure(f"first use of {module}"), self.expected)
        else:
            adapter.after(loaded, self._grant_for(adapter))

    def _late(self, adapter: registry.Adapter) -> bool:
        """Whether the lease is taken later, when CUDA starts."""
        return (
            adapter.catches_first_use
            and self.grant is None
            and self.standing in (Standing.FREE, Standing.LOST)
            and self.settings.acquire is Acquire.FIRST_USE
        )

    def expected(self) -> int:
        """GPUs that a request would get as the quota stands. Answers at once, or asks once."""
        if self.grant is not None:
            return len(self.grant.gpus)
        if self.standing is Standing.FELL_BACK or time.monotonic() < self._silent_until:
            return 0
        try:
            quota = self._connect(patience=0.0).hello.get("quota")
        except GpuShareError:
            self._silent_until = time.monotonic() + _QUOTA_IS_FRESH
            return 0
        allowed = quota.get("gpus") if isinstance(quota, dict) else None
        wanted = self._wanted()
        return wanted if isinstance(allowed, int) and wanted <= allowed else 0

    def ensure(self, why: str) -> Grant | None:
        """The grant this process has, or gets now; ``None``: run without a GPU.

        Raises :class:`GpuShareError` with ``fallback = "error"``.
        """
        with self._lock:
            self._settle()
            kept = self.grant is not None or self.standing in (Standing.FELL_BACK, Standing.JOINED)
            if kept and not self._holds:
                return self.grant
            if self.standing is Standing.PARKED or self._holds:
                try:
                    return self._resume()
                except GpuShareError as error:
                    if self.settings.fallback is Fallback.ERROR or self._holds:
                        raise
                    self._say(f"`{why}` goes on without a GPU (fallback = cpu): {error}")
                    return None
            if self._wanted() == 0:
                self._visible.hide(children_may_ask=False)
                return None
            try:
                return self._join() if self._parent_lease else self.request(Ask())
            except GpuShareError as error:
                return self._fall_back(why, error)
            except Exception as error:  # noqa: BLE001 - a bug of ours: the import goes on, safely
                return self._fall_back(why, _internal(error))

    @property
    def lease(self) -> str | None:
        """The lease of this process, held or parked."""
        return self._parked if self.grant is None else self.grant.lease

    # -- what people and programs call -------------------------------------------------

    def ask(self) -> Ask:
        """What a request of this process asks, from all who may say."""
        return self._asked.over(self.settings.ask)

    def set_ask(self, ask: Ask) -> None:
        """What the next request asks, stronger than any setting."""
        self._asked = ask

    def request(self, ask: Ask, *, wait: bool = True, wait_timeout: float | None = None) -> Grant:
        """Get a lease, waiting visibly. ``wait_timeout`` in seconds; ``None``: as the settings say.

        A process has one lease at a time. One that is held already is kept if
        it is what is asked, else given back first. Raises
        :class:`GpuShareError`, :class:`KeyboardInterrupt`.
        """
        with self._lock:
            self._settle()
            wanted = ask.over(self.ask())
            self._must_be_whole()
            if self.standing is Standing.PARKED:
                self.release()
            if self.grant is not None:
                if _is_what_is_asked(self.grant, wanted):
                    return self.grant
                self._give_way()
            result = self._ask_node(wanted, wait, wait_timeout)
            return self._adopt(result)

    def release(self) -> str | None:
        """Give the lease back; the lease's state then, or ``None`` if there was none.

        A lease that this process has joined stays its parent's. Raises
        :class:`NodeUnavailable`.
        """
        with self._lock:
            self._settle()
            self._must_be_whole()
            if self.standing is Standing.PARKED and self._parked is not None:
                return self._release_parked(self._parked)
            if self.grant is None:
                return None
            lease, session = self.grant.lease, self._session
            joined = self.standing is Standing.JOINED
            self._remember_cuda()
            self._forget()
            if session is None:
                return "joined"
            session.let_go(lease)
            if joined:
                return "joined"
            try:
                result = session.call(Method.RELEASE, lease=lease, again=True)
            except LeaseLost:
                return "ended"  # somebody was faster
            return str(result.get("state")) if isinstance(result, dict) else "ended"

    def call(self, method: Method, **params: Any) -> Any:
        """Any call; its result. Raises :class:`GpuShareError`."""
        return self._connect().call(method, again=True, **params)

    def status(self) -> dict[str, Any]:
        """The status document. Raises :class:`GpuShareError`."""
        result = self.call(Method.STATUS)
        if not isinstance(result, dict):
            raise NodeUnavailable("The node manager's status makes no sense.")
        return result

    def set_activity(self, busy: bool) -> None:
        """Tell what the task does. Never waits, never raises."""
        with self._between_cells:
            self._busy = busy
        if not busy and self.turns.is_gated:
            self.turns.rest()
        grant, session = self.grant, self._session
        if grant is not None and session is not None and self.standing is Standing.HELD:
            session.set_activity(grant.lease, busy)
            new = session.hello.get("parks") is True and self._told_ability != grant.lease
            if not busy and new and cuda_started():
                self._told_ability = grant.lease
                _in_background(lambda: self._tell_ability(session, grant.lease))

    def before_cell(self) -> None:
        """A cell is about to run: what was given back while nothing ran is asked for again.

        Waits visibly; raises nothing. Ctrl-C runs the cell without a GPU, or, where what it
        may need lies in host memory, bars it (`barred` says why).
        """
        self.barred = None
        if self.turns.is_gated:
            self.turns.before_cell()
        if self.standing not in (Standing.PARKED, Standing.PARKING) and not self._holds:
            return
        interrupted = self._until_parked()
        try:
            with self._lock:
                if interrupted:
                    raise KeyboardInterrupt
                if self.standing is Standing.PARKED or self._holds:
                    self._resume()
        except KeyboardInterrupt:
            if self._is_incomplete:
                self._bar("You left the queue.")
            else:
                self._say(
                    "This cell runs without a GPU; the next one asks for it again. "
                    "`%gpushare release` gives it up."
                )
        except GpuShareError as error:
            if self._is_incomplete:
                self._bar(str(error))
            else:
                self._say(f"This cell runs without a GPU: {error} The next one asks again.")

    @property
    def _holds(self) -> bool:
        """Whether what this process had on the GPU lies elsewhere."""
        return self._ladder is not None and self._ladder.holds

    def _get_ladder(self) -> Ladder:
        if self._ladder is None:
            from .parking import safety
            from .parking.driver import DriverCheckpoint
            from .parking.ladder import Ladder

            def objection(gpus: Sequence[str], seen: Sequence[SeenGpu]) -> str | None:
                return safety.blocks(safety.gather(gpus, seen, self._environ))

            self._ladder = Ladder(
                self._on_gpus, DriverCheckpoint(environ=self._environ), self._say, objection
            )
        return self._ladder

    @property
    def _is_incomplete(self) -> bool:
        """Whether a cell would find something on the GPU missing, or use what it may not."""
        return self._holds or self._given.rung is not Rung.RELEASE

    def _until_parked(self) -> bool:
        """Wait for a parking that is under way, which is no moment to stop; was it interrupted?"""
        interrupted = False
        while self.standing is Standing.PARKING:
            try:
                with self._lock:
                    pass
            except KeyboardInterrupt:
                interrupted = True
        return interrupted

    def _bar(self, why: str) -> None:
        self.barred = (
            f"{why} This cell was not run, because what this kernel had on the GPU is in host "
            "memory. Your variables are kept: run it again, or `%gpushare resume`."
        )
        self._say(self.barred)

    def close(self) -> None:
        """The process ends: give back what is ours. The node manager sees it die anyway."""
        session, self._session = self._session, None
        if session is None:
            return
        ours = self._parked if self.grant is None else self.grant.lease
        if ours is not None and self.standing is not Standing.JOINED and session.link is Link.UP:
            session.let_go(ours)  # nobody needs to be told that it ends
            session.tell(Method.RELEASE, lease=ours)
        session.close(0.2)

    def abandon_in_child(self) -> Broker:
        """After a fork: a broker for the child, whose parent's lease is its own, too."""
        if self._session is not None:
            self._session.abandon_in_child()
        child = Broker(self._environ, self._traits, make_display=self._make_display, say=self._say)
        child._asked, child._said = self._asked, self._said
        child._adapters = self._adapters
        child._visible = self._visible
        child.grant = self.grant
        if self.grant is not None:
            child.standing = Standing.JOINED
        elif self.standing is Standing.FELL_BACK:
            child.standing = Standing.FELL_BACK
        return child

    # -- inside ---------------------------------------------------------------------

    def _wanted(self) -> int:
        gpus = self.ask().gpus
        return 1 if gpus is None else gpus

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _adapter(self, module: str) -> registry.Adapter | None:
        try:
            return registry.find(module)
        except Exception as error:  # noqa: BLE001 - another package's adapter may raise anything
            self._say(f"The adapter for {module} cannot be used and is left out: {error!r}")
            return None

    def _connect(self, patience: float | None = None) -> Session:
        with self._session_lock:
            if self._session is not None and self._session.link is not Link.CLOSED:
                return self._session
            self._deserted = False
            if not self.configured or self._found is None:
                raise NodeUnavailable(
                    "No GPU node manager is set up for this process. In Jupyter it comes with "
                    "the server; elsewhere start `jupyter gpushare node` or set "
                    f"{names.SOCKET}."
                )
            timeout, found = self.settings.answer_timeout, self._found
            session = Session(
                found.path,
                lambda: read_token(self._environ, found),
                timeout,
                on_lost=self._lost,
                on_notice=self._noticed,
            )
            session.open(timeout if patience is None else patience)
            self._session = session
            return session

    def _join(self) -> Grant | None:
        """Join our parent's lease; when it has ended, ask for one of our own."""
        lease, secret = self._parent_lease or "", self._parent_secret or ""
        try:
            session = self._connect()
            result = session.call(Method.ATTACH, lease=lease, secret=secret, again=True)
        except NodeUnavailable:
            if not self._visible.names_gpus:
                raise
            # Our parent holds them, whether or not the node manager can be asked just now.
            self.standing = Standing.JOINED
            return None
        except LeaseLost:
            result = None
        self._parent_lease = self._parent_secret = None
        if not isinstance(result, dict) or result.get("state") in ("queued", "parked"):
            return self.request(Ask())
        self.grant = self._visible.show_part(read_grant(result))
        self.standing, self.lost = Standing.JOINED, None
        session.hold(lease, secret)
        self._tell_adapters()
        return self.grant

    def _ask_node(self, ask: Ask, wait: bool, wait_timeout: float | None) -> dict[str, Any]:
        session = self._connect()
        params: dict[str, Any] = {
            "request_id": os.urandom(16).hex(),
            "task": describe_task(self._environ),
            "gpus": ask.gpus,
            "memory": ask.memory,
            "priority_class": ask.priority_class,
            "wait": wait,
        }
        bound = self.settings.wait_timeout if wait_timeout is None else wait_timeout
        return self._await(lambda queued, waiting: session.request(params, queued, waiting, bound))

    def _await(self, ask: _Waits) -> dict[str, Any]:
        """Show the wait while ``ask`` waits."""
        shown = self._make_display()
        last: dict[str, Any] = {}

        def queued(notice: Mapping[str, Any]) -> None:
            last.update(notice)
            shown.update(notice)

        def waiting() -> None:
            if last:
                shown.update(last)

        try:
            result = ask(queued, waiting)
        except BaseException:
            shown.done(None)
            raise
        shown.done("GPUs granted.")
        return result

    # -- giving back and getting again ------------------------------------------------

    def _asked_back(self, lease: str, message: str, needs: Sequence[Need]) -> None:
        """The node manager wants the GPUs of an idle task; on the session's thread."""
        session = self._session
        # Who holds the lock asks, waits or releases: no time to give anything back.
        if session is None or not self._lock.acquire(blocking=False):
            return
        try:
            with self._between_cells:
                is_new = self._parked != lease
                deeper = not is_new and self._given.rung in _LEAVE_SOMETHING
                if is_new or deeper:
                    ours = self.grant is not None and self.grant.lease == lease
                    # Not told that no cell runs: then one does, or nobody would tell of the next.
                    if self._busy is not False or not (deeper or ours):
                        return
                    if is_new and self.standing is not Standing.HELD:
                        return
                    if (ago := self._last_step()) is not None and ago < _A_STEP_IS_WORK:
                        why = f"It trains in the background: a step ended {ago:.0f} s ago."
                        session.tell_surely(Method.KEPT, lease=lease, reason=why)
                        return
                    if deeper or self._uses_cuda(needs):
                        # It may take long, and this thread gives our signs of life.
                        self.standing = Standing.PARKING
                        _in_background(lambda: self._climb(session, lease, message, needs))
                        return
                    self._park(lease, Given(Rung.RELEASE))
            self._tell_parked(session, lease)
        finally:
            self._lock.release()
        if is_new:
            self._say(f"{message} Your variables are kept; the next cell asks for a GPU again.")

    def _tell_parked(self, session: Session, lease: str) -> None:
        given = self._given
        session.tell_surely(
            Method.PARKED,
            lease=lease,
            rung=given.rung.value,
            memory=given.memory,
            movable=given.movable.value,
            seconds=given.seconds,
        )

    def _climb(self, session: Session, lease: str, message: str, needs: Sequence[Need]) -> None:
        """Give GPU memory back in the background; a cell that begins meanwhile waits for it."""
        with self._lock:
            if self.standing is not Standing.PARKING:
                return  # it was lost meanwhile
            before = Standing.PARKED if self._parked == lease else Standing.HELD
            try:
                self._give(session, lease, needs)
            except GpuShareError as error:
                if self.standing is Standing.PARKING:
                    self.standing = before
                session.tell_surely(Method.KEPT, lease=lease, reason=str(error)[:1000])
                return
            except BaseException:
                if self.standing is Standing.PARKING:
                    self.standing = before
                session.tell_surely(Method.KEPT, lease=lease, reason="Parking failed by a bug.")
                raise
        where = f"; {format_size(self._given.memory)} are in host memory" * bool(self._given.memory)
        self._say(f"{message} Your variables are kept{where}; the next cell asks for a GPU again.")

    def _give(self, session: Session, lease: str, needs: Sequence[Need]) -> None:
        """Raises :class:`GpuShareError` when nothing can be given back."""

        def plan(memory: int) -> None:
            session.call(Method.PARKING, again=True, lease=lease, memory=memory)

        given = self._get_ladder().give(needs, plan)
        if self.standing is Standing.LOST:
            return
        if self.grant is not None:
            self._had = tuple(gpu.uuid for gpu in self.grant.gpus)
        self._park(lease, given)
        self._tell_parked(session, lease)

    def park(self) -> Given | None:
        """Give the GPUs back now and keep the variables; ``None``: there is nothing to give.

        Raises :class:`GpuShareError` when this process cannot.
        """
        with self._lock:
            self._settle()
            grant, session = self.grant, self._session
            if grant is None or session is None or self.standing is not Standing.HELD:
                return None
            used = self._measured(grant.lease)
            needs = [Need(gpu.uuid, _MAY_STAY, used.get(gpu.uuid)) for gpu in grant.gpus]
            if not self._uses_cuda(needs):
                self._park(grant.lease, Given(Rung.RELEASE))
                self._tell_parked(session, grant.lease)
                return self._given
            # Only what is idle may move to host memory, and this cell is ours.
            session.call(Method.ACTIVITY, again=True, lease=grant.lease, state="idle")
            self.standing = Standing.PARKING
            try:
                self._give(session, grant.lease, needs)
            finally:
                if self.standing is Standing.PARKING:
                    self.standing = Standing.HELD
            return self._given

    def _measured(self, lease: str) -> dict[str, int]:
        """Bytes that were measured of a lease on its GPUs, where they are known."""
        for one in self.status().get("leases", ()):
            if one.get("id") == lease:
                return {
                    str(gpu["uuid"]): int(gpu["measured"])
                    for gpu in one.get("gpus", ())
                    if gpu.get("measured") is not None
                }
        return {}

    def resume(self) -> Grant | None:
        """Have the GPUs of a parked lease again, and all memory on them; waits in the queue.

        ``None``: nothing was parked. Raises :class:`GpuShareError`.
        """
        with self._lock:
            self._settle()
            if self.standing is Standing.PARKED or self._holds:
                return self._resume()
            return None

    def pin(self, seconds: float | None) -> float | None:
        """Keep the GPUs though nothing runs: for ``seconds``, or the usual time.

        Seconds for which they are kept now (0: no longer than the rule says); ``None``: this
        process holds none. Raises :class:`GpuShareError` beyond the administrator's limit.
        """
        grant = self.grant
        if grant is None:
            return None
        result = self.call(Method.PIN, lease=grant.lease, seconds=seconds)
        kept = result.get("seconds") if isinstance(result, dict) else None
        return float(kept) if isinstance(kept, int | float) else 0.0

    def _uses_cuda(self, needs: Sequence[Need]) -> bool:
        """Whether CUDA may run in this process, as far as anybody can tell."""
        return cuda_started() or any(need.used for need in needs) or bool(self._on_gpus())

    def _last_step(self) -> float | None:
        """Seconds since a training step ended in this process; ``None``: none was seen."""
        from .parking.base import meter_of

        ends = [
            use.last_step_at
            for adapter, _ in tuple(self._adapters.values())
            if (meter := meter_of(adapter)) is not None and (use := meter.use) is not None
        ]
        return None if not ends else time.monotonic() - max(ends)

    def _on_gpus(self) -> Sequence[Framework]:
        """The frameworks that have started CUDA here, or do not say."""
        from .parking.base import parker_of
        from .parking.ladder import Framework

        self._find_frameworks()
        found = []
        for module, (adapter, loaded) in tuple(self._adapters.items()):
            if loaded is None:
                continue
            try:
                started = adapter.cuda_started(loaded)
                if started is not False:
                    found.append(Framework(module, parker_of(adapter, loaded)))
            except Exception:  # noqa: BLE001 - an adapter that cannot tell has not told
                found.append(Framework(module, None))
        return found

    def _tell_ability(self, session: Session, lease: str) -> None:
        had = () if self.grant is None else tuple(gpu.uuid for gpu in self.grant.gpus)
        rung, why = self._get_ladder().ability(had)
        session.tell(Method.ABILITY, lease=lease, rung=rung.value, why=why[:1000])

    def _must_be_whole(self) -> None:
        """Raises :class:`GpuShareError` while what this process had on the GPU lies elsewhere."""
        if self._holds:
            raise GpuShareError(
                "What this kernel had on the GPU is in host memory, and can only go back under "
                "this lease. `%gpushare resume` (or any cell) brings it back; then try again, or "
                "restart the kernel to drop it."
            )

    def _park(self, lease: str, given: Given) -> None:
        self._forget()
        self._parked, self.standing, self._given = lease, Standing.PARKED, given

    def _resume(self) -> Grant:
        lease = self._parked
        if lease is None and self.grant is not None:
            self._settle_in(self.grant)  # it has its GPUs, and failed the first time
            return self.grant
        if lease is None:
            return self._adopt(self._ask_node(self.ask(), True, None))
        session, bound = self._connect(), self.settings.wait_timeout
        try:
            result = self._await(
                lambda queued, waiting: session.resume(lease, queued, waiting, bound)
            )
        except LeaseLost:
            # It ended while it was parked; nothing was lost but the place.
            self._parked, self.standing = None, Standing.FREE
            return self._adopt(self._ask_node(self.ask(), True, None))
        return self._adopt(result)

    def _bring_back(self, grant: Grant) -> None:
        """Put parked memory back on the GPUs of ``grant``. Not to be interrupted.

        Raises :class:`NotBroughtBack` (try again) and :class:`ProcessLost`.
        """
        now = tuple(gpu.uuid for gpu in grant.gpus)
        moved = {old: new for old, new in zip(self._had, now, strict=False) if old != new}
        if moved and len(now) != len(self._had):
            raise NotBroughtBack("The lease has other GPUs than the memory came from.")
        ladder, session = self._get_ladder(), self._session
        memory = ladder.memory
        self._say(f"Restoring {format_size(memory)} of GPU memory …")
        with _deaf_to_interrupts():
            seconds = ladder.bring_back(moved)
        self._cuda_had = now
        if session is not None:
            session.tell_surely(Method.RESTORED, lease=grant.lease, seconds=seconds)
        self._say(f"Restored {format_size(memory)} of GPU memory in {seconds:.1f} s.")

    def _release_parked(self, lease: str) -> str:
        self._parked, self.standing = None, Standing.FREE
        session = self._connect()
        session.let_go(lease)
        try:
            result = session.call(Method.RELEASE, lease=lease, again=True)
        except LeaseLost:
            return "ended"
        return str(result.get("state")) if isinstance(result, dict) else "ended"

    def _adopt(self, result: Mapping[str, Any]) -> Grant:
        grant = read_grant(result)
        self._limits.forget()
        self.grant, self.standing, self.lost = grant, Standing.HELD, None
        self._parked = None
        self._environ[names.LEASE] = grant.lease
        self._environ[names.SECRET] = str(result.get("secret", ""))
        restored = self._given.rung in _LEAVE_SOMETHING or self._holds
        if restored and not self._holds and self._session is not None:
            # Caches were emptied, and that was all.
            self._cuda_had = tuple(gpu.uuid for gpu in grant.gpus)
            self._session.tell_surely(Method.RESTORED, lease=grant.lease)
        self._given = Given(Rung.RELEASE)
        replaced = self._visible.show(grant)
        if replaced is not None:
            self._say_once(
                f"CUDA_VISIBLE_DEVICES was {replaced!r}; it now names the GPUs of this task's "
                "lease. For more GPUs use `%gpushare request --gpus N` or JUPYTER_GPUSHARE_GPUS."
            )
        self._settle_in(grant)
        return grant

    def _settle_in(self, grant: Grant) -> None:
        if self._holds:
            self._bring_back(grant)  # before anything else here calls CUDA, which blocks until then
        self._catch_up(grant)
        self._tell_adapters()
        if self._busy is not None:
            self.set_activity(self._busy)

    def _catch_up(self, grant: Grant) -> None:
        """Frameworks that were imported before we were asked, and a CUDA that runs already."""
        self._find_frameworks()
        if cuda_started() and self._cuda_had != tuple(gpu.uuid for gpu in grant.gpus):
            self._say(
                "CUDA was started in this process before this lease was granted, and keeps the "
                "GPUs it had. Restart the kernel (or the program) to use the lease's GPUs."
            )

    def _find_frameworks(self) -> None:
        for module in registry.BUILT_IN:
            loaded = sys.modules.get(module)
            being_imported = getattr(getattr(loaded, "__spec__", None), "_initializing", False)
            if loaded is not None and not being_imported and module not in self._adapters:
                adapter = self._adapter(module)
                if adapter is not None:
                    self._adapters[module] = (adapter, loaded)

    def _give_way(self) -> None:
        """Give the lease back for another one. Raises :class:`GpuShareError`."""
        if cuda_started():
            raise GpuShareError(
                "This process has started CUDA on the GPUs of its lease, and CUDA cannot change "
                "them any more. Restart the kernel (or the program) and ask before CUDA is used."
            )
        self.release()

    def _tell_adapters(self) -> None:
        for module, (adapter, loaded) in tuple(self._adapters.items()):
            if loaded is None:
                continue
            try:
                adapter.after(loaded, self._grant_for(adapter))
            except Exception as error:  # noqa: BLE001 - a limit is not worth the user's program
                self._say(f"The adapter for {module} could not set a memory limit: {error!r}")
            self._gate_steps(adapter, loaded)

    def _gate_steps(self, adapter: registry.Adapter, loaded: ModuleType) -> None:
        """Where steps are measured, they are told of and may have to wait for their turn."""
        from .parking.base import meter_of, parker_of

        meter, turns = meter_of(adapter), self.turns
        if meter is None or meter.gate is not None or self.standing is not Standing.HELD:
            return

        def drop() -> None:
            parker = parker_of(adapter, loaded)
            if parker is not None:
                parker.drop_temporary()

        def trim() -> None:
            parker = parker_of(adapter, loaded)
            if parker is not None:
                parker.trim()

        turns.drop, turns.trim = drop, trim
        turns.watch_first_use = before_first_use_of_torch(loaded)
        meter.on_step, meter.gate = turns.report, turns.gate

    def _remember_cuda(self) -> None:
        if self.grant is not None and cuda_started():
            self._cuda_had = tuple(gpu.uuid for gpu in self.grant.gpus)

    def _grant_for(self, adapter: registry.Adapter) -> Grant | None:
        """What a framework may use: more than granted only where it can be lowered again."""
        live = getattr(adapter, "live_limits", False)
        return self._limits.of(self.grant) if live else self.grant

    def _set_limits(self, grant: Grant) -> bool:
        """Tell the frameworks whose limits can change; whether there is any."""
        live = False
        for module, (adapter, loaded) in tuple(self._adapters.items()):
            if loaded is None or not getattr(adapter, "live_limits", False):
                continue
            try:
                adapter.after(loaded, grant)
                live = True
            except Exception as error:  # noqa: BLE001 - a limit is not worth the user's program
                self._say(f"The adapter for {module} could not set a memory limit: {error!r}")
        return live

    def _limit_turn(self, limits: Mapping[str, int]) -> None:
        """In its turn a task may use what it keeps and the common region, by UUID in bytes."""
        grant = self.grant
        if grant is None:
            return
        base = self._limits.of(grant) or grant
        gpus = tuple(
            replace(now, memory=limits[own.uuid])
            if limits.get(own.uuid, own.memory) < own.memory
            else now
            for own, now in zip(grant.gpus, base.gpus, strict=True)
        )
        self._set_limits(replace(base, gpus=gpus))

    def _empty_caches(self) -> None:
        """Give back what frameworks keep for later; on a thread of its own, for it may take long.

        Nothing else: a cell may run meanwhile.
        """
        for module, (adapter, loaded) in tuple(self._adapters.items()):
            empty = getattr(adapter, "empty_cache", None)
            if loaded is None or empty is None:
                continue
            try:
                empty(loaded)
            except Exception as error:  # noqa: BLE001 - not worth the user's program
                self._say(f"The adapter for {module} could not empty its caches: {error!r}")

    def _answer_limits(self, lease: str, limits: Mapping[str, int], live: bool) -> None:
        if self._session is not None:
            gpus = [{"uuid": uuid, "memory": size} for uuid, size in limits.items()]
            self._session.tell_surely(Method.LIMITED, lease=lease, limits=gpus, live=live)

    def _forget(self) -> None:
        self.grant, self.standing = None, Standing.FREE
        for name in (names.LEASE, names.SECRET):
            self._environ.pop(name, None)
        self._visible.hide(children_may_ask=True)

    def _lost(self, lease: str, message: str) -> None:
        """Called on the session's thread, which leaves the environment alone."""
        if self._parked == lease:
            self._parked, self.standing, self.lost = None, Standing.LOST, message
            if self._holds:
                message += (
                    " What it had on the GPU stays in host memory; a cell asks for a new one."
                )
            self._say(f"The parked GPU lease of this process has ended: {message}")
            return
        if self.grant is None or self.grant.lease != lease:
            return
        self._lost_gpus = tuple(gpu.uuid for gpu in self.grant.gpus)
        self.grant, self.standing, self.lost = None, Standing.LOST, message
        self._say(
            f"The GPU lease of this process has ended: {message} What it still keeps on the GPU "
            "counts as used without a lease. Save your work; `%gpushare request` or a restart "
            "asks for a new one."
        )

    def _noticed(self, message: Notification) -> None:
        """Called on the session's thread."""
        if message.notice is Notice.BUDGET:
            self._say(str(message.params.get("message", "Your GPU-hours are nearly spent.")))
        elif message.notice in (Notice.TURN, Notice.YIELD):
            self.turns.noticed(message)
        elif message.notice is Notice.PARK:
            said = str(message.params.get("message", "This kernel's GPU is taken back."))
            self._asked_back(str(message.params.get("lease")), said, read_needs(message.params))
        elif message.notice is Notice.LIMIT:
            grant = self.grant
            if grant is not None and message.params.get("lease") == grant.lease:
                self._limits.changed(grant, read_limits(message.params))
        elif message.notice is Notice.OVER_LIMIT and message.params.get("lease") == self.lease:
            if message.params.get("stage") == "trim":
                threading.Thread(target=self._empty_caches, daemon=True).start()
            else:
                self._say(str(message.params.get("message", "This task uses too much memory.")))
        elif message.notice is Notice.PARK_WARNING and message.params.get("lease") == self.lease:
            self._say(str(message.params.get("message", "This kernel is idle.")))

    def _settle(self) -> None:
        """What the loss of a lease means for the environment, on the user's thread."""
        if self.standing is Standing.LOST and names.LEASE in self._environ:
            if cuda_started():
                self._cuda_had = self._lost_gpus
            lost = self.lost
            self._forget()
            self.standing, self.lost = Standing.LOST, lost

    def _fall_back(self, why: str, error: GpuShareError) -> Grant | None:
        if isinstance(error, NobodyThere) and not self._is_promised():
            self._deserted = True  # its server is gone and left the socket: nobody shares GPUs
            return None
        if self.settings.fallback is Fallback.ERROR:
            raise error
        self.standing = Standing.FELL_BACK
        self._visible.hide(children_may_ask=False)
        self._say(
            f"`{why}` goes on without a GPU (fallback = cpu): {error} "
            "`%gpushare request` tries again, as long as CUDA is not used."
        )
        return None

    def _is_promised(self) -> bool:
        """Whether somebody relies on the node manager: it is configured, or the system's."""
        found = self._found
        return found is not None and (found.configured or found.path == SYSTEM_SOCKET)


def _is_what_is_asked(grant: Grant, ask: Ask) -> bool:
    enough = ask.memory is None or all(
        gpu.memory == min(ask.memory, gpu.capacity) for gpu in grant.gpus
    )
    return enough and len(grant.gpus) == (1 if ask.gpus is None else ask.gpus)


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="gpushare-parking", daemon=True).start()


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the end: memory that is half back is no use to anybody."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if heard:
        raise KeyboardInterrupt


def _internal(error: Exception) -> NodeUnavailable:
    return NodeUnavailable(
        f"jupyter_gpushare failed by an error of its own ({type(error).__name__}: {error}). "
        "`jupyter gpushare doctor` may know more; please report it.",
        Reason.UNAVAILABLE,
    )
