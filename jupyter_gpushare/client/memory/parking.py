"""Gives GPUs back, when a person wishes it or the node manager asks an idle process for them.

Released: the lease ends. Parked: the lease goes on without its GPUs, and the variables
are kept. Which threads come here, and which locks they take, is in `session.lease`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from ...figures import format_size
from ...protocol.messages import Method
from ..errors import GpuShareError, LeaseLost
from ..session.activity import Activity
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.session import Session
from ..session.visible import cuda_started
from ..words.display import Voice
from ..words.recalls import Give, Need, Recall
from .frameworks import Frameworks
from .parkedmemory import ParkedMemory
from .rungs import ANY, LEAVE_SOMETHING, Bounds, Given, Movable, Rung
from .worker import Worker

_log = logging.getLogger("jupyter_gpushare")

#: CUDA was never started: it can go on with any GPU.
RELEASED: Final = Given(Rung.RELEASE, movable=Movable.ANY)
#: Bytes that may stay on a GPU when a person parks by hand, as no request says what it needs.
_MAY_STAY: Final = 1024**3
#: Seconds after a training step in which a task is at work though no cell runs.
_A_STEP_IS_WORK: Final = 10.0
#: Seconds that a cell waits for a parking before the person is told, and between two looks.
_QUICK: Final = 1.0
_LOOK: Final = 0.02


class Parking:
    """Releases or parks this process's GPUs."""

    def __init__(
        self,
        own: OwnLease,
        frameworks: Frameworks,
        memory: ParkedMemory,
        worker: Worker,
        line: Line,
        activity: Activity,
        say: Voice,
    ) -> None:
        self._own = own
        self._frameworks = frameworks
        self._memory = memory
        self._worker = worker
        self._line = line
        self._activity = activity
        self._say = say.now
        #: Why it was asked to park last, in sentences for people.
        self.why = ""
        self._told_ability: str | None = None  # of which lease

    # -- a person's wish ------------------------------------------------------------------

    def release(self) -> str | None:
        """End the lease; its state then, or ``None`` if there was none.

        A lease that this process has joined stays its parent's. Raises
        :class:`GpuShareError`.
        """
        own = self._own
        with own.lock:
            own.settle()
            self._memory.must_be_whole()
            if own.state is OwnState.PARKED and own.parked is not None:
                lease = own.parked
                own.drop_parked()
                return self._end(self._line.connect(), lease)
            if own.grant is None:
                return None
            lease, session = own.grant.lease, self._line.session
            joined = own.state is OwnState.JOINED
            own.remember_cuda()
            own.forget()
            if session is not None and not joined:
                return self._end(session, lease)
            if session is not None:
                session.let_go(lease)
            return "joined"

    def _end(self, session: Session, lease: str) -> str:
        # Before the call: where that fails, no sign of life is given any more, and the lease ends
        # by that.
        session.let_go(lease)
        try:
            return str(session.call(Method.RELEASE, lease=lease, again=True).get("state"))
        except LeaseLost:
            return "ended"  # somebody was faster

    def park(self) -> Given | None:
        """Give the GPUs back now and keep the variables; ``None``: there is nothing to give.

        Raises :class:`GpuShareError` when this process cannot.
        """
        own = self._own
        with own.lock:
            own.settle()
            self.why = ""  # its person did
            grant, session = own.grant, self._line.session
            if grant is None or session is None or own.state is not OwnState.HELD:
                return None
            used = self._measured(session, grant.lease)
            needs = [Need(gpu.uuid, _MAY_STAY, used.get(gpu.uuid)) for gpu in grant.gpus]
            if not self._uses_cuda(needs):
                self._parked(session, RELEASED)
                return self._memory.given
            # Only what is idle may move to host memory, and this cell is ours.
            session.call(Method.ACTIVITY, again=True, lease=grant.lease, state="idle")
            own.state = OwnState.PARKING
            try:
                self._give(session, grant.lease, needs)
            finally:
                # It may be parked by now, or lost, which the session's thread notes without the
                # lock.
                if own.state is OwnState.PARKING:
                    own.state = OwnState.HELD
            return self._memory.given

    def step_aside(self) -> None:
        """Park a lease without memory on its GPUs while another lease is asked for."""
        self._parked(self._line.connect(), RELEASED)

    def _measured(self, session: Session, lease: str) -> dict[str, int]:
        """Bytes that were measured of a lease on its GPUs, where they are known."""
        status = session.call(Method.STATUS, again=True)
        for one in status.get("leases", ()):
            if one.get("id") == lease:
                return {
                    str(gpu["uuid"]): int(gpu["measured"])
                    for gpu in one.get("gpus", ())
                    if gpu.get("measured") is not None
                }
        return {}

    # -- the node manager's wish ----------------------------------------------------------

    def asked_back(self, recall: Recall) -> None:
        """The node manager wants the memory of an idle task; on the session's thread."""
        lease, needs = recall.lease, recall.needs
        self.why = recall.message
        own, session = self._own, self._line.session
        # The thread with the lock asks, waits or releases, so we cannot give GPUs back now.
        # No answer is needed: the node manager repeats what it asks for.
        if session is None or not own.lock.acquire(blocking=False):
            return
        try:
            # A cell that begins takes it, too. So it begins before this look, and we see it; or
            # afterwards, and then it sees that the lease is parked, or about to be.
            with self._activity.lock:
                is_new = own.parked != lease
                # There may be memory although the process said that there is none.
                found = not self._memory.holds and any(need.used for need in needs)
                given = self._memory.given.rung
                deeper = not is_new and (given in LEAVE_SOMETHING or found)
                if is_new or deeper:
                    if not self._may_be_taken(lease, is_new=is_new):
                        return
                    ago = self._frameworks.last_step()
                    # A thread that trains between cells would meet tensors without memory.
                    if ago is not None and ago < _A_STEP_IS_WORK:
                        session.tell_surely(
                            Method.KEPT,
                            lease=lease,
                            reason=f"It trains in the background: a step ended {ago:.0f} s ago.",
                        )
                        return
                    if deeper or self._uses_cuda(needs):
                        # It may take long, and this thread gives our signs of life.
                        before, own.state = own.state, OwnState.PARKING
                        try:
                            self._worker.told(recall.give, lambda: self._climb(session, recall))
                        except RuntimeError as error:
                            own.state = before
                            why = f"The thread that parks could not be started ({error})."
                            session.tell_surely(Method.KEPT, lease=lease, reason=why)
                        return
                    self._parked(session, RELEASED)
                else:
                    self._tell_parked(session, lease)
        finally:
            own.lock.release()
        if is_new:
            self._say(
                f"{recall.message} Your variables are kept; the next cell asks for a GPU again."
            )

    def _may_be_taken(self, lease: str, *, is_new: bool) -> bool:
        own = self._own
        ours = own.grant is not None and own.grant.lease == lease
        is_held = ours and own.state is OwnState.HELD
        return self._activity.no_code_runs() and (is_held or not is_new)

    def _climb(self, session: Session, recall: Recall) -> None:
        """Give GPU memory back in the background; a cell that begins meanwhile waits for it."""
        own, lease = self._own, recall.lease
        with own.lock:
            if own.state is not OwnState.PARKING:
                return  # it was lost meanwhile
            before = OwnState.PARKED if own.parked == lease else OwnState.HELD
            try:
                self._give(session, lease, recall.needs)
            except GpuShareError as error:
                session.tell_surely(Method.KEPT, lease=lease, reason=str(error)[:1000])
                return
            except BaseException:
                session.tell_surely(Method.KEPT, lease=lease, reason="Parking failed by a bug.")
                raise
            finally:
                if own.state is OwnState.PARKING:
                    own.state = before
        memory = self._memory.given.memory
        where = f"; {format_size(memory)} are in host memory" if memory else ""
        self._say(
            f"{recall.message} Your variables are kept{where}; the next cell asks for a GPU again."
        )

    def at_gate(self, session: Session, recall: Recall, bounds: Bounds) -> None:
        """Give memory in the midst of a cell, on its thread; the lease is then parked, or kept.

        Call it with `OwnLease.lock`, when the node manager has agreed. Raises nothing.
        """
        own, lease = self._own, recall.lease
        own.state = OwnState.PARKING
        try:
            if self._uses_cuda(recall.needs):
                self._give(session, lease, recall.needs, bounds)
            else:
                self._parked(session, RELEASED)
        except GpuShareError as error:
            self.tell_ability(session, lease, anew=True)
            session.tell_surely(Method.KEPT, lease=lease, reason=str(error)[:1000])
        except Exception:  # noqa: BLE001 - a bug of ours: the user's code goes on
            _log.exception("Memory could not be moved at a gate")
            session.tell_surely(Method.KEPT, lease=lease, reason="Moving failed by a bug.")
        finally:
            if own.state is OwnState.PARKING:
                own.state = OwnState.HELD

    def until_parked(self) -> bool:
        """Wait for a parking that is under way, which is no moment to stop; was it interrupted?

        The person hears of a wait that is not quick.
        """
        interrupted = False
        quick_until: float | None = time.monotonic() + _QUICK
        while self._own.state is OwnState.PARKING:
            try:
                if quick_until is None:
                    with self._own.lock:
                        pass
                elif time.monotonic() < quick_until:
                    # Not by the lock with a timeout: Ctrl-C could come when it was just taken.
                    time.sleep(_LOOK)
                else:
                    quick_until = None
                    self._say("Parking GPU memory; this cell runs when that is done …")
            except KeyboardInterrupt:
                interrupted = True
        return interrupted

    def tell_activity(self) -> None:
        """Tell what this task does, where that is known. Never waits, never raises."""
        busy, grant, session = self._activity.busy, self._own.grant, self._line.session
        is_held = self._own.state is OwnState.HELD
        if busy is not None and grant is not None and session is not None and is_held:
            session.set_activity(grant.lease, busy)
            if not busy:
                self.tell_ability(session, grant.lease)

    def tell_ability(self, session: Session, lease: str, *, anew: bool = False) -> None:
        """Tell once of each lease how far this process could go; ``anew``: again. Never waits."""
        asks = session.hello.get("parks") is True
        # Without CUDA nothing has to be moved, and the probe would start a helper for nothing.
        if asks and (anew or (self._told_ability != lease and cuda_started())):
            self._told_ability = lease

            def tell() -> None:
                rung, why = self._memory.ability()
                session.tell(Method.ABILITY, lease=lease, rung=rung.value, why=why[:1000] or None)

            # The driver's probe takes seconds, and the caller's thread gives the signs of life.
            threading.Thread(target=tell, name="gpushare-ability", daemon=True).start()

    # -- inside -----------------------------------------------------------------------------

    def _give(
        self, session: Session, lease: str, needs: Sequence[Need], bounds: Bounds = ANY
    ) -> None:
        """Give memory back. Raises :class:`GpuShareError` when none can be given."""

        def plan(memory: int) -> None:
            session.call(Method.PARKING, again=True, lease=lease, memory=memory)

        lacked = self._memory.lacks_memory
        try:
            given = self._memory.give(needs, plan, bounds)
        finally:
            # The node manager plans with what was said before, and the room in host memory has
            # changed.
            if lacked or self._memory.lacks_memory:
                self.tell_ability(session, lease, anew=True)
        if self._own.state is not OwnState.LOST:
            self._parked(session, given)

    def _parked(self, session: Session, given: Given) -> None:
        grant = self._own.had
        if grant is None:
            return  # it was lost meanwhile
        self._own.park(grant)
        self._memory.given = given
        self._tell_parked(session, grant.lease)

    def _tell_parked(self, session: Session, lease: str) -> None:
        given = self._memory.given
        session.gave(
            Give.TENSORS,
            lease,
            rung=given.rung.value,
            memory=given.memory,
            movable=given.movable.value,
            seconds=given.seconds,
        )

    def _uses_cuda(self, needs: Sequence[Need]) -> bool:
        """Whether CUDA may run in this process, as far as we can tell."""
        return (
            cuda_started() or any(need.used for need in needs) or bool(self._frameworks.on_gpus())
        )
