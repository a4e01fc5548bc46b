"""Gives a program's GPU memory back when the node manager asks for it, and has it again.

A model server, an R kernel, a simulation cannot ask for a GPU, and do not hear that somebody else
needs theirs. So a process of ours, the *keeper*, holds the lease for them, and parks all of their
processes by the ladder that parks a notebook (`client/memory/ladder.py`): by the program's own
sleep where it has one, by the driver's checkpoint of the whole tree, and, where its owner allows
that, by ending the program and starting it again.

Who uses the program says when it works: `begins` and `ends` around each request, and `wake` where
`begins` says that it is not awake. Nothing is taken from it in between. A program that nobody
speaks for (`run --park`) never begins anything; there the node manager measures whether it rests.

Three kinds of threads come here: the session's, which never waits; one for each recall, that may
take minutes; and those that wait for `wake`. `_lock` is held for an instant, only to look at the
state and to change it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from ..client.adapters.parkers.base import Parker
from ..client.errors import GpuShareError, LeaseLost
from ..client.memory.ladder import Ladder
from ..client.memory.rungs import (
    LEAVE_SOMETHING,
    Given,
    Movable,
    NeverBroughtBack,
    ProcessLost,
    Rung,
)
from ..client.memory.worker import Worker
from ..client.words.recalls import Give, Recall
from ..protocol.messages import Method
from .holding import Holding
from .tree import KeptTree


class Rest(Enum):
    """Whether the program may use its GPUs."""

    AWAKE = "awake"
    GOING = "going"
    ASLEEP = "asleep"
    WAKING = "waking"
    ENDED = "ended"


MOVES: Final[Mapping[Rest, frozenset[Rest]]] = {
    Rest.AWAKE: frozenset({Rest.GOING, Rest.ASLEEP, Rest.ENDED}),
    Rest.GOING: frozenset({Rest.AWAKE, Rest.ASLEEP, Rest.ENDED}),
    Rest.ASLEEP: frozenset({Rest.GOING, Rest.WAKING, Rest.ENDED}),
    Rest.WAKING: frozenset({Rest.AWAKE, Rest.ASLEEP, Rest.ENDED}),
    Rest.ENDED: frozenset(),
}


class NobodyWaits(GpuShareError):
    """Whoever wanted the program to wake has gone."""


class Keeper:
    """Parks a program, and wakes it. From any thread.

    ``request`` is what is asked for where its lease has ended. ``on_rest`` is called after each
    change, on the thread that made it; it must not wait.
    """

    def __init__(
        self,
        holding: Holding,
        request: Mapping[str, Any],
        ladder: Ladder,
        program: KeptTree,
        *,
        on_rest: Callable[[Rest], None] = lambda rest: None,
        say: Callable[[str], None],
    ) -> None:
        self._holding = holding
        self._request = request
        self._ladder = ladder
        self._program = program
        self._on_rest = on_rest
        self._say = say
        # Its lock may be taken again by the thread that has it: `asked` moves the state under it.
        self._lock = threading.Condition()
        self._wakes = threading.Lock()  # one thread wakes it, the others wait for that
        self._worker = Worker()
        #: What has begun, and has not ended.
        self.under_way = 0
        self._given = Given(Rung.RELEASE)  # what was done last
        self._had: tuple[str, ...] = ()  # UUIDs of the GPUs that its memory came from
        self._is_granted = False  # it has its GPUs again, and its memory is not back
        self._runs = True
        #: Changed by `_move` only.
        self.rest = Rest.AWAKE

    def succeeds(self, *, holds: bool, checkpointed: bool, moved: Sequence[Parker] = ()) -> None:
        """The program was kept by another process, which was killed: how that left it.

        ``holds``: the lease has its GPUs. Call it before anything else.
        """
        self._ladder.found(checkpointed, moved)
        if checkpointed or moved or not holds:
            grant = self._holding.grant
            self._had = () if grant is None else tuple(gpu.uuid for gpu in grant.gpus)
            self._given = Given(Rung.DRIVER if checkpointed else Rung.STORAGE)
            self._is_granted = holds
            self._move(Rest.ASLEEP)
        elif (lease := self._holding.lease) is not None:
            # That keeper may have been killed before it could tell that all is back.
            self._holding.session.tell_surely(Method.RESTORED, lease=lease, seconds=None)

    # -- who uses the program ----------------------------------------------------------

    def begins(self) -> bool:
        """Something begins for which the program must be awake, until `ends`. Never waits.

        Returns whether it is; if not, nothing has begun, and `wake` comes first.
        """
        with self._lock:
            if self.rest is not Rest.AWAKE:
                return False
            self.under_way += 1
            return True

    def ends(self) -> None:
        """What had begun by `begins` has ended."""
        with self._lock:
            self.under_way -= 1

    def set_busy(self, busy: bool) -> None:
        """Tell the node manager whether the program works. Never waits."""
        if (lease := self._holding.lease) is not None:
            self._holding.session.set_activity(lease, busy)

    def wake(
        self,
        on_queued: Callable[[Mapping[str, Any]], None] = lambda news: None,
        cancelled: Callable[[], bool] = lambda: False,
        timeout: float = 0.0,
        *,
        wait: bool = True,
    ) -> None:
        """Have the GPUs and the memory again; waits in the queue, ``timeout`` seconds (0: ever).

        Without ``wait`` only if that is possible at once, else :class:`NotGranted`.
        ``cancelled()`` is asked some times a second, and ends the wait. Several may call; one
        does it. Raises :class:`GpuShareError`; the program then sleeps on.
        """
        with self._wakes:
            with self._lock:
                # What is on its way out cannot be turned round: it is woken when it is there.
                self._lock.wait_for(lambda: self.rest is not Rest.GOING)
                if self.rest is Rest.AWAKE:
                    return
                if self.rest is Rest.ENDED:
                    raise LeaseLost("The program has ended.")
                self._move(Rest.WAKING)
            after = Rest.ASLEEP
            try:
                if not self._is_granted:
                    self._have_gpus(on_queued, cancelled, timeout, wait)
                    self._is_granted = True
                self._bring_back()
                after = Rest.AWAKE
            except ProcessLost:
                after = Rest.ENDED
                raise
            finally:
                if after is not Rest.AWAKE:
                    self._give_up()
                # Ended by `_bring_back`, and not to be started again: nobody need try any more.
                ends = not self._runs and not self._program.restarts
                self._move(Rest.ENDED if ends else after)

    def _give_up(self) -> None:
        """It did not wake: others may have its GPUs until it is tried again."""
        if self._is_granted and (lease := self._holding.lease) is not None:
            self._tell_given(lease)
        self._is_granted = False

    def _have_gpus(
        self,
        on_queued: Callable[[Mapping[str, Any]], None],
        cancelled: Callable[[], bool],
        timeout: float,
        wait: bool,
    ) -> None:
        holding = self._holding

        def waiting() -> None:
            if cancelled():
                raise NobodyWaits("Nobody waits for it any more.")

        if holding.lease is not None:
            try:
                holding.take(
                    holding.session.resume(
                        holding.lease,
                        on_queued,
                        waiting,
                        timeout,
                        lambda _left: waiting(),
                        wait=wait,
                    )
                )
                return
            except LeaseLost:
                holding.forget()  # it ended while it was parked; nothing was lost but the place
        asked = {**self._request, "wait": wait}
        holding.ask_for(asked, timeout, on_queued, waiting, lambda _left: waiting())

    def _bring_back(self) -> None:
        """Raises :class:`GpuShareError`; :class:`ProcessLost` where the program is no more."""
        grant, seconds = self._holding.grant, None
        if grant is None:
            raise LeaseLost("The lease ended before the program was awake.")
        now = tuple(gpu.uuid for gpu in grant.gpus)
        if self._runs:
            moved = {old: new for old, new in zip(self._had, now, strict=False) if old != new}
            try:
                seconds = self._ladder.bring_back(moved)
            except (ProcessLost, NeverBroughtBack):
                if not self._program.restarts:
                    raise
                self._stop()
            if self._program.is_damaged:
                self._stop()
        if not self._runs:
            try:
                self._program.start()
            except OSError as error:
                raise GpuShareError(f"The program cannot be started again: {error}") from error
            self._runs = True
        self._holding.session.tell_surely(Method.RESTORED, lease=grant.lease, seconds=seconds)
        self._given, self._is_granted = Given(Rung.RELEASE), False
        # `lost` came while it woke, when it leaves the program to this thread.
        if self._holding.lease is None:
            self._stop()
            raise LeaseLost("The lease ended while the program woke; it is started again.")

    # -- the node manager's wish --------------------------------------------------------

    def asked(self, recall: Recall) -> None:
        """The node manager wants the program's memory; on the session's thread."""
        with self._lock:
            asleep = self.rest is Rest.ASLEEP
            deeper = asleep and self._given.rung in LEAVE_SOMETHING
            why = self._why_not()
            # In one step with the look, or a request could begin in between.
            if why is None and (deeper or not asleep):
                self._move(Rest.GOING)
        if why is not None:
            self._keeps(recall, why)
        elif asleep and not deeper:
            self._tell_given(recall.lease)
        else:
            try:
                self._worker.told(recall.give, lambda: self._give(recall))
            except RuntimeError as error:
                self._move(Rest.ASLEEP if asleep else Rest.AWAKE)
                self._keeps(recall, f"The thread that parks could not be started ({error}).")

    def _why_not(self) -> str | None:
        if self.under_way:
            return f"{self.under_way} requests are under way."
        return None if self.rest in (Rest.AWAKE, Rest.ASLEEP) else f"It is {self.rest.value}."

    def lost(self, message: str) -> None:
        """The lease has ended without us; on the session's thread. A program that used its GPUs
        ends, and sleeps until somebody needs it where it may be started again.
        """
        self._holding.forget()
        with self._lock:
            uses = self.rest in (Rest.AWAKE, Rest.GOING)
        if uses:
            self._say(f"The lease has ended: {message} The program is ended.")
            self._worker.told(Give.STOP, self._end)

    def _end(self) -> None:
        self._stop()
        self._move(Rest.ASLEEP if self._program.restarts else Rest.ENDED)

    def _give(self, recall: Recall) -> None:
        """Park the program, on a thread of its own."""
        after = Rest.ASLEEP if self._given.rung in LEAVE_SOMETHING else Rest.AWAKE
        grant = self._holding.grant
        # One that is asleep has no GPUs to remember; those that its memory came from are noted.
        if after is Rest.AWAKE and grant is not None:
            self._had = tuple(gpu.uuid for gpu in grant.gpus)

        def plan(memory: int) -> None:
            self._holding.session.call(
                Method.PARKING, again=True, lease=recall.lease, memory=memory
            )

        try:
            try:
                self._given = self._ladder.give(recall.needs, plan, self._given.rung)
            except GpuShareError as error:
                if not self._program.restarts:
                    self._keeps(recall, str(error))
                    return
                self._stop()
            after = Rest.ASLEEP
            self._tell_given(recall.lease)
            self._say(f"{recall.message} It sleeps until somebody needs it.")
        finally:
            self._move(after)

    def _stop(self) -> None:
        self._program.stop()
        self._ladder.forget()
        self._runs, self._given = False, Given(Rung.RELEASE, movable=Movable.ANY)

    def _tell_given(self, lease: str) -> None:
        given = self._given
        self._holding.session.gave(
            Give.TENSORS,
            lease,
            rung=given.rung.value,
            memory=given.memory,
            movable=given.movable.value,
            seconds=given.seconds,
        )

    def _keeps(self, recall: Recall, why: str) -> None:
        self._holding.session.tell_surely(Method.KEPT, lease=recall.lease, reason=why[:1000])

    # -- both ------------------------------------------------------------------------------

    def ended(self) -> None:
        """The program has ended by itself."""
        self._move(Rest.ENDED)

    def _move(self, rest: Rest) -> None:
        with self._lock:
            if rest is self.rest or self.rest is Rest.ENDED:
                return
            assert rest in MOVES[self.rest], f"{self.rest} → {rest}"
            self.rest = rest
            self._lock.notify_all()
        self._on_rest(rest)
