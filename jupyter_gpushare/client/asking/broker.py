"""One process's dealings with the node manager: its lease, and who must hear of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Final

from ...protocol import names
from ...protocol.address import SYSTEM_SOCKET, Found, find_socket
from ...protocol.errors import Reason
from ...protocol.messages import Method, Notice, Notification
from ...protocol.notebook import Notebook
from ..adapters import registry
from ..errors import GpuShareError, LeaseLost, NodeUnavailable, QuotaExceeded
from ..lease.holding import Holding, Standing
from ..lease.interrupts import deaf_to_interrupts
from ..lease.notebook import ask_server
from ..lease.session import Link, NobodyThere, Session
from ..lease.task import SESSION_NAME, describe_task
from ..lease.visible import cuda_started
from ..memory.frameworks import Frameworks, is_live
from ..memory.gate import Turns
from ..memory.giveback import Give, GivingBack, Recalls
from ..memory.limits import Limits, read_limits
from ..memory.rungs import Given, read_needs
from ..memory.setaside import SetAside
from ..words import display
from ..words.grant import Grant, read_grant
from ..words.settings import Acquire, Ask, Fallback, Settings, read_settings, read_token
from ..words.tracebacks import stopped_waiting
from .again import AskingAgain
from .blocks import Blocks

_QUOTA_IS_FRESH: Final = 30.0  # seconds for which `Broker.expected` remembers a failure
_STOPPED: Final = "You interrupted this cell before it began, so it was not run. It has its GPU."


#: Waits for an answer; gets what to call with each notification, now and then, and with the
#: seconds that are left while the node manager is away.
_Waits = Callable[
    [Callable[[Mapping[str, Any]], None], Callable[[], None], Callable[[float], None]],
    dict[str, Any],
]


class Broker:
    """Asks for, keeps and ends this process's lease.

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
        note: Callable[[str], None] = display.note,
    ) -> None:
        self._environ = environ
        self._traits = traits
        self._make_display = make_display
        self._note = note
        self._say = display.Voice(say, lambda: self._giving.no_code_runs)
        self._said: set[str] = set()
        self._asked = Ask()
        self._notebook: Notebook | None = None  # as its server told it last
        self._session: Session | None = None
        self._session_lock = threading.Lock()
        self._holding = Holding(environ)
        self._frameworks = Frameworks(self._say)
        self._recalls = Recalls()
        self._limits = Limits(self._recalls, self._frameworks.limit, self._answer_limits)
        self._aside = SetAside(self._holding, self._frameworks, environ, self._say)
        self._giving = GivingBack(
            self._holding,
            self._frameworks,
            self._aside,
            self._recalls,
            session=lambda: self._session,
            connect=self._connect,
            say=self._say.now,
        )
        self.turns = Turns(
            lambda: self._session,
            lambda: self.grant if self.standing is Standing.HELD else None,
            say=self._say,
        )
        self.turns.limited = self._limit_turn
        self._found: Found | None = find_socket(environ)
        self._deserted = False
        self._silent_until = 0.0
        self._stopped: dict[int, str] = {}  # why the cell that begins in a thread must not run
        self._cancelled: Callable[[], bool] | None = None  # for the wait under `Holding.lock`
        self.blocks = Blocks(self)
        self.again = AskingAgain(self, self._frameworks, self._say)
        self._announces = True  # once a process
        # Our parent's marks; without them this process asks for itself.
        self._parent_lease = environ.get(names.LEASE) if environ.get(names.SECRET) else None
        self._parent_secret = environ.get(names.SECRET)

    @property
    def standing(self) -> Standing:
        """The state of this process's lease."""
        return self._holding.standing

    @property
    def grant(self) -> Grant | None:
        """The grant that this process has now."""
        return self._holding.grant

    @property
    def lease(self) -> str | None:
        """The lease of this process, held or parked."""
        return self._holding.lease

    @property
    def lost(self) -> str | None:
        """Why the last lease has ended, where it ended without us."""
        return self._holding.lost

    @property
    def settings(self) -> Settings:
        """The settings in force; a value that cannot be used is complained of once."""
        settings = read_settings(self._environ, self._traits(), self._notebook)
        for complaint in settings.complaints:
            self._say_once(complaint)
        return settings

    # -- what the import hook needs --------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether there is a node manager to ask; without one the broker does nothing."""
        if self._found is None:
            self._found = find_socket(self._environ)
        return self._found is not None and not self._deserted

    @property
    def may_ask(self) -> bool:
        """Whether there is a node manager to ask, and the user has not hidden the GPUs."""
        return self.configured and not self._holding.visible.hidden_by_user

    def before_framework(self, module: str) -> None:
        """Called before a framework's module runs; may wait in the queue.

        Raises :class:`GpuShareError` only with ``fallback = "error"``, and
        :class:`KeyboardInterrupt` when the user leaves the queue.
        """
        if not self.may_ask:
            return
        adapter = self._frameworks.find(module)
        if adapter is None:
            return
        if self._late(adapter) and self._parent_lease is None:
            # Whatever reaches CUDA by a way we do not see finds no GPU, not somebody else's.
            self._holding.visible.hide(children_may_ask=True)
            adapter.before(None)
        else:
            adapter.before(self.ensure(f"import {module}"))
        if self.configured:
            self._frameworks.add(module, adapter)

    def after_framework(self, module: str, loaded: ModuleType) -> None:
        """Called when the framework's module has run."""
        adapter = self._frameworks.adapter(module)
        if adapter is None:
            return
        if self._late(adapter):
            self._frameworks.add(module, adapter, loaded)
            adapter.first_use(loaded, partial(self.again.at_first_use, module), self.expected)
        else:
            self._frameworks.arrive(module, adapter, loaded, self._grant_for)
            if is_live(adapter):
                self._limits.can_change()
            if self.standing is Standing.HELD:
                self._frameworks.gate_steps(self.turns)

    def _late(self, adapter: registry.Adapter) -> bool:
        """Whether the lease is to be taken later, when CUDA starts."""
        return (
            adapter.catches_first_use
            and self.grant is None
            and self.standing in (Standing.FREE, Standing.LOST)
            and self.settings.acquire is Acquire.FIRST_USE
        )

    def before_use(self, used: Callable[[Collection[str]], str | None]) -> None:
        """A cell is about to run: see `AskingAgain.before_cell`. Ctrl-C bars the cell."""
        why = self.again.before_cell(used)
        if why is not None:
            self._stopped[threading.get_ident()] = why

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
        if not isinstance(allowed, int):
            return 0
        gpus = self.ask_as_known().gpus
        if isinstance(gpus, str):
            return allowed
        wanted = 1 if gpus is None else gpus
        return wanted if wanted <= allowed else 0

    def ensure(self, why: str) -> Grant | None:
        """The grant this process has, or gets now; ``None``: run without a GPU.

        Raises :class:`GpuShareError` with ``fallback = "error"``.
        """
        with self._holding.lock:
            self._holding.settle()
            kept = self.grant is not None or self.standing in (Standing.FELL_BACK, Standing.JOINED)
            if kept and not self._aside.holds:
                return self.grant
            if self.standing is Standing.PARKED or self._aside.holds:
                try:
                    return self._resume()
                except GpuShareError as error:
                    if self.settings.fallback is Fallback.ERROR or self._aside.holds:
                        raise
                    self._say(f"`{why}` goes on without a GPU (fallback = cpu): {error}")
                    return None
            asked = self.ask()
            if asked.gpus == 0:
                self._holding.visible.hide(children_may_ask=False)
                return None
            try:
                grant = self._join() if self._parent_lease else self._request(asked)
            except GpuShareError as error:
                return self._fall_back(why, error)
            except Exception as error:  # noqa: BLE001 - a bug of ours: the import goes on, safely
                return self._fall_back(why, _internal(error))
            if grant is not None and self.standing is Standing.HELD:
                self._announce(grant)
            return grant

    def _announce(self, grant: Grant) -> None:
        """Say once what was granted: people cannot see by themselves that it is a GPU."""
        announces, self._announces = self._announces, False
        if announces and self.settings.show_grant:
            node = self._session.node.get("node") if self._session is not None else None
            simulated = isinstance(node, Mapping) and node.get("simulated") is True
            self._note(f"{grant.words} (simulated)" if simulated else grant.words)

    # -- what people and programs call -------------------------------------------------

    def ask(self) -> Ask:
        """The request of this process, from all sources of settings.

        A notebook's settings are read as they are saved now, from its Jupyter server.
        """
        self._notebook = ask_server(self._environ) or self._notebook
        return self.ask_as_known()

    def ask_as_known(self) -> Ask:
        """The same without asking that server: what is known is enough."""
        return self._asked.over(self.settings.ask)

    def set_ask(self, ask: Ask) -> None:
        """Set what the next requests ask; it is stronger than any setting."""
        self._asked = ask

    @property
    def lock(self) -> threading.RLock:
        """`Holding.lock`: the thread that has it may change what is held."""
        return self._holding.lock

    def request(
        self,
        ask: Ask,
        *,
        wait: bool = True,
        wait_timeout: float | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Grant:
        """Get a lease, waiting visibly. ``wait_timeout`` in seconds; ``None``: as the settings say.

        ``cancelled()`` is asked now and then, and ends the wait.

        A process has one lease at a time. One that is held or parked already is kept if it is
        what is asked; else it ends when the other one is granted, and not before. Raises
        :class:`GpuShareError`, :class:`KeyboardInterrupt`.
        """
        wanted = ask.over(self.ask())
        with self._holding.lock:
            self._holding.settle()
            self._cancelled = cancelled
            try:
                return self._request(wanted, wait, wait_timeout)
            finally:
                self._cancelled = None

    def _request(self, wanted: Ask, wait: bool = True, wait_timeout: float | None = None) -> Grant:
        had = self._holding.had
        if had is not None and _is_what_is_asked(had, wanted):
            away = self.grant is None or self._aside.holds
            return self._resume(wait, wait_timeout) if away else had
        self._aside.must_be_whole()
        if had is not None:
            return self._exchange(wanted, wait, wait_timeout)
        return self._ask_node(wanted, wait, wait_timeout)

    def release(self) -> str | None:
        """Give the lease back; the lease's state then, or ``None`` if there was none.

        Raises :class:`GpuShareError`.
        """
        state = self._giving.release()
        self.again.given_back()
        return state

    def park(self) -> Given | None:
        """Give the GPUs back and keep the variables; ``None``: there is nothing to give.

        Raises :class:`GpuShareError` when this process cannot.
        """
        return self._giving.park()

    def call(self, method: Method, **params: Any) -> Any:
        """Any call; its result. Raises :class:`GpuShareError`."""
        return self._line().call(method, again=True, **params)

    def status(self) -> dict[str, Any]:
        """The status document. Raises :class:`GpuShareError`."""
        result = self.call(Method.STATUS)
        if not isinstance(result, dict):
            raise NodeUnavailable("The node manager's status cannot be read.")
        return result

    def set_activity(self, busy: bool) -> None:
        """Tell what the task does. Never waits, never raises."""
        self._giving.set_busy(busy)
        if not busy and self.turns.is_gated:
            self.turns.rest()
        grant, session = self.grant, self._session
        if grant is not None and session is not None and self.standing is Standing.HELD:
            session.set_activity(grant.lease, busy)
            if not busy:
                self._giving.tell_ability(session, grant.lease)

    def before_cell(self) -> None:
        """Before a cell runs, ask again for GPUs that were given back while no cell ran.

        Waits visibly; raises nothing. Ctrl-C runs the cell without a GPU. If memory that the cell
        may need lies in host memory, Ctrl-C bars the cell instead (`barred` says why).
        """
        me = threading.get_ident()
        self._stopped.pop(me, None)
        if self._giving.busy:
            self._say.deliver()
        if self.turns.is_gated:
            self.turns.before_cell()
        if self.standing not in (Standing.PARKED, Standing.PARKING) and not self._aside.holds:
            return
        interrupted = self._giving.until_parked()
        try:
            with self._holding.lock:
                if interrupted:
                    raise KeyboardInterrupt
                if self.standing is Standing.PARKED or self._aside.holds:
                    self._resume()
        except KeyboardInterrupt:
            if self._is_elsewhere:
                self._stopped[me] = "You left the queue."
                self._say(_not_run("You left the queue."))
            elif self.grant is not None:
                self._stopped[me] = _STOPPED
            else:
                self._say(
                    "This cell runs without a GPU; the next one asks for it again. "
                    "`%gpushare release` gives it up."
                )
        except GpuShareError as error:
            if self._is_elsewhere:
                self._stopped[me] = str(error)
                self._say(_not_run(str(error)))
            else:
                self._say(f"This cell runs without a GPU: {error} The next one asks again.")

    def code_runs(self, begins: bool, is_refusable: bool) -> None:
        """Code begins or ends in this thread: a cell or other code.

        Code that cannot be refused gets the memory back that it may need, as a cell does, and may
        wait.
        """
        if not begins:
            self._giving.code_ends()
            self._stopped.pop(threading.get_ident(), None)
            return
        self._giving.code_begins()
        if not is_refusable and self._is_elsewhere:
            self.before_cell()

    @property
    def barred(self) -> str | None:
        """Why the code that begins in this thread must not run; ``None``: it may.

        Code does not run while memory that it may need is elsewhere, also if `before_cell` was
        stopped.
        """
        why = self._stopped.get(threading.get_ident())
        if self._is_elsewhere:
            return _not_run(why or "Its GPU is given back.")
        return why

    @property
    def _is_elsewhere(self) -> bool:
        """Whether code would miss memory on the GPU, or use a GPU that it may not."""
        parked = self.standing is Standing.PARKED and self._aside.is_incomplete
        return parked or self.standing is Standing.PARKING or self._aside.holds

    def close(self) -> None:
        """The process ends: give back what is ours. The node manager sees it die anyway."""
        session, self._session = self._session, None
        if session is None:
            return
        ours = self.lease
        if ours is not None and self.standing is not Standing.JOINED and session.link is Link.UP:
            session.let_go(ours)  # its end need not be told
            session.tell(Method.RELEASE, lease=ours)
        session.close(0.2)

    def abandon_in_child(self) -> Broker:
        """After a fork: a broker for the child, which shares its parent's lease."""
        if self._session is not None:
            self._session.abandon_in_child()
        child = Broker(
            self._environ, self._traits, make_display=self._make_display, say=self._say.at_once
        )
        child._asked, child._said = self._asked, self._said
        child._notebook = self._notebook
        child._announces = False
        child._frameworks.inherit(self._frameworks)
        child._holding.inherit(self._holding)
        # Code copied from the parent still calls this broker. Without a session a gate that is
        # closed in the parent does not hold the child.
        self._session = None
        return child

    # -- inside ---------------------------------------------------------------------

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def _connect(self, patience: float | None = None) -> Session:
        session = self._line()
        session.open(self.settings.answer_timeout if patience is None else patience)
        return session

    def _line(self) -> Session:
        """The session; a new one connects with its first call, in one round trip."""
        with self._session_lock:
            if self._session is None or self._session.link is Link.CLOSED:
                self._session = self._new_session()
            return self._session

    def _new_session(self) -> Session:
        self._deserted = False
        if not self.configured or self._found is None:
            raise NodeUnavailable(
                "No GPU node manager is set up for this process. In Jupyter it comes with "
                "the server; elsewhere start `jupyter gpushare node` or set "
                f"{names.SOCKET}."
            )
        settings, found = self.settings, self._found
        return Session(
            found.path,
            lambda: read_token(self._environ, found),
            settings.answer_timeout,
            outage=settings.outage_timeout,
            on_lost=self._lost,
            on_notice=self._noticed,
        )

    def _join(self) -> Grant | None:
        """Join the parent's lease; if it has ended, ask for a lease of our own."""
        lease, secret = self._parent_lease or "", self._parent_secret or ""
        try:
            session = self._line()
            result = session.call(Method.ATTACH, lease=lease, secret=secret, again=True)
        except NodeUnavailable:
            if not self._holding.visible.names_gpus:
                raise
            # Our parent holds them, whether or not the node manager can be asked just now.
            self._holding.standing = Standing.JOINED
            return None
        except LeaseLost:
            result = None
        self._parent_lease = self._parent_secret = None
        if not isinstance(result, dict) or result.get("state") in ("queued", "parked"):
            return self._request(self.ask_as_known())
        grant = self._holding.join(read_grant(result))
        session.hold(lease, secret)
        self._tell_frameworks()
        return grant

    def _ask_node(self, ask: Ask, wait: bool, wait_timeout: float | None) -> Grant:
        session = self._line()
        params: dict[str, Any] = {
            "request_id": os.urandom(16).hex(),
            "task": describe_task(self._told_environ()),
            "gpus": ask.gpus,
            "memory": ask.memory,
            "priority_class": ask.priority_class,
            "wait": wait,
        }
        bound = self.settings.wait_timeout if wait_timeout is None else wait_timeout

        def leave(lease: str) -> None:
            session.let_go(lease)
            session.tell_surely(Method.RELEASE, lease=lease)

        def request(
            queued: Callable[[Mapping[str, Any]], None],
            waiting: Callable[[], None],
            away: Callable[[float], None],
        ) -> dict[str, Any]:
            result = session.request(params, queued, waiting, bound, away)
            # Only who asked knows: the lease itself has a number.
            return {**result, "of_quota": isinstance(ask.gpus, str)}

        return self._obtain(session, request, leave)

    def _told_environ(self) -> Mapping[str, str]:
        """The environment, with the notebook's name of now: the one at the start may be old."""
        path = None if self._notebook is None else self._notebook.path
        return self._environ if path is None else {**self._environ, SESSION_NAME: path}

    def _obtain(self, session: Session, ask: _Waits, leave: Callable[[str], None]) -> Grant:
        """Show the wait while ``ask`` waits, and take what it brings, or ``leave`` that lease."""
        shown = self._make_display()
        last: dict[str, Any] = {}

        def queued(notice: Mapping[str, Any]) -> None:
            last.update(notice)
            shown.update(notice)

        def waiting() -> None:
            if self._cancelled is not None and self._cancelled():
                raise GpuShareError("Nobody waits for the GPU any more: the wait was cancelled.")
            if last:
                shown.update(last)

        result: dict[str, Any] = {}
        is_over = False
        try:
            result = ask(queued, waiting, shown.away)
            # If we were stopped between the grant and our note of it, no process would have the
            # lease.
            with deaf_to_interrupts():
                grant = self._take(session, result)
                is_over = True
                if shown.done(f"Granted: {grant.words}."):
                    self._announces = False
        except BaseException as error:
            if not is_over:
                shown.done(None)
            if not result and isinstance(error, KeyboardInterrupt):
                stopped_waiting(error, "you stopped waiting for GPUs.")
            elif result and (self.grant is None or self.grant.lease != result["lease"]):
                with deaf_to_interrupts():
                    leave(str(result["lease"]))
            raise
        self._settle_in(grant)
        return grant

    # -- getting again ---------------------------------------------------------------

    def resume(self) -> Grant | None:
        """Get the GPUs of a parked lease and all its memory back; waits in the queue.

        ``None``: no lease was parked. Raises :class:`GpuShareError`.
        """
        with self._holding.lock:
            self._holding.settle()
            if self.standing is Standing.PARKED or self._aside.holds:
                return self._resume()
            return None

    def pin(self, seconds: float | None) -> float | None:
        """Keep the GPUs while idle: for ``seconds``, or the usual time.

        Returns the seconds for which they are kept now (0: as long as the usual rule says);
        ``None``: this process holds no GPU. Raises :class:`GpuShareError` beyond the
        administrator's limit.
        """
        grant = self.grant
        if grant is None:
            return None
        result = self.call(Method.PIN, lease=grant.lease, seconds=seconds)
        kept = result.get("seconds") if isinstance(result, dict) else None
        return float(kept) if isinstance(kept, int | float) else 0.0

    def _resume(self, wait: bool = True, wait_timeout: float | None = None) -> Grant:
        """Resume the parked lease. Without ``wait`` only if that is possible at once."""
        lease = self._holding.parked
        if lease is None and self.grant is not None:
            self._settle_in(self.grant)  # it has its GPUs, and failed the first time
            return self.grant
        if lease is None:
            return self._ask_node(self.ask(), wait, wait_timeout)
        session = self._line()
        bound = self.settings.wait_timeout if wait_timeout is None else wait_timeout
        try:
            return self._obtain(
                session,
                lambda queued, waiting, away: session.resume(
                    lease, queued, waiting, bound, away, wait=wait
                ),
                lambda lease: session.tell_surely(Method.PARKED, lease=lease),
            )
        except LeaseLost:
            # It ended while it was parked; only its place is lost.
            self._holding.drop_parked()
            return self._ask_node(self.ask(), wait, wait_timeout)

    def _take(self, session: Session, result: Mapping[str, Any]) -> Grant:
        grant = read_grant(result)
        self._limits.forget()
        before, was = self._holding.had, self.standing
        replaced = self._holding.take(grant, str(result.get("secret", "")))
        if not session.holds(grant.lease):
            # Its end was told between the grant and now, when it was not known to be ours.
            message = "The GPU lease ended as soon as it was granted."
            self._holding.lose(grant.lease, message)
            self._holding.settle()
            if before is not None and was is not Standing.JOINED and before.lease != grant.lease:
                self._holding.park(before)
                session.tell_surely(Method.PARKED, lease=before.lease)
            raise LeaseLost(message, Reason.UNKNOWN_LEASE)
        if before is not None and before.lease != grant.lease:
            session.let_go(before.lease)
            if was is not Standing.JOINED:
                session.tell_surely(Method.RELEASE, lease=before.lease)
        self._aside.granted(session)
        if replaced is not None:
            more = display.advice("use `%gpushare request --gpus N`", "set JUPYTER_GPUSHARE_GPUS")
            self._say_once(
                f"CUDA_VISIBLE_DEVICES was {replaced!r}; it now names the GPUs of this task's "
                f"lease. For more GPUs {more}."
            )
        self.again.granted()
        return grant

    def _settle_in(self, grant: Grant) -> None:
        if self._aside.holds:
            # Before anything else here calls CUDA, which blocks until then.
            self._aside.bring_back(grant, self._session)
        self._frameworks.look_around()
        if self._holding.cuda_had != self._holding.gpus and cuda_started():
            self._say(
                "CUDA was started in this process before this lease was granted, and keeps the "
                "GPUs it had. Restart the kernel (or the program) to use the lease's GPUs."
            )
        self._tell_frameworks()
        busy = self._giving.busy
        if busy is not None:
            self.set_activity(busy)

    def _exchange(self, wanted: Ask, wait: bool, wait_timeout: float | None) -> Grant:
        """Exchange the held or parked lease for another.

        Arguments and errors are those of `request`.

        The new lease is taken beside the old one if there is room. Otherwise the old one is parked
        meanwhile: a request must not wait for GPUs that its own process holds.
        """
        if cuda_started():
            raise GpuShareError(
                "This process has started CUDA on the GPUs of its lease, and CUDA cannot change "
                "them any more. Restart the kernel (or the program) and ask before CUDA is used."
            )
        if self.standing is not Standing.HELD:
            return self._ask_node(wanted, wait, wait_timeout)
        try:
            return self._ask_node(wanted, False, None)
        except QuotaExceeded as error:
            if error.reason is not Reason.NO_RESOURCES:
                raise
        self._giving.step_aside()
        try:
            return self._ask_node(wanted, wait, wait_timeout)
        except BaseException:
            with suppress(GpuShareError):
                if self._holding.parked is not None:
                    self._resume(wait=False)
            raise

    def _tell_frameworks(self) -> None:
        self._frameworks.tell(self._grant_for)
        if self.standing is Standing.HELD:
            self._frameworks.gate_steps(self.turns)

    def _grant_for(self, adapter: registry.Adapter) -> Grant | None:
        """The grant for one framework: its lifted limit counts only if it can be lowered again."""
        return self._limits.of(self.grant) if is_live(adapter) else self.grant

    def _limit_turn(self, limits: Mapping[str, int]) -> None:
        """In its turn a task may use what it keeps and the common region, by UUID in bytes."""

        def now() -> Grant | None:
            grant = self.grant
            if grant is None:
                return None
            base = self._limits.of(grant) or grant
            gpus = tuple(
                replace(now, memory=limits[own.uuid])
                if limits.get(own.uuid, own.memory) < own.memory
                else now
                for own, now in zip(grant.gpus, base.gpus, strict=True)
            )
            return replace(base, gpus=gpus)

        self._frameworks.limit(now)

    def _answer_limits(self, lease: str, limits: Mapping[str, int], live: bool) -> None:
        if self._session is not None:
            gpus = [{"uuid": uuid, "memory": size} for uuid, size in limits.items()]
            self._session.tell_surely(Method.LIMITED, lease=lease, limits=gpus, live=live)

    def _lost(self, lease: str, message: str) -> None:
        """Called on the session's thread."""
        was_parked = self._holding.parked == lease
        if not self._holding.lose(lease, message):
            return
        if was_parked:
            if self._aside.holds:
                message += (
                    " Its GPU memory stays in host memory; the next cell asks for a new lease."
                )
            self._say(f"The parked GPU lease of this process has ended: {message}")
            return
        if cuda_started():
            what = (
                "Memory that it still has on the GPU counts as used without a lease. Save your "
                "work; "
                + display.advice("`%gpushare request` or a restart asks", "starting it again asks")
                + " for a new one."
            )
        else:
            again = "Starting it again asks for a new one."
            what = display.advice(self.again.words, again)
        self._say(f"The GPU lease of this process has ended: {message} {what}")
        self.again.given_back()

    def _noticed(self, message: Notification) -> None:
        """Called on the session's thread."""
        if message.notice is Notice.BUDGET:
            self._say(str(message.params.get("message", "Your GPU-hours are nearly spent.")))
        elif message.notice in (Notice.TURN, Notice.YIELD):
            self.turns.noticed(message)
            ours = message.params.get("lease") == self.lease
            if message.notice is Notice.YIELD and ours and self._giving.busy is False:
                self._recalls.told(Give.TURN, self.turns.clear_idle)
        elif message.notice is Notice.PARK:
            said = str(message.params.get("message", "This kernel's GPU is taken back."))
            self._giving.asked_back(
                str(message.params.get("lease")), said, read_needs(message.params)
            )
        elif message.notice is Notice.LIMIT:
            grant = self.grant
            if grant is not None and message.params.get("lease") == grant.lease:
                self._limits.changed(grant, read_limits(message.params))
        elif message.notice is Notice.OVER_LIMIT and message.params.get("lease") == self.lease:
            if message.params.get("stage") == "trim":
                self._recalls.told(Give.CACHE, self._frameworks.empty_caches)
            else:
                self._say(str(message.params.get("message", "This task uses too much memory.")))
        elif message.notice is Notice.PARK_WARNING and message.params.get("lease") == self.lease:
            self._say.now(str(message.params.get("message", "This kernel is idle.")))

    def _fall_back(self, why: str, error: GpuShareError) -> Grant | None:
        if isinstance(error, NobodyThere) and not self._is_promised():
            self._deserted = True  # the socket's server is gone: GPUs are not shared
            return None
        if self.settings.fallback is Fallback.ERROR:
            raise error
        self._holding.standing = Standing.FELL_BACK
        self._holding.visible.hide(children_may_ask=False)
        self._say(
            f"`{why}` goes on without a GPU (fallback = cpu): {error} "
            + display.advice(
                "`%gpushare request` tries again, as long as CUDA is not used.",
                "Starting the program again tries again; with JUPYTER_GPUSHARE_FALLBACK=error "
                "it would stop here.",
            )
        )
        return None

    def _is_promised(self) -> bool:
        """Whether a node manager is expected here: it is configured, or it is the system's."""
        found = self._found
        return found is not None and (found.configured or found.path == SYSTEM_SOCKET)


def _not_run(why: str) -> str:
    return (
        f"{why} This cell was not run, because this kernel's GPU memory is still in host memory. "
        "Your variables are kept: run the cell again, or `%gpushare resume`."
    )


def _is_what_is_asked(grant: Grant, ask: Ask) -> bool:
    enough = ask.memory is None or all(gpu.memory == ask.memory for gpu in grant.gpus)
    if isinstance(ask.gpus, str):
        return enough and grant.of_quota
    return enough and len(grant.gpus) == (1 if ask.gpus is None else ask.gpus)


def _internal(error: Exception) -> NodeUnavailable:
    return NodeUnavailable(
        f"jupyter_gpushare failed by an error of its own ({type(error).__name__}: {error}). "
        "`jupyter gpushare doctor` may know more; please report it.",
        Reason.UNAVAILABLE,
    )
