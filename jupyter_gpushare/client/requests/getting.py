"""Getting GPUs: a new lease, another one, a parked one's again, or a part in a parent's.

There is one way to GPUs, `Getting.ensure`, for whoever needs some now: the import of a framework,
its first use of CUDA, a cell after a release. What it does depends on what this process holds: it
keeps a grant, resumes a parked lease, joins its parent's lease, or asks for one. Where none is to
be had it falls back to the CPU, or raises, as the settings say. `Getting.request` is the same for a
person who named what is wanted: there is no falling back then.

Every way ends in `Getting._obtain`. It shows the wait, and it must leave nothing half done: a lease
that was granted while Ctrl-C came is given back, and memory that lies in host memory is brought
back before anybody hears of the new GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from ...protocol import names
from ...protocol.errors import Reason
from ...protocol.messages import Method
from ...protocol.sizes import least_of, most_of
from ..adapters import registry
from ..errors import GpuShareError, LeaseLost, NodeUnavailable, QuotaExceeded
from ..memory.frameworks import Frameworks, is_live
from ..memory.gates import Gates
from ..memory.limits import Limits
from ..memory.parkedmemory import ParkedMemory
from ..memory.parking import Parking
from ..memory.stopping import Stopping
from ..memory.turns import Turns
from ..session.activity import Activity
from ..session.code import code_of
from ..session.interrupts import deaf_to_interrupts
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.origin import origin
from ..session.preferences import Preferences
from ..session.session import NobodyThere, Session
from ..session.task import describe_task, is_worker
from ..session.visible import cuda_started
from ..words import display
from ..words.classes import class_of
from ..words.grant import Grant, limits_now, read_grant
from ..words.settings import Ask, Fallback
from ..words.tracebacks import stopped_waiting

#: Waits for an answer; gets what to call with each notification, now and then, and with the
#: seconds that are left while the node manager is away.
_Waits = Callable[
    [Callable[[Mapping[str, Any]], None], Callable[[], None], Callable[[float], None]],
    dict[str, Any],
]


#: Seconds for which a fork waits for a node manager that is away.
_FORK_WAITS: Final = 1.0


class Getting:
    """All of it happens under `OwnLease.lock`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        preferences: Preferences,
        line: Line,
        own: OwnLease,
        frameworks: Frameworks,
        limits: Limits,
        memory: ParkedMemory,
        parking: Parking,
        activity: Activity,
        stopping: Stopping,
        gates: Gates,
        turns: Turns,
        *,
        make_display: Callable[[], display.Display],
        say: Callable[[str], None],
    ) -> None:
        self._environ = environ
        self._preferences = preferences
        self._line = line
        self._own = own
        self._frameworks = frameworks
        self._limits = limits
        self._memory = memory
        self._parking = parking
        self._activity = activity
        self._stopping = stopping
        self._gates = gates
        self._turns = turns
        self._make_display = make_display
        self._say = say
        self._parts: dict[str, int] = {}  # named in the last request that was granted
        #: Ends the wait that is under way when it says so.
        self.cancelled: Callable[[], bool] | None = None
        #: Whether a grant is still to be told of: once a process.
        self.announces = True
        self._told_live: tuple[str, bool] | None = None
        # Our parent's marks; without them this process asks for itself.
        self._parent_lease = environ.get(names.LEASE) if environ.get(names.SECRET) else None
        self._parent_secret = environ.get(names.SECRET)

    @property
    def may_join(self) -> bool:
        """Whether a parent's lease is to be joined first."""
        return self._parent_lease is not None

    def ensure(self, why: str, patience: float | None = None) -> Grant | None:
        """The grant this process has, or gets now; ``None``: run without a GPU.

        It waits ``patience`` seconds in the queue, or as long as the settings say; ``None``: only
        the settings bound it. Raises :class:`GpuShareError` with ``fallback = "error"``.
        """
        if not self._own.lock.acquire(timeout=-1 if patience is None else patience):
            return self._own.grant  # another thread waits for it
        try:
            return self._ensure(why, patience)
        finally:
            self._own.lock.release()

    def _ensure(self, why: str, patience: float | None) -> Grant | None:
        own = self._own
        own.settle()
        has_answer = own.state in (OwnState.FELL_BACK, OwnState.JOINED)
        if (has_answer or own.grant is not None) and not self._memory.holds:
            return own.grant
        settings = self._preferences.settings
        wait = patience is None or patience > 0
        bound = None if patience is None else settings.wait_timeout or patience
        if own.state is OwnState.PARKED or self._memory.holds:
            try:
                return self.resume(wait, bound)
            except GpuShareError as error:
                if settings.fallback is Fallback.ERROR or self._memory.holds:
                    raise
                self._say(f"`{why}` goes on without a GPU (fallback = cpu): {error}")
                return None
        asked = self._preferences.ask()
        if asked.gpus == 0:
            own.visible.hide(children_may_ask=False)
            return None
        try:
            grant = self.join(wait, bound) if self.may_join else self.request(asked, wait, bound)
        except GpuShareError as error:
            return self._fall_back(why, error, patience)
        except Exception as error:  # noqa: BLE001 - a bug of ours: the import goes on, safely
            return self._fall_back(why, _internal(error), patience)
        if grant is not None and own.state is OwnState.HELD:
            self._announce(grant)
        return grant

    def _announce(self, grant: Grant) -> None:
        """Say what was granted, once: nothing shows that it is not the CPU."""
        announces, self.announces = self.announces, False
        if announces and self._preferences.settings.show_grant:
            display.note(f"{grant.words}{', simulated' if self._line.is_simulated() else ''}")

    def _fall_back(self, why: str, error: GpuShareError, patience: float | None) -> Grant | None:
        if isinstance(error, NobodyThere) and not self._line.is_promised:
            self._line.desert()
            return None
        if self._preferences.settings.fallback is Fallback.ERROR:
            raise error
        if patience != 0:  # else nothing was waited for, and the next use may ask again
            self._own.state = OwnState.FELL_BACK
            self._own.visible.hide(children_may_ask=False)
        self._say(
            f"`{why}` goes on without a GPU (fallback = cpu): {error} "
            + display.advice(
                "`%gpushare request` tries again, as long as CUDA is not used.",
                "Starting the program again tries again; with JUPYTER_GPUSHARE_FALLBACK=error "
                "it would stop here.",
            )
        )
        return None

    def request(self, wanted: Ask, wait: bool = True, wait_timeout: float | None = None) -> Grant:
        """What is held already, if it is what is asked; else another lease for it."""
        had = self._own.had
        if had is not None and wanted.parts in ({}, self._parts) and _is_what_is_asked(had, wanted):
            away = self._own.grant is None or self._memory.holds
            return self.resume(wait, wait_timeout) if away else had
        self._memory.must_be_whole()
        if had is not None:
            return self._exchange(wanted, wait, wait_timeout)
        return self._ask_node(wanted, wait, wait_timeout)

    def join(self, wait: bool = True, wait_timeout: float | None = None) -> Grant | None:
        """Join the parent's lease; if it has ended, ask for a lease of our own."""
        lease, secret = self._parent_lease or "", self._parent_secret or ""
        try:
            session = self._line.any()
            shown = {"lease": lease, "secret": secret, "worker": is_worker()}
            result = session.call(Method.ATTACH, again=True, **shown)
        except NodeUnavailable:
            if not self._own.visible.names_gpus:
                raise
            # Our parent holds them, whether or not the node manager can be asked just now.
            self._own.state = OwnState.JOINED
            return None
        except LeaseLost:
            result = None
        self._parent_lease = self._parent_secret = None
        # A lease that waits for GPUs itself has none to share.
        if result is None or result.get("state") in ("queued", "parked"):
            return self.request(self._preferences.ask_as_known(), wait, wait_timeout)
        grant = self._own.join(read_grant(result))
        session.hold(lease, secret)
        if self._stopping.can:
            self._stopping.tell()
        self.tell_frameworks()
        return grant

    def become_member(self) -> None:
        """Join the parent's lease after a fork, where the node manager is there to hear of it."""
        lease, secret = self._parent_lease or "", self._parent_secret or ""
        with suppress(GpuShareError):
            session = self._line.connect(_FORK_WAITS)
            session.call(Method.ATTACH, lease=lease, secret=secret)
            session.hold(lease, secret)
            self._parent_lease = self._parent_secret = None

    def _ask_node(self, ask: Ask, wait: bool, wait_timeout: float | None) -> Grant:
        session = self._line.any()
        params: dict[str, Any] = {
            "request_id": os.urandom(16).hex(),
            "task": describe_task(self._preferences.told_environ()),
            "gpus": ask.gpus,
            **ask.sizes,
            "priority_class": ask.priority_class,
            "looks": None if ask.priority_class else class_of(origin(self._environ)),
            "stops": self._stopping.says,
            "wait": wait,
            **ask.parts,
            "reserve": ask.reserve,
            "live": self._frameworks.live,
            "code": code_of(self._preferences.told_environ()),
        }
        bound = self._preferences.last.wait_timeout if wait_timeout is None else wait_timeout

        def leave(lease: str) -> None:
            session.let_go(lease)
            session.tell_surely(Method.RELEASE, lease=lease)

        grant = self._obtain(
            session,
            lambda queued, waiting, away: session.request(params, queued, waiting, bound, away),
            leave,
            of_quota=isinstance(ask.gpus, str),
        )
        self._parts = ask.parts
        return grant

    def _obtain(
        self,
        session: Session,
        ask: _Waits,
        leave: Callable[[str], None],
        *,
        of_quota: bool = False,
    ) -> Grant:
        """Show the wait while ``ask`` waits, and take what it brings, or ``leave`` that lease.

        ``of_quota``: all that the quota allows was asked. The lease itself has a number.
        """
        shown = self._make_display()
        last: dict[str, Any] = {}

        def queued(notice: Mapping[str, Any]) -> None:
            last.update(notice)
            shown.update(notice)

        def waiting() -> None:
            if self.cancelled is not None and self.cancelled():
                raise GpuShareError("Nobody waits for the GPU any more: the wait was cancelled.")
            self._may_stop_here()
            if last:
                shown.update(last)

        def away(left: float) -> None:
            self._may_stop_here()
            shown.away(left)

        result: dict[str, Any] = {}
        is_over = False
        try:
            result = ask(queued, waiting, away)
            # Stopped between the node manager's word and ours, nobody would have the lease.
            with deaf_to_interrupts():
                grant = self._take(session, {**result, "of_quota": of_quota})
                is_over = True
                if shown.shown_at is not None and shown.done(f"Granted: {grant.words}."):
                    self.announces = False
        except BaseException as error:
            if not is_over:
                shown.done(None)
            if not result and isinstance(error, KeyboardInterrupt):
                stopped_waiting(error, "you stopped waiting for GPUs.")
            elif result and (self._own.grant is None or self._own.grant.lease != result["lease"]):
                with deaf_to_interrupts():
                    leave(str(result["lease"]))
            raise
        self._settle_in(grant)
        return grant

    def _may_stop_here(self) -> None:
        """Stop in the queue, if that is wanted and nothing that the program saves is elsewhere."""
        if not self._memory.holds:
            self._stopping.in_queue()

    def resume(self, wait: bool = True, wait_timeout: float | None = None) -> Grant:
        """Resume the parked lease. Without ``wait`` only if that is possible at once."""
        lease, had = self._own.parked, self._own.had
        if lease is None and self._own.grant is not None:
            self._settle_in(self._own.grant)  # it has its GPUs, and failed the first time
            return self._own.grant
        if lease is None:
            return self._ask_node(self._preferences.ask(), wait, wait_timeout)
        session = self._line.any()
        bound = self._preferences.settings.wait_timeout if wait_timeout is None else wait_timeout
        try:
            return self._obtain(
                session,
                lambda queued, waiting, away: session.resume(
                    lease, queued, waiting, bound, away, wait=wait
                ),
                lambda lease: session.tell_surely(Method.PARKED, lease=lease),
                of_quota=had is not None and had.of_quota,
            )
        except LeaseLost:
            # It ended while it was parked; nothing was lost but the place.
            self._own.drop_parked()
            return self._ask_node(self._preferences.ask(), wait, wait_timeout)

    def _take(self, session: Session, result: Mapping[str, Any]) -> Grant:
        grant = read_grant(result)
        self._limits.forget()
        before, was = self._own.had, self._own.state
        replaced = self._own.take(grant, str(result.get("secret", "")))
        if not session.holds(grant.lease):
            # Its end was told between the grant and now, when it was not known to be ours.
            message = "The GPU lease ended as soon as it was granted."
            self._own.lose(grant.lease, message)
            self._own.settle()
            if before is not None and was is not OwnState.JOINED and before.lease != grant.lease:
                self._own.park(before)
                session.tell_surely(Method.PARKED, lease=before.lease)
            raise LeaseLost(message, Reason.UNKNOWN_LEASE)
        if before is not None and before.lease != grant.lease:
            session.let_go(before.lease)
            if was is not OwnState.JOINED:
                session.tell_surely(Method.RELEASE, lease=before.lease)
        limits = limits_now(result)
        if limits:  # the node manager lifts a task at once that got less than its quota gives
            self._limits.changed(grant, limits)
        self._memory.granted(session)
        if replaced is not None:
            more = display.advice("use `%gpushare request --gpus N`", "set JUPYTER_GPUSHARE_GPUS")
            self._preferences.say_once(
                f"CUDA_VISIBLE_DEVICES was {replaced!r}; it now names the GPUs of this task's "
                f"lease. For more GPUs {more}."
            )
        return grant

    def _settle_in(self, grant: Grant) -> None:
        with deaf_to_interrupts():  # else limits or gates could be those of the GPUs before
            if self._memory.holds:
                # Before anything else here calls CUDA, which blocks until then.
                self._memory.bring_back(grant, self._line.session)
            self._frameworks.look_around()
            if self._own.cuda_had != self._own.gpus and cuda_started():
                self._say(
                    "CUDA was started in this process before this lease was granted, and keeps the "
                    "GPUs it had. Restart the kernel (or the program) to use the lease's GPUs."
                )
            self.tell_frameworks()
            if self._activity.busy is False:
                self._turns.rest()
            self._parking.tell_activity()

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
        if self._own.state is not OwnState.HELD:
            return self._ask_node(wanted, wait, wait_timeout)
        try:
            return self._ask_node(wanted, False, None)
        except QuotaExceeded as error:
            if error.reason is not Reason.NO_RESOURCES:
                raise
        self._parking.step_aside()
        try:
            return self._ask_node(wanted, wait, wait_timeout)
        except BaseException:
            with suppress(GpuShareError):
                if self._own.parked is not None:
                    self.resume(wait=False)
            raise

    def tell_frameworks(self) -> None:
        """The frameworks of this process hear what they may use now."""
        self._frameworks.tell(self.grant_for)
        self.tell_live()
        self.connect_gates()

    def connect_gates(self) -> None:
        """From now on this process stops at its gates, or at those that all ranks have together."""
        state = self._own.state
        if state in (OwnState.JOINED, OwnState.HELD) or self._stopping.says is not None:
            self._gates.connect(self._turns)
            if state is not OwnState.JOINED:
                self._turns.offer_lock(self._memory, self._activity)

    def tell_live(self) -> None:
        """Whether limits can change here, where the node manager lets a reservation follow."""
        grant, live = self._own.grant, self._frameworks.live
        if grant is None or live is None or not (grant.follows or grant.memory_most):
            return
        # To a range all processes of a lease keep, and each that can change its limit says so.
        speaks = self._own.state is OwnState.HELD or (grant.memory_most and live)
        if self._told_live != (grant.lease, live) and speaks:
            self._told_live = (grant.lease, live)
            self._limits.answer(grant.lease, {}, live)

    def grant_for(self, adapter: registry.Adapter) -> Grant | None:
        """The grant for one framework: its lifted limit counts only if it can be lowered again."""
        return self._limits.of(self._own.grant) if is_live(adapter) else self._own.grant


def _internal(error: Exception) -> NodeUnavailable:
    return NodeUnavailable(
        f"jupyter_gpushare failed by an error of its own ({type(error).__name__}: {error}). "
        "`jupyter gpushare doctor` may know more; please report it.",
        Reason.UNAVAILABLE,
    )


def _is_what_is_asked(grant: Grant, ask: Ask) -> bool:
    least = least_of(ask.memory)
    enough = least is None or all(gpu.memory == least for gpu in grant.gpus)
    enough = enough and (ask.memory is None or grant.memory_most == most_of(ask.memory))
    if grant.follows and ask.memory is None and ask.reserve == "whole":
        return False
    if isinstance(ask.gpus, str):
        return enough and grant.of_quota
    return enough and len(grant.gpus) == (1 if ask.gpus is None else ask.gpus)
