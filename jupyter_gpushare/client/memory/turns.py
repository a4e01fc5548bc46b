"""Taking turns on a GPU: gates, where a task waits for its turn, and reports of memory.

A task that is alone on its GPU is never held up and sends nothing but its memory figures, when they
change. Where several tasks take turns, the node manager says when to stop: at the next gate caches
are emptied, the node manager is told what stays, and the task waits there, visibly, for its next
turn. Nothing that a program may read is touched. Ctrl-C leaves the wait. While the node manager
cannot be reached the task that has the turn computes on. The others wait, for a node manager that
restarts is back soon; after that a task goes on if its step fits in the memory that is measured
free.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ...figures import format_about, format_duration, often
from ...protocol.messages import Method
from ..session.activity import Activity
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.progress import Progress
from ..session.session import Link, Session
from ..session.task import running_kernel
from ..words import display
from ..words.grant import Grant
from ..words.recalls import told_seconds
from .limits import Limits
from .parkedmemory import ParkedMemory
from .stopping import Place, Stopping, is_under_run

if TYPE_CHECKING:
    from ..adapters.parkers.steps import DeviceUse, MemoryUse
    from .locking import Locking

#: Seconds between two reports, of growth and of other changes; and the least change in bytes.
GROWTH_EVERY: Final = 0.25
REPORT_EVERY: Final = 5.0
GRAIN: Final = 64 * 1024**2
#: The first step makes the optimizer's state: from the second on figures are relied on. Those of
#: the first only raise what the request named.
KNOWN_AFTER: Final = 2
#: From so many steps on, more of them tell nothing new. Until then each doubling is told.
MOST_STEPS: Final = 32
#: Seconds between two asks while waiting: one may have gone astray.
ASK_AGAIN: Final = 5.0
#: Seconds without a node manager after which a task goes on without turns. A restart takes less:
#: the node manager itself waits 30 s for its clients to come back (`restart_grace`).
UNREACHABLE: Final = 45.0
_LOOK: Final = 0.25  # seconds
#: Looks, a millisecond each, for the answer that tells a newcomer whether it must ask.
_LOOKS: Final = 500


class _Heard(NamedTuple):
    """What was heard of this task's turn, always replaced as a whole: two threads look at it.

    ``number`` is that of the turn, as the node manager said it in the session of this ``hello``.
    ``times``: how often a turn was given.
    """

    hello: object = None
    number: int = 0
    times: int = 0


class Program(Protocol):
    """What is asked of the program that takes turns; `Gates` answers for its frameworks."""

    def drop_caches(self) -> None:
        """At a gate: wait for the GPUs' queued work, and empty caches where that is possible."""

    def trim(self) -> None:
        """Empty more, while no code runs."""

    def look(self) -> MemoryUse | None:
        """Measure what stays; ``None``: nobody can tell, or it is not for this process to tell."""

    def next_step_fits(self) -> bool:
        """Whether the next step has room beside what is on its GPUs now, measured."""

    def hindrance(self) -> str | None:
        """Why this process must never stop; ``None``: it can."""

    def may_stop(self) -> bool:
        """Whether this thread may stop at this place."""

    def watch(self) -> None:
        """Look for places where it can stop, while that is wanted. From any thread."""

    def cell_begins(self) -> None:
        """A cell begins: look for such places anew."""


class Turns:
    """Takes turns for this process; one class, as three sides change one state without a lock.

    The sides are the node manager, whose word comes on the session's thread; the program at its
    gates; and the cells. Call ``gate`` and ``report`` at the end of each step.
    """

    def __init__(
        self,
        line: Line,
        own: OwnLease,
        program: Program,
        limits: Limits,
        stopping: Stopping,
        progress: Progress,
        environ: Mapping[str, str],
        *,
        say: Callable[[str], None] = display.say,
        unreachable: float = UNREACHABLE,
    ) -> None:
        self._line = line
        self._own = own
        self._program = program
        self._limits = limits
        self._stopping = stopping
        self._progress = progress
        self._environ = environ
        #: Whether this process, which shares its parent's lease, takes turns for that; and whether
        #: it does so as no rank of several.
        self.leads = self.alone = False
        self._refused_in: object = None  # the greeting of the session in which another one led
        self._told_alone = False
        #: The gate of a process that has none of its own, where the node manager allows it.
        self._lock: Locking | None = None
        self._say = say
        self._unreachable = unreachable
        self._is_shut = False  # it must ask before its next step
        self._heard = _Heard()
        #: Whether this task shares its GPU by turns now.
        self.is_gated = False
        self._opened = threading.Event()
        self._cleared = False  # since the gate closed
        #: Gives this process's memory and has it again, at the end of a step (`True`) or at another
        #: gate; says whether the turn was given, too. ``None``: nobody asks for it.
        self._asked: Callable[[bool], bool] | None = None
        self._told: tuple[tuple[str, int, int, int], ...] = ()
        self._told_at = 0.0
        self._told_steps = 0
        self._told_in: object = None  # the greeting of the session it was told in
        self._named_in: object = None  # the same of the user's own gates
        self._shown = _Shown(say)
        self._said_hindrance = False

    @property
    def is_closed(self) -> bool:
        """Whether this task should stop at the next gate."""
        return self._is_shut or self._asked is not None

    @property
    def wants_gates(self) -> bool:
        """Whether a gate is of use: this task takes turns, or nobody knows yet that it can."""
        if self.leads and not self.alone:
            return False  # the ranks have gates of their own
        takes = self._has_lease and (self.is_gated or self._is_new or self.is_closed)
        return takes or self.may_come

    @property
    def needs_gate(self) -> bool:
        """Whether a gate would do anything now. Costs half a microsecond."""
        return self.is_closed or self._is_new

    @property
    def has_gates(self) -> bool:
        """Whether the node manager knows of a gate of this process's own."""
        return self._has_lease and not self._is_new

    @property
    def may_come(self) -> bool:
        """Whether this process leads from its next gate on, unless the node manager refuses it."""
        session = self._line.session
        known = self.leads or session is None or session.hello is self._refused_in
        return not known and self._may_lead() and self._program.hindrance() is None

    def _may_lead(self) -> bool:
        """Whether this process may take turns alone for a lease of `run`, which it has joined.

        A kernel computes between its cells only by chance, and a rank stops with the others.
        """
        return (
            self._own.state is OwnState.JOINED
            and is_under_run(self._environ)
            and self._environ.get("WORLD_SIZE", "1") == "1"
            and running_kernel() is None
        )

    @property
    def _locking(self) -> Locking | None:
        """The driver's lock, where it is this process's gate."""
        return self._lock if self._lock is not None and self._lock.stands else None

    @property
    def _grant(self) -> Grant | None:
        """What this process has, if it takes turns: for itself, or for all that have joined."""
        state = self._own.state
        takes_turns = state is OwnState.HELD or (state is OwnState.JOINED and self.leads)
        return self._own.grant if takes_turns else None

    @property
    def _has_lease(self) -> bool:
        """Also that this is not a forked child, which has no session."""
        return self._line.session is not None and self._grant is not None

    @property
    def _hello(self) -> object:
        """The greeting of the present session; ``None``: there is none."""
        session = self._line.session
        return None if session is None else session.hello

    @property
    def _is_new(self) -> bool:
        hello = self._hello
        return hello is not self._told_in and hello is not self._named_in

    # -- what the node manager says; on the session's thread ---------------------------

    def recalled(self, limits: Mapping[str, int], *, number: int = 0) -> None:
        """This task must ask before its next step; ``limits`` in bytes by GPU.

        ``number`` names its turn. What it asks or gives back names the last number that it heard,
        so that nothing said before it was given a turn counts as the end of that turn.
        """
        if self._grant is None:
            return
        # Before the gate closes: the program may come to it at once, and what it asks must name
        # this turn.
        self._hears(number)
        if (why := self._program.hindrance()) is not None:
            if not self._said_hindrance:
                self._said_hindrance = True
                self._say(f"Another task waits for this GPU. This one goes on, because {why}.")
        elif self._locking is not None:
            self.is_gated = True
            self._locking.recalled()
        else:
            self._closes()
            self._program.watch()
        self._limits.in_turn(limits)

    def given(self, limits: Mapping[str, int], *, is_shared: bool, number: int = 0) -> None:
        """This task may compute; ``is_shared``: until it is asked for its turn.

        ``number`` as of `recalled`.
        """
        if self._grant is None:
            return
        # Before the event: a wait that woke first would find the gate shut, and sleep for another
        # look.
        self.is_gated, self._is_shut = is_shared, False
        self._hears(number, given=1)
        if self._lock is not None:
            self._lock.given()
        self._opened.set()
        if is_shared:
            self._program.watch()
        self._limits.in_turn(limits)

    def _closes(self) -> None:
        # Asked a second time it has computed nothing since: its caches are still empty.
        if not self._is_shut:
            self._cleared = False
        self._opened.clear()
        self.is_gated = self._is_shut = True

    def _hears(self, number: int, given: int = 0) -> None:
        self._heard = _Heard(self._hello, number, self._heard.times + given)

    def _says(self, session: Session, heard: _Heard) -> dict[str, int]:
        """The number that an ask or an answer in this session names."""
        # A node manager that was started anew counts anew.
        return {"number": heard.number if heard.hello is session.hello else 0}

    def asked_for_memory(self, give: Callable[[bool], bool]) -> None:
        """This task gives its memory at its next gate, or at the one where it waits now.

        ``give`` as of `MovingAtGates.give`, for what was asked.
        """
        if self._grant is not None:
            self._asked = give
            self._program.watch()

    # -- at the end of each step; on the thread that computes --------------------------

    def report(self, use: MemoryUse) -> None:
        """Report the parts of this task's memory to the node manager, if they changed.

        Growth is reported at once, and every change before the turn is given back: the node manager
        may place another task by these figures.
        """
        session, grant = self._line.session, self._grant
        if session is None or grant is None:
            return
        now = time.monotonic()
        # It may have forgotten, or relies on the figures more from this step on.
        more = self._told_steps < MOST_STEPS and use.steps >= max(KNOWN_AFTER, 2 * self._told_steps)
        again = more or session.hello is not self._told_in
        soon, is_new = self._is_shut, self._is_new
        if not again and not soon and now < self._told_at + GROWTH_EVERY:
            return
        figures = tuple(_figures(use.devices, grant))
        if not figures or (not again and not _is_news(self._told, figures)):
            return
        waits = not soon and now < self._told_at + REPORT_EVERY
        if waits and not again and not _is_growth(self._told, figures):
            return
        self._told, self._told_at, self._told_in = figures, now, session.hello
        self._told_steps = use.steps
        can_take_turns = self._program.hindrance() is None
        answer = session.tell(
            Method.MEMORY,
            lease=grant.lease,
            figures=[
                {"uuid": uuid, "persistent": kept, "temporary": step, "cache": cache}
                for uuid, kept, step, cache in figures
            ],
            steps=use.steps,
            can_take_turns=can_take_turns,
        )
        if is_new and can_take_turns:
            self._comes(answer)

    def _comes(self, answer: Callable[[], Mapping[str, Any] | None]) -> None:
        """It is known from now on that this task has gates: it asks before its next step.

        Else that step would be beside another task's, until the recall is here. Nobody who answers
        late holds up a step for long.
        """
        for _ in range(_LOOKS):
            if (told := answer()) is not None:
                if self.alone and told.get("leads") is not True:
                    self._may_not_lead()
                elif told.get("gate") is True and not self.is_gated:
                    self._closes()
                return
            time.sleep(0.001)

    def gate(self, at_most: float = math.inf) -> None:
        """The end of a step: give the turn back if that is wanted, and wait for the next.

        For ``at_most`` seconds: then it goes on without. Raises only :class:`KeyboardInterrupt`,
        and what `Program.drop_caches` and `Stopping.while_waiting` raise.
        """
        self._stop(Place.STEP_END, at_most, is_step_end=True)

    def _stop(self, place: Place, at_most: float = math.inf, *, is_step_end: bool) -> None:
        if self.is_closed and self._has_lease and self._program.may_stop():
            # First the caches, then the look: what is told is what stays, and others are placed by
            # it.
            self._program.drop_caches()
            self._cleared = True
            if (use := self._program.look()) is not None:
                self.report(use)
            began = time.monotonic()
            try:
                self._stands(place, at_most, is_step_end)
            finally:
                # `Progress` takes it off, so that a step's seconds are those of computing.
                self._progress.waited += time.monotonic() - began

    def _stands(self, place: Place, at_most: float, is_step_end: bool) -> None:
        # One wait may bring the other: memory is asked for while it waits for its turn, and who has
        # its memory back asks for a turn.
        while self.is_closed:
            asked, self._asked = self._asked, None
            if asked is not None:
                self._give(asked, is_step_end)
            if self._is_shut:
                self._wait(place, at_most)
            if self._asked is None:
                return

    def _give(self, give: Callable[[bool], bool], is_step_end: bool) -> None:
        gave_turn = True
        try:
            gave_turn = give(is_step_end)
        finally:
            if gave_turn:  # and it has not heard what was said of turns meanwhile
                self._is_shut, self._told_in = True, None
        if gave_turn and (use := self._program.look()) is not None:
            self.report(use)  # where its memory is now nothing is known of it

    def checkpoint(self, place: Place = Place.OTHER) -> None:
        """A gate at which an optimizer's step has not just ended. Raises as :meth:`gate`.

        The node manager hears of it once: from then on this task can take turns.
        """
        if self.may_come:
            # Before it is announced, because the announcement says so. The answer may take it back.
            self.leads = self.alone = True
        self.announce()
        self._stop(place, is_step_end=False)

    def announce(self) -> None:
        """Say, once in a session, that this task can take turns; nothing of its memory."""
        session, grant = self._line.session, self._grant
        if session is None or grant is None:
            return
        is_news = self._is_new or self.alone is not self._told_alone
        if is_news and self._program.hindrance() is None:
            self._named_in, self._told_alone = session.hello, self.alone
            says = {"alone": True} if self.alone else {}
            self._comes(
                session.tell(
                    Method.MEMORY,
                    lease=grant.lease,
                    figures=[],
                    steps=0,
                    can_take_turns=True,
                    **says,
                )
            )

    def _may_not_lead(self) -> None:
        """Another process takes turns for this lease, or none can: this one computes as always."""
        # Another node manager, or the same one started anew, may answer otherwise.
        self._refused_in = self._hello
        self.leads = self.alone = self._is_shut = False

    # -- between cells; on the user's thread -------------------------------------------

    def before_cell(self) -> None:
        """A cell begins: if it is not its turn, it waits when it computes on the GPU."""
        self._shown = _Shown(self._say)
        self._program.cell_begins()
        if self._lock is not None:
            self._lock.cell_begins()

    def rest(self) -> None:
        """No cell runs: the turn is somebody else's until this task asks again."""
        self._shown.done()
        # Between cells memory is given without a gate (`Parking.asked_back`): this ask comes again
        # so.
        self._asked = None
        if not self.is_gated or (self._is_shut and self._cleared):
            return
        self.clear_idle()
        if self._locking is not None:
            self._locking.recalled()
            return
        self._is_shut = True
        self._opened.clear()
        # Not `turn.done`, which says that all is cleared: what a person may still read is not.
        # The node manager hears that this task is idle, and measures what it keeps.

    def clear_idle(self) -> None:
        """Asked for its turn, or its cache, while no cell runs: only the cache is emptied."""
        self._cleared = True
        self._program.trim()

    def offer_lock(self, memory: ParkedMemory, activity: Activity) -> None:
        """Where the node manager allows it, the driver's lock is the gate of a task without one."""
        session = self._line.session
        if session is None or not session.hello.get("turn_lock"):
            return
        if self._lock is None:
            from .locking import Locking

            self._lock = Locking(
                self._line, self._own, memory, activity, lambda: self.has_gates, self._say
            )
        self._lock.offer()

    # -- inside -------------------------------------------------------------------------

    def _wait(self, place: Place, at_most: float) -> None:
        began = time.monotonic()
        heard_at, asked_at, asked_in = began, 0.0, None
        times, said = self._heard.times, dict[str, int]()
        answer: Callable[[], Mapping[str, Any] | None] | None = None
        try:
            while self._is_shut and self._asked is None:
                session, grant = self._line.session, self._grant
                if session is None or grant is None:
                    return  # without a lease there are no turns
                heard = self._heard
                if heard.times != times:
                    return  # it is asked for this turn already, and has one step in it
                if self._stopping.while_waiting(place, self._program.next_step_fits):
                    self._leave(times)
                    return
                says = self._says(session, heard)
                now = time.monotonic()
                if now >= began + at_most:
                    self._go_on(
                        f"This task has waited for its turn for {format_duration(now - began)}. It "
                        "goes on without it, because its processes may not stop for longer. Others "
                        "may compute on the same GPU."
                    )
                    return
                if session.link is Link.UP:
                    heard_at = now
                    if self.alone:
                        self.announce()  # a node manager without its ledger does not know it
                        if not self.leads:
                            return
                    # An ask that names an older turn than the one it was given counts for nothing:
                    # the node manager takes it for one that crossed that turn on the way. So it is
                    # said anew as soon as the number is.
                    again = session.hello is not asked_in or says != said
                    if again or now >= asked_at + ASK_AGAIN:
                        asked_at, asked_in, said = now, session.hello, says
                        answer = session.tell(Method.TURN_ASK, lease=grant.lease, **says)
                elif now >= heard_at + self._unreachable and self._program.next_step_fits():
                    self._go_on(
                        "The GPU node manager has not answered for "
                        f"{format_duration(now - heard_at)}, and the next step fits in the memory "
                        "that is free, so this task goes on without waiting for its turn. Others "
                        "may compute on the same GPU."
                    )
                    return
                if self._opened.wait(_LOOK):
                    self._opened.clear()  # the gate says whether it is over
                    continue
                is_silent = now > heard_at
                now = time.monotonic()
                left = told_seconds(answer()) - (now - asked_at) if answer is not None else 0.0
                where = " and ".join(f"GPU {gpu.number}" for gpu in grant.gpus)
                self._shown.update(where, now - began, max(0.0, left), is_silent=is_silent)
        except BaseException:
            self._leave(times)
            raise
        finally:
            self._shown.waited(time.monotonic() - began)

    def _leave(self, times: int) -> None:
        heard, session, grant = self._heard, self._line.session, self._grant
        # A turn that came while Ctrl-C was on its way is kept: the program computes in it at once.
        if session is not None and grant is not None and heard.times == times:
            session.tell(Method.TURN_DONE, lease=grant.lease, **self._says(session, heard))

    def _go_on(self, why: str) -> None:
        self._is_shut = self.is_gated = False
        self._say(why)


class _Shown:
    """One cell's place on the screen for all its waits: a line, not one for each turn."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._place = display.Place()
        self._said_at: float | None = None
        self._times, self._seconds = 0, 0.0
        self._now = ""

    def update(self, where: str, seconds: float, left: float, *, is_silent: bool) -> None:
        """A wait goes on, for ``seconds`` so far; ``is_silent``: no node manager answers.

        About ``left`` seconds are left; 0: nobody can tell.
        """
        if seconds < 1.0:
            return
        more = ". The GPU node manager does not answer" if is_silent else ""
        if left and not is_silent:
            more = f", about {format_about(left)} more"
        paused, so_far = f"Paused while another task computes on {where}", format_duration(seconds)
        now = time.monotonic()
        if self._publish(f"{paused}; {so_far} so far{more}. Interrupt the kernel (■) to stop."):
            return
        if self._said_at is None or now >= self._said_at + 60.0:
            self._said_at = now
            self._say(f"{paused}{more} (Ctrl-C stops).")

    def waited(self, seconds: float) -> None:
        """A wait is over."""
        self._times += 1
        self._seconds += seconds
        if self._place.is_there:
            self._publish("It goes on: it is this task's turn.")

    def done(self) -> None:
        """The cell is over."""
        if self._place.is_there or self._seconds >= 1.0:
            total = format_duration(self._seconds)
            told = f"Paused {often(self._times)} while others computed, {total} in all."
            self._publish(told, waits=False)
        self._place.is_there, self._times, self._seconds = False, 0, 0.0

    def _publish(self, text: str, *, waits: bool = True) -> bool:
        """Whether there is a notebook that shows it."""
        publisher = display.notebook_publisher()
        if publisher is not None and text != self._now:
            from ..words.render import show_notice

            self._now = text
            self._place.show(publisher, show_notice(text, good=True), waits=waits)
        return publisher is not None


def _figures(devices: Sequence[DeviceUse], grant: Grant) -> Iterator[tuple[str, int, int, int]]:
    """The figures of each GPU, by its UUID."""
    for used in devices:
        index = int(used.device.partition(":")[2] or 0)
        # torch counts the GPUs that `CUDA_VISIBLE_DEVICES` names, which are the grant's in its
        # order. Where CUDA was started before the lease it may count others, and those have no UUID
        # here.
        if index < len(grant.gpus):
            yield grant.gpus[index].uuid, used.persistent, used.temporary, used.cache


def _is_news(old: Sequence[tuple[str, int, int, int]], new: Sequence[Any]) -> bool:
    known = {uuid: sizes for uuid, *sizes in old}
    return any(
        uuid not in known
        or any(abs(a - b) >= GRAIN for a, b in zip(known[uuid], sizes, strict=True))
        for uuid, *sizes in new
    )


def _is_growth(old: Sequence[tuple[str, int, int, int]], new: Sequence[Any]) -> bool:
    """Whether a step needs more persistent or temporary memory than was reported."""
    known = {uuid: (kept, kept + step) for uuid, kept, step, _cache in old}
    return any(
        now >= before + GRAIN
        for uuid, kept, step, _cache in new
        for before, now in zip(known.get(uuid, (0, 0)), (kept, kept + step), strict=True)
    )
