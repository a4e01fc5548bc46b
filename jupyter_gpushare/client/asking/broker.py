"""One process's dealings with the node manager: its lease, and who must hear of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from functools import cached_property, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...protocol.errors import Reason
from ...protocol.messages import Method, Notice, Notification
from ..adapters import registry
from ..errors import GpuShareError, NodeUnavailable
from ..memory.frameworks import Frameworks, is_live
from ..memory.gate import Turns
from ..memory.giveback import GivingBack
from ..memory.limits import Limits
from ..memory.moving import MovingAtGates
from ..memory.places import Place
from ..memory.rungs import Given
from ..memory.setaside import SetAside
from ..memory.stopping import Stopping, is_run, is_under_run
from ..memory.worker import Worker
from ..session.caller import this_caller
from ..session.holding import Holding, Standing
from ..session.progress import Progress, Source
from ..session.session import NobodyThere
from ..session.task import running_kernel
from ..session.visible import cuda_loaded, cuda_started
from ..words import display
from ..words.callers import TABLE, Caller, When, is_wish, when
from ..words.grant import Grant
from ..words.recalls import MEMORY, Give, Recall, limits_of, read_needs, read_number, read_recall
from ..words.settings import Ask, Fallback, Naming, Settings
from .again import AskingAgain
from .blocks import Blocks
from .cells import Cells
from .getting import Getting
from .line import Line
from .promises import Promises
from .wishes import Wishes

if TYPE_CHECKING:
    from ..memory.lasterror import LastError

_QUOTA_IS_FRESH: Final = 30.0  # seconds for which `Broker.expected` remembers a failure
#: Whoever waits says why, and the end of a lease is said once it has ended here, too.
_SAID_ELSEWHERE: Final = (Notice.QUEUED, Notice.REVOKED)


class Broker:
    """Asks for, keeps and ends this process's lease.

    ``environ`` is changed: ``CUDA_VISIBLE_DEVICES`` becomes the granted GPUs,
    and the lease's id and secret are left there for child processes to join.
    ``traits`` gives the weakest settings, anew each time; ``caller`` who runs code in this thread.
    """

    def __init__(
        self,
        environ: MutableMapping[str, str],
        traits: Callable[[], Settings] = Settings,
        *,
        make_display: Callable[[], display.Display] = display.waiting_display,
        say: Callable[[str], None] = display.say,
        note: Callable[[str], None] = display.note,
        caller: Callable[[], Caller] = this_caller,
    ) -> None:
        self._environ = environ
        self._caller = caller
        self._make_display = make_display
        self._note = note
        self._say = display.Voice(say, lambda: self._giving.no_code_runs)
        self._traits = traits
        self.wishes = Wishes(environ, traits, self._say)
        self._line = Line(
            environ, lambda: self.wishes.settings, on_lost=self._lost, on_notice=self._noticed
        )
        self._holding = Holding(
            environ, lambda: self.wishes.settings.visible_devices is Naming.INDICES
        )
        self.progress = Progress(self._tell_progress, lambda: self.turns.waited)
        self._frameworks = Frameworks(self._say, self.progress)
        self._worker = Worker()
        self._limits = Limits(
            self._worker,
            self._frameworks.limit,
            self._answer_limits,
            lambda: self._frameworks.live,
        )
        self._aside = SetAside(self._holding, self._frameworks, environ, self._say)
        self._giving = GivingBack(
            self._holding,
            self._frameworks,
            self._aside,
            self._worker,
            session=lambda: self._line.session,
            connect=self._line.connect,
            say=self._say.now,
        )
        self.turns = Turns(
            lambda: self._line.session,
            self._grant_in_turns,
            say=self._say,
        )
        self.turns.may_lead = self._may_lead
        self.turns.limited = self._limit_turn
        self.turns.drop = self._frameworks.drop_caches
        self.turns.offer_lock = self._offer_lock
        self._silent_until = 0.0
        self._stopping: Stopping | None = None
        self.promises = Promises(
            self._line.any,
            lambda: self.lease if self.standing is Standing.HELD else None,
            begins=self.progress.begins,
            ends=self.progress.over,
            what=lambda: "This program" if running_kernel() is None else "This cell",
            say=self._say.now,
        )
        self.blocks = Blocks(self)
        self.again = AskingAgain(self, self._frameworks, self._say)
        self._getting = Getting(
            environ,
            self.wishes,
            self._line,
            self._holding,
            self._frameworks,
            self._limits,
            self._aside,
            self._giving,
            self.turns,
            self.again,
            make_display=make_display,
            set_activity=self.set_activity,
            say=self._say,
        )
        moving = MovingAtGates(
            self._holding,
            self._giving,
            self._aside,
            session=lambda: self._line.session,
            resume=lambda: self._getting.resume(wait_timeout=0.0),
            say=self._say,
        )
        self.turns.give = moving.give
        self.cells = Cells(
            self._holding,
            self._aside,
            self._giving,
            self.turns,
            self.again,
            begins=self.progress.begins,
            resume=self._getting.resume,
            say=self._say,
        )

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

    # -- what the import hook needs --------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.wishes.settings

    @property
    def configured(self) -> bool:
        """Whether there is a node manager to ask; if not, everything here is inert."""
        return self._line.configured

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
        if self._asks(adapter) is not When.IMPORT and not self._getting.may_join:
            # Whatever reaches CUDA by a way we do not see finds no GPU, not somebody else's.
            self._holding.visible.hide(children_may_ask=not self.wishes.go_without)
            adapter.before(None)
        else:
            self._frameworks.comes(module, adapter)
            adapter.before(self.ensure(f"import {module}", TABLE[self._caller()].patience))
        if self.configured:
            self._frameworks.add(module, adapter)

    def after_framework(self, module: str, loaded: ModuleType) -> None:
        """Called when the framework's module has run."""
        adapter = self._frameworks.adapter(module)
        if adapter is None:
            return
        asks = self._asks(adapter)
        if asks is When.FIRST_USE:
            self._frameworks.add(module, adapter, loaded)
            at_use = partial(self.again.at_first_use, module)
            if adapter.first_use(loaded, at_use, self.expected) is False:
                asks = When.NEVER
        if asks is When.NEVER:
            self._tell_how(module, f"this {module} does not show")
        if asks is not When.FIRST_USE:
            self._frameworks.arrive(module, adapter, loaded, self._getting.grant_for)
            if is_live(adapter):
                self._limits.can_change()
            self._getting.tell_live()
            self._getting.connect_gates()

    def _grant_in_turns(self) -> Grant | None:
        """What this process has, if it takes turns: for itself, or for all that have joined."""
        leads = self.standing is Standing.JOINED and self.turns.leads
        return self.grant if leads or self.standing is Standing.HELD else None

    def _may_lead(self) -> bool:
        """Whether this process may take turns alone for a lease of `run`, which it has joined.

        A kernel computes between its cells only by chance, and a rank stops with the others.
        """
        if self.standing is not Standing.JOINED or not is_under_run(self._environ):
            return False
        return self._environ.get("WORLD_SIZE", "1") == "1" and running_kernel() is None

    def before_call(self) -> None:
        """A gate before a call, but not where JAX traces, in another thread, or of several.

        Where this program can be stopped, such a call counts as a step's end.
        """
        if not self._giving.runs_here() or not self._may_wait():
            return
        self.progress.ended(Source.CALL)
        if self._stopping is not None:
            self._stopping.step_ended()
        if self.turns.needs_gate:
            self.turns.checkpoint(Place.STEP_END)

    @cached_property
    def last_error(self) -> LastError:
        """The last error that a person was shown, and what it keeps."""
        from ..memory.lasterror import LastError

        return LastError(self._frameworks, lambda: self.settings.after_error, self._note)

    @cached_property
    def _may_wait(self) -> Callable[[], bool]:
        from ..adapters.jax import may_wait

        return may_wait

    def _asks(self, adapter: registry.Adapter) -> When:
        """The moment at which this process asks, as who imports the framework.

        ``IMPORT`` also where it has its answer already, and where it has parked what it had.
        """
        if self.grant is not None or self.standing in (Standing.FELL_BACK, Standing.JOINED):
            return When.IMPORT
        caller = self._caller()
        if self.standing not in (Standing.FREE, Standing.LOST) and is_wish(caller):
            return When.IMPORT
        return when(caller, self.settings.acquire, shows_use=adapter.catches_first_use)

    def _tell_how(self, module: str, why: str) -> None:
        """Say how a process gets a GPU that asks for none by itself. In a kernel a cell asks."""
        caller = self._caller()
        if running_kernel() is None and not is_wish(caller):
            self.wishes.say_once(
                f"`import {module}` asked for no GPU. {caller.value} asks at the first use of a "
                f"GPU, which {why}. `jupyter gpushare run -- COMMAND` takes one before; so does "
                "`request()` of jupyter_gpushare.client in the code."
            )

    def expected(self) -> int:
        """GPUs that a request would get as the quota stands. Answers at once, or asks once."""
        if self.grant is not None:
            return len(self.grant.gpus)
        if self.standing is Standing.FELL_BACK or time.monotonic() < self._silent_until:
            return 0
        try:
            quota = self._line.connect(patience=0.0).hello.get("quota")
        except GpuShareError:
            self._silent_until = time.monotonic() + _QUOTA_IS_FRESH
            return 0
        allowed = quota.get("gpus") if isinstance(quota, dict) else None
        if not isinstance(allowed, int) or self._asks_never():
            return 0
        gpus = self.wishes.ask_as_known().gpus
        if isinstance(gpus, str):
            return allowed
        wanted = 1 if gpus is None else gpus
        return wanted if wanted <= allowed else 0

    def at_first_use(self, module: str) -> Grant | None:
        """As `ensure`, when a framework is about to start CUDA."""
        if self._asks_never():
            self._tell_how(module, "simulated GPUs cannot have")
            return None
        return self.ensure(f"first use of {module}", TABLE[self._caller()].patience)

    def _asks_never(self) -> bool:
        """Whether who runs code here asks for none of this node's GPUs, even at their first use."""
        caller = self._caller()
        simulated = not is_wish(caller) and self._is_simulated()
        moment = when(caller, self.settings.acquire, shows_use=True, is_simulated=simulated)
        return moment is When.NEVER

    def _is_simulated(self) -> bool:
        """Whether the node's GPUs are. Where it does not answer, they are not."""
        try:
            node = self._line.connect(patience=0.0).hello.get("node")
        except GpuShareError:
            return False
        return isinstance(node, Mapping) and node.get("simulated") is True

    def ensure(self, why: str, patience: float | None = None) -> Grant | None:
        """The grant this process has, or gets now; ``None``: run without a GPU.

        It waits ``patience`` seconds in the queue, or as long as the settings say; ``None``: only
        the settings bound it. Raises :class:`GpuShareError` with ``fallback = "error"``.
        """
        if not self._holding.lock.acquire(timeout=-1 if patience is None else patience):
            return self.grant  # another thread waits for it
        try:
            return self._ensure(why, patience)
        finally:
            self._holding.lock.release()

    def _ensure(self, why: str, patience: float | None) -> Grant | None:
        self._holding.settle()
        kept = self.grant is not None or self.standing in (Standing.FELL_BACK, Standing.JOINED)
        if kept and not self._aside.holds:
            return self.grant
        wait = patience is None or patience > 0
        bound = None if patience is None else self.settings.wait_timeout or patience
        if self.standing is Standing.PARKED or self._aside.holds:
            try:
                return self._getting.resume(wait, bound)
            except GpuShareError as error:
                if self.settings.fallback is Fallback.ERROR or self._aside.holds:
                    raise
                self._say(f"`{why}` goes on without a GPU (fallback = cpu): {error}")
                return None
        asked = self.wishes.ask()
        if asked.gpus == 0:
            self._holding.visible.hide(children_may_ask=False)
            return None
        try:
            if self._getting.may_join:
                grant = self._getting.join(wait, bound)
            else:
                grant = self._getting.request(asked, wait, bound)
        except GpuShareError as error:
            return self._fall_back(why, error, patience)
        except Exception as error:  # noqa: BLE001 - a bug of ours: the import goes on, safely
            return self._fall_back(why, _internal(error), patience)
        if grant is not None and self.standing is Standing.HELD:
            self._announce(grant)
        return grant

    def _announce(self, grant: Grant) -> None:
        """Say what was granted, once: nothing shows that it is not the CPU."""
        announces, self._getting.announces = self._getting.announces, False
        if announces and self.settings.show_grant:
            self._note(f"{grant.words} (simulated)" if self._is_simulated() else grant.words)

    # -- what people and programs call -------------------------------------------------

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

        ``cancelled()`` is asked now and then, and ends the wait. What ``ask`` leaves open comes
        from the settings, not from earlier requests.

        A process has one lease at a time. One that is held or parked already is kept if it is
        what is asked; else it ends when the other one is granted, and not before. Raises
        :class:`GpuShareError`, :class:`KeyboardInterrupt`.
        """
        wanted = self.wishes.ask(ask)
        with self._holding.lock:
            self._holding.settle()
            self._getting.cancelled = cancelled
            try:
                return self._getting.request(wanted, wait, wait_timeout)
            finally:
                self._getting.cancelled = None

    def release(self) -> str | None:
        """Give the lease back; the lease's state then, or ``None`` if there was none.

        Raises :class:`GpuShareError`.
        """
        state = self._giving.release()
        self.again.given_back()
        return state

    def go_without(self) -> str | None:
        """Give the lease back, and ask for none until a request does; as `release`."""
        state = self.release()
        self.wishes.set_ask(Ask(gpus=0))
        with self._holding.lock:
            self._holding.visible.hide(children_may_ask=False)
        return state

    def park(self) -> Given | None:
        """Give the GPUs back and keep the variables; ``None``: there is nothing to give.

        Raises :class:`GpuShareError` when this process cannot.
        """
        return self._giving.park()

    def call(self, method: Method, **params: Any) -> Any:
        """Any call; its result. Raises :class:`GpuShareError`."""
        return self._line.any().call(method, again=True, **params)

    def status(self) -> dict[str, Any]:
        """The status document. Raises :class:`GpuShareError`."""
        result = self.call(Method.STATUS)
        if not isinstance(result, dict):
            raise NodeUnavailable("The node manager's status cannot be read.")
        return result

    def set_activity(self, busy: bool) -> None:
        """Tell what the task does. Never waits, never raises."""
        self._giving.set_busy(busy)
        if not busy:
            self.turns.rest()
        grant, session = self.grant, self._line.session
        if grant is not None and session is not None and self.standing is Standing.HELD:
            session.set_activity(grant.lease, busy)
            if not busy:
                self._giving.tell_ability(session, grant.lease)

    def stops_by(self, stopping: Stopping) -> None:
        """This process said how its state is saved: from now on it may be asked to stop."""
        if self._stopping is not stopping:
            self._stopping = self._getting.stopping = stopping
            stopping.said, stopping.kept = self._tell_stoppable, self._keeps_on
            stopping.ended = self.close
            self._frameworks.step_ended = stopping.step_ended
            self.turns.is_to_stop = stopping.while_waiting
        self._getting.connect_gates()

    def _tell_stoppable(self) -> None:
        """Of its own lease, or of that of `run`, which passes the ask on to this process."""
        grant, session, stopping = self.grant, self._line.session, self._stopping
        ours = self.standing is Standing.HELD
        ours = ours or (self.standing is Standing.JOINED and is_run(self._environ))
        if grant and session and stopping and ours:
            session.tell_surely(Method.STOPPABLE, lease=grant.lease, can=stopping.can)

    def _tell_progress(self, done: int, total: int | None, seconds: float) -> None:
        """Of ranks that compute together one speaks for all."""
        grant, session = self.grant, self._line.session
        if grant is None or session is None or self._environ.get("RANK", "0") != "0":
            return
        told = {"done": done, "total": total, "seconds": seconds}
        session.tell(Method.PROGRESS, lease=grant.lease, **told)

    def _keeps_on(self, why: str) -> None:
        grant, session = self.grant, self._line.session
        if grant is not None and session is not None and self.standing is not Standing.JOINED:
            session.tell_surely(Method.KEPT, lease=grant.lease, reason=why[:1000])

    def close(self) -> None:
        """The process ends: give back what is ours. The node manager sees it die anyway."""
        self.progress.over()
        self._line.hang_up(None if self.standing is Standing.JOINED else self.lease)

    def abandon_in_child(self, *, is_member: bool) -> Broker:
        """After a fork: a broker for the child, whose parent's lease is its own, too.

        ``is_member``: it may outlive its parent, so the node manager is to know of it.
        """
        child = Broker(
            self._environ,
            self._traits,
            make_display=self._make_display,
            say=self._say.at_once,
            caller=self._caller,
        )
        child.wishes.inherit(self.wishes)
        child._getting.announces = False
        child._frameworks.inherit(self._frameworks)
        child._holding.inherit(self._holding)
        if is_member:
            child._getting.become_member()
        # What was copied from the parent still asks us: a gate that is closed there is none here.
        self._line.abandon_in_child()
        return child

    # -- getting again ---------------------------------------------------------------

    def resume(self) -> Grant | None:
        """Get the GPUs of a parked lease and all its memory back; waits in the queue.

        ``None``: no lease was parked. Raises :class:`GpuShareError`.
        """
        with self._holding.lock:
            self._holding.settle()
            if self.standing is Standing.PARKED or self._aside.holds:
                return self._getting.resume()
            return None

    def pin(self, seconds: float | None) -> tuple[float, float] | None:
        """Keep the GPUs while idle: for ``seconds``, or the usual time.

        Returns the seconds for which they are kept now (0: as long as the usual rule says), and
        those for which its turn is not asked back; ``None``: this process holds no GPU. Raises
        :class:`GpuShareError` beyond the administrator's limit.
        """
        grant = self.grant
        if grant is None:
            return None
        result = self.call(Method.PIN, lease=grant.lease, seconds=seconds)
        told = result if isinstance(result, dict) else {}
        kept, turn = told.get("seconds"), told.get("turn_seconds")
        return (
            float(kept) if isinstance(kept, int | float) else 0.0,
            float(turn) if isinstance(turn, int | float) else 0.0,
        )

    def _offer_lock(self) -> None:
        """Where the node manager allows it, the driver's lock is the gate of a task without one."""
        session = self._line.session
        if session is None or not session.hello.get("turn_lock"):
            return
        if self.turns.locking is None:
            from ..memory.locking import Locking

            self.turns.locking = Locking(
                lambda: self._line.session,
                lambda: self.grant if self.standing is Standing.HELD else None,
                lock=self._aside.lock,
                against=self._aside.against_lock,
                has_gates=lambda: self.turns.has_gates,
                may_use_cuda=cuda_loaded,
                uses_cuda=self._aside.uses_cuda,
                is_busy=lambda: self._giving.busy is not False,
                say=self._say,
            )
        self.turns.locking.offer()

    def _limit_turn(self, limits: Mapping[str, int]) -> None:
        """In its turn a task may use what it keeps and the common region, by UUID in bytes."""

        def now() -> Grant | None:
            grant = self.grant
            if grant is None:
                return None
            base = self._limits.of(grant) or grant
            gpus = tuple(
                now._replace(memory=limits[own.uuid])
                if limits.get(own.uuid, own.memory) < own.memory
                else now
                for own, now in zip(grant.gpus, base.gpus, strict=True)
            )
            return base._replace(gpus=gpus)

        self._frameworks.limit(now)

    def _answer_limits(self, lease: str, limits: Mapping[str, int], live: bool) -> None:
        if self._line.session is not None:
            gpus = [{"uuid": uuid, "memory": size} for uuid, size in limits.items()]
            self._line.session.gave(Give.LIFT, lease, limits=gpus, live=live)

    def _lost(self, lease: str, message: str, released: bool) -> None:
        """Called on the session's thread. What is said may be read in a later cell only."""
        was_parked = self._holding.parked == lease
        if not self._holding.lose(lease, message):
            return
        # A person who released it between two cells knows; the next cell shows what it asks for.
        say = self._say.now if released and not cuda_started() else self._say
        if was_parked:
            if self._aside.holds:
                message += " Its GPU memory stays in host memory until this kernel has a new lease."
            say(f"The parked GPU lease of this process has ended: {message}")
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
            what = display.advice(self.again.words("A"), again)
        say(f"The GPU lease of this process has ended: {message} {what}")
        self.again.given_back()

    def _noticed(self, message: Notification) -> None:
        """Called on the session's thread."""
        recall, params, grant = read_recall(message), message.params, self.grant
        if recall is not None and recall.give in MEMORY and not recall.gate:
            self._giving.asked_back(recall)
        elif params.get("lease") not in (None, self.lease):
            return
        elif message.notice is Notice.GRANTED:
            stopping = self._stopping
            if self._holding.take_over(str(params["lease"])) and stopping is not None:
                self._tell_stoppable()
        elif recall is not None and grant is not None:
            self._recalled(recall, grant)
        elif message.notice is Notice.TURN and grant is not None:
            shared = params.get("quantum") is not None
            limits = limits_of(read_needs(params))
            self.turns.given(limits, is_shared=shared, number=read_number(params))
        elif message.notice is Notice.PROMISE:
            self.promises.heard(params)
        elif message.notice is Notice.PARK_WARNING:
            self._say.now(str(params.get("message", "This kernel is idle.")))
        elif message.notice not in _SAID_ELSEWHERE and (said := params.get("message")):
            self._say(str(said))  # also what a newer node manager tells people

    def _recalled(self, recall: Recall, grant: Grant) -> None:
        """Give what a task that may compute can give, or stop. Called on the session's thread."""
        if recall.give is Give.STOP:
            if self._stopping is not None:
                self._stopping.wanted(recall.seconds)
        elif recall.give in MEMORY:
            self.turns.asked_for_memory(recall)
        elif recall.give is Give.LIFT:
            self._limits.changed(grant, recall.limits)
        elif recall.gate:
            self.turns.recalled(recall.limits, number=recall.number)
            if self._giving.busy is False:  # it comes to no end of a step
                self._worker.told(recall.give, partial(self._empty, recall, self.turns.clear_idle))
        elif recall.give is Give.CACHE:
            self._worker.told(
                Give.CACHE, partial(self._empty, recall, self._frameworks.empty_caches)
            )

    def _empty(self, recall: Recall, empty: Callable[[], object]) -> None:
        empty()
        if recall.give is Give.CACHE and self._line.session is not None:
            self._line.session.gave(Give.CACHE, recall.lease)

    def _fall_back(self, why: str, error: GpuShareError, patience: float | None) -> Grant | None:
        if isinstance(error, NobodyThere) and not self._line.is_promised:
            self._line.desert()
            return None
        if self.settings.fallback is Fallback.ERROR:
            raise error
        if patience != 0:  # else nothing was waited for, and the next use may ask again
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


def _internal(error: Exception) -> NodeUnavailable:
    return NodeUnavailable(
        f"jupyter_gpushare failed by an error of its own ({type(error).__name__}: {error}). "
        "`jupyter gpushare doctor` may know more; please report it.",
        Reason.UNAVAILABLE,
    )
