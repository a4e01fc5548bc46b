"""One process's dealings with the node manager: what it does, and who must hear of what.

`Broker` makes the parts and has no thought of its own: each part gets what it needs when it is
made, so the order below is the order in which they depend on each other. From the bottom: how the
process behaves (`Preferences`), its connection (`Line`), what it holds (`OwnLease`), what its
frameworks are and what they were told (`Frameworks`, `Limits`), its memory while the GPUs are given
back (`ParkedMemory`, `Parking`), its turns (`Gates`, `Turns`), how it gets GPUs (`Getting`), and
when it does so by itself (`Automatic`, `Cells`).

Two sides meet here. People, programs and the kernel call down, on their own threads. The node
manager's word comes up, on the session's thread (`Broker._lost`, `Broker._noticed`), and is handed
to the part that it is for. That thread gives the signs of life, so nothing that it calls may wait.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from ...protocol.messages import Method, Notice, Notification
from ..memory.frameworks import Frameworks
from ..memory.gates import Gates
from ..memory.limits import Limits
from ..memory.moving import MovingAtGates
from ..memory.parkedmemory import ParkedMemory
from ..memory.parking import Parking
from ..memory.rungs import Given
from ..memory.stopping import Place, Stopping
from ..memory.turns import Turns
from ..memory.worker import Worker
from ..session.activity import Activity
from ..session.caller import this_caller
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.preferences import Preferences
from ..session.progress import Progress, Source
from ..session.task import running_kernel
from ..session.visible import cuda_started
from ..words import display
from ..words.callers import Caller
from ..words.grant import Grant
from ..words.recalls import (
    MEMORY,
    Give,
    Recall,
    limits_of,
    read_needs,
    read_number,
    read_recall,
    told_seconds,
)
from ..words.settings import Ask, Naming, Settings
from .automatic import Automatic
from .cells import Cells
from .getting import Getting
from .promises import Promises

if TYPE_CHECKING:
    from ..memory.lasterror import LastError

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
        traits: Callable[[], Settings | None] = Settings,
        *,
        make_display: Callable[[], display.Display] = display.waiting_display,
        say: Callable[[str], None] = display.say,
        caller: Callable[[], Caller] = this_caller,
    ) -> None:
        self._environ = environ
        self._caller = caller
        self._make_display = make_display
        self._traits = traits
        self.activity = Activity()
        self._say = say = display.Voice(say, self.activity.no_code_runs)
        self.preferences = Preferences(environ, traits, say)
        self.line = Line(environ, self.preferences, on_lost=self._lost, on_notice=self._noticed)
        self.own = own = OwnLease(
            environ, lambda: self.preferences.last.visible_devices is Naming.INDICES
        )
        self.progress = Progress(self.line, own, environ)
        self._frameworks = Frameworks(say)
        self._worker = Worker()
        self._limits = Limits(self._worker, self._frameworks, self.line, own)
        self._memory = ParkedMemory(own, self._frameworks, environ, say)
        self._parking = Parking(
            own, self._frameworks, self._memory, self._worker, self.line, self.activity, say
        )
        self.stopping = Stopping(self.line, own, self.progress, environ)
        gates = Gates(own, self._frameworks, self.activity, self.progress, self.stopping, say)
        self.turns = Turns(
            self.line,
            own,
            gates,
            self._limits,
            self.stopping,
            self.progress,
            environ,
            say=say,
        )
        self.getting = Getting(
            environ,
            self.preferences,
            self.line,
            own,
            self._frameworks,
            self._limits,
            self._memory,
            self._parking,
            self.activity,
            self.stopping,
            gates,
            self.turns,
            make_display=make_display,
            say=say,
        )
        self._moving = MovingAtGates(
            own,
            self._parking,
            self._memory,
            self.line,
            partial(self.getting.resume, wait_timeout=0.0),
            say,
        )
        self.automatic = Automatic(
            self.preferences,
            self.line,
            own,
            self._frameworks,
            self._limits,
            self.getting,
            caller,
            say,
        )
        self.cells = Cells(
            own,
            self._memory,
            self._parking,
            self.activity,
            self.progress,
            self.turns,
            self.getting,
            self.automatic,
            say,
        )
        self.promises = Promises(
            self.line.any,
            lambda: self.lease if self.state is OwnState.HELD else None,
            begins=self.progress.begins,
            ends=self.progress.over,
            what=lambda: "This program" if running_kernel() is None else "This cell",
            say=say.now,
        )

    @property
    def state(self) -> OwnState:
        """The state of this process's lease."""
        return self.own.state

    @property
    def grant(self) -> Grant | None:
        """The grant that this process has now."""
        return self.own.grant

    @property
    def lease(self) -> str | None:
        """The lease of this process, held or parked."""
        return self.own.lease

    @cached_property
    def last_error(self) -> LastError:
        """The last error that a person was shown, and what it keeps."""
        from ..memory.lasterror import LastError

        return LastError(
            self._frameworks, lambda: self.preferences.settings.after_error, display.note
        )

    @cached_property
    def _may_wait(self) -> Callable[[], bool]:
        from ..adapters.jax import may_wait

        return may_wait

    def before_call(self) -> None:
        """A gate before a call, but not where JAX traces, in another thread, or of several.

        Where this program can be stopped, such a call counts as a step's end.
        """
        if not self.activity.runs_here() or not self._may_wait():
            return
        self.progress.ended(Source.CALL)
        self.stopping.step_ended()
        if self.turns.needs_gate:
            self.turns.checkpoint(Place.STEP_END)

    # -- what people and programs call -------------------------------------------------

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
        wanted = self.preferences.ask(ask)
        with self.own.lock:
            self.own.settle()
            self.getting.cancelled = cancelled
            try:
                return self.getting.request(wanted, wait, wait_timeout)
            finally:
                self.getting.cancelled = None

    def release(self) -> str | None:
        """Give the lease back; the lease's state then, or ``None`` if there was none.

        Raises :class:`GpuShareError`.
        """
        state = self._parking.release()
        self.automatic.given_back()
        return state

    def go_without(self) -> str | None:
        """Give the lease back, and ask for none until a request does; as `release`."""
        state = self.release()
        self.preferences.set_ask(Ask(gpus=0))
        with self.own.lock:
            self.own.visible.hide(children_may_ask=False)
        return state

    def park(self) -> Given | None:
        """Give the GPUs back and keep the variables; ``None``: there is nothing to give.

        Raises :class:`GpuShareError` when this process cannot.
        """
        return self._parking.park()

    def call(self, method: Method, **params: Any) -> dict[str, Any]:
        """Any call; its result. Raises :class:`GpuShareError`."""
        return self.line.any().call(method, again=True, **params)

    def status(self) -> dict[str, Any]:
        """The status document. Raises :class:`GpuShareError`."""
        return self.call(Method.STATUS)

    def set_activity(self, busy: bool) -> None:
        """Tell what the task does. Never waits, never raises."""
        self.activity.set_busy(busy)
        if not busy:
            self.turns.rest()
        self._parking.tell_activity()

    def stops_by(self, save: Callable[[], object] | None) -> None:
        """From now on ``save()`` saves this program's state; ``None``: it cannot be stopped."""
        self.stopping.by(save)
        if self.line.configured:
            self.getting.connect_gates()

    def close(self) -> None:
        """The process ends: give back what is ours. The node manager sees it die anyway."""
        self.progress.over()
        self.line.hang_up(self.own.ends_with_us)

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
        child.preferences.inherit(self.preferences)
        # The parent has said what it was granted.
        child.getting.announces = False
        child._frameworks.inherit(self._frameworks)
        child.own.inherit(self.own)
        if is_member:
            child.getting.become_member()
        # What was copied from the parent still asks us: a gate that is closed there is none here.
        self.line.abandon_in_child()
        return child

    # -- getting again ---------------------------------------------------------------

    def resume(self) -> Grant | None:
        """Get the GPUs of a parked lease and all its memory back; waits in the queue.

        ``None``: no lease was parked. Raises :class:`GpuShareError`.
        """
        with self.own.lock:
            self.own.settle()
            if self.state is OwnState.PARKED or self._memory.holds:
                return self.getting.resume()
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
        told = self.call(Method.PIN, lease=grant.lease, seconds=seconds)
        return told_seconds(told), told_seconds(told, "turn_seconds")

    def _lost(self, lease: str, message: str, released: bool) -> None:
        """Called on the session's thread. What is said may be read in a later cell only."""
        was_parked = self.own.parked == lease
        if not self.own.lose(lease, message):
            return
        # A person who released it between two cells knows; the next cell shows what it asks for.
        say = self._say.now if released and not cuda_started() else self._say
        if was_parked:
            if self._memory.holds:
                message += " Its GPU memory stays in host memory until this kernel has a new lease."
            # What was said as it was parked came between two cells, and was not shown.
            ended = f"The parked GPU lease of this process has ended: {message}"
            say(f"{self._parking.why} {ended}".strip())
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
            what = display.advice(self.automatic.words("A"), again)
        say(f"The GPU lease of this process has ended: {message} {what}")
        self.automatic.given_back()

    def _noticed(self, message: Notification) -> None:
        """Called on the session's thread."""
        recall, params, grant = read_recall(message), message.params, self.grant
        # Before the look at `grant`: a parked lease may be asked for what it left on its GPUs.
        if recall is not None and recall.give in MEMORY and not recall.gate:
            self._parking.asked_back(recall)
        # Of a lease that was exchanged or given back while this was on its way.
        elif params.get("lease") not in (None, self.lease):
            return
        elif message.notice is Notice.GRANTED:
            if self.own.take_over(str(params["lease"])):
                self.stopping.tell()
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
            self.stopping.wanted(recall.seconds)
        elif recall.give in MEMORY:
            self.turns.asked_for_memory(partial(self._moving.give, recall))
        elif recall.give is Give.LIFT:
            self._limits.changed(grant, recall.limits)
        elif recall.gate:
            self.turns.recalled(recall.limits, number=recall.number)
            if self.activity.busy is False:  # it comes to no end of a step
                self._worker.told(recall.give, partial(self._empty, recall, self.turns.clear_idle))
        elif recall.give is Give.CACHE:
            self._worker.told(
                Give.CACHE, partial(self._empty, recall, self._frameworks.empty_caches)
            )

    def _empty(self, recall: Recall, empty: Callable[[], object]) -> None:
        empty()
        if recall.give is Give.CACHE and self.line.session is not None:
            self.line.session.gave(Give.CACHE, recall.lease)
