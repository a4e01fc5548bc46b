"""Gates of `torch.distributed`'s ranks, which stop together, after the same step.

The processes have joined their parent's lease. Rank 0 hears that another task waits for the turn.
It names a step that is still to come. Each rank that sees this before it ends it agrees. If all
have agreed when rank 0 ends the step, it says ``stop``, else ``drop``, and nobody stops. The others
wait at that step's end for the one word or the other. Who stops finishes its queued work, says so,
and waits until rank 0, which asks for the next turn meanwhile, says ``go``.

Why this is sound: a rank waits only at the end of a step, with nothing left to do for it. So
whoever is not that far yet needs nothing of a rank that waits, as long as all ranks count the same
steps. Where they do not (pipelines, uneven data), or one is gone, a wait ends after half of the
process group's time-out. Then the ranks go on, and have no gates any more. Rank 0 waits for its
turn a little shorter, so that all go on together where the turn does not come.

All of it goes through the key-value store that the process group was made with: there is no
collective of ours. A look costs a round trip, so the others look every `LOOK` seconds at most.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...figures import format_duration

if TYPE_CHECKING:
    from .turns import Turns

#: Seconds between two looks for a word of rank 0: while steps go on, and while a rank waits.
LOOK: Final = 0.05
_POLL: Final = 0.005
#: Steps by which the named one is ahead at least; it doubles when not all had heard in time.
_AHEAD: Final = 2
_MOST_AHEAD: Final = 64
#: Of our patience: for how long rank 0 waits for its turn.
_PART: Final = 0.9
_PREFIX: Final = "jupyter_gpushare"
#: Seconds; torch's own time-out for NCCL, where it does not say which one is in force.
_TIMEOUT: Final = 600.0


class Group(NamedTuple):
    """One rank's view of its process group, named ``name`` in its store; ``timeout`` in seconds.

    ``store`` is a `torch.distributed.Store`.
    """

    store: Any
    rank: int
    size: int
    timeout: float
    name: str = ""


class Together:
    """One rank's part. Call `step_ends` at the end of each step, on the thread that computes.

    Of rank 0: ``wanted()``: whether the turn is wanted. ``pause(seconds)``: all have stopped; wait
    for the next turn, for so long at most. Of the others: ``drop()``: finish the queued work and
    empty the caches. ``say`` tells the person what went wrong.
    """

    def __init__(
        self,
        group: Group,
        *,
        wanted: Callable[[], bool],
        pause: Callable[[float], object],
        drop: Callable[[], object],
        say: Callable[[str], object],
    ) -> None:
        self._group = group
        self._wanted, self._pause, self._drop, self._say = wanted, pause, drop, say
        self._patience = group.timeout / 2
        self._steps = self._round = 0
        self._stop: int | None = None
        self._ahead = _AHEAD
        self._next_look = 0.0
        self._ended: float | None = None  # the step before, when nobody waited after it
        self._each: float | None = None  # seconds that a step takes
        #: False once a rank had to go on by itself.
        self.works = True

    def step_ends(self) -> None:
        """May wait. Raises what ``pause`` and ``drop`` raise, and `KeyboardInterrupt`."""
        self._steps += 1
        if self.works:
            self._lead() if self._group.rank == 0 else self._follow()

    # -- rank 0 ---------------------------------------------------------------------------

    def _lead(self) -> None:
        now, before = time.monotonic(), self._ended
        self._ended = now
        if before is not None:
            took = max(1e-6, now - before)
            self._each = took if self._each is None else (9 * self._each + took) / 10
        if self._stop is not None:
            if self._steps >= self._stop:
                self._decide()
        elif self._each is not None and self._wanted():
            self._name_a_step(self._each)

    def _name_a_step(self, each: float) -> None:
        # Who looks less often than it steps must have looked before the named step ends.
        until_all_looked = math.ceil(2 * LOOK / each) if each < LOOK else 0
        self._stop = self._steps + self._ahead + until_all_looked
        self._set("step", str(self._stop))

    def _decide(self) -> None:
        others, agreed = self._group.size - 1, self._count("yes")
        if agreed < others:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        if agreed < others or not self._wanted():
            # Also where all have agreed, if the turn has come meanwhile, or a CUDA graph is
            # recorded.
            self._set("word", "drop")
            self._next_round()
            return
        ends = time.monotonic() + self._patience
        self._set("word", "stop")
        try:
            if self._waits(lambda: self._count("stopped") >= others, ends):
                self._pause(max(0.0, ends - (1 - _PART) * self._patience - time.monotonic()))
        finally:
            # Whatever ends the pause, Ctrl-C too: the others stand there and hear of nothing else.
            self._set("go", "")
            self._next_round()

    # -- the others -------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._stop is None:
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + LOOK
                if (step := self._said("step")) is not None:
                    self._hear(int(step))
        elif self._steps >= self._stop:
            self._wait_for_word()

    def _hear(self, stop: int) -> None:
        if self._steps < stop:
            self._stop = stop
            self._add("yes")
        else:
            self._next_round()  # too late: rank 0 will drop this one

    def _wait_for_word(self) -> None:
        ends = time.monotonic() + self._patience
        heard = self._waits(lambda: self._said("word") is not None, ends)
        if heard and self._said("word") == "stop":
            self._drop()
            self._add("stopped")
            self._waits(lambda: self._said("go") is not None, ends)
        self._next_round()

    # -- both -------------------------------------------------------------------------------

    def _waits(self, look: Callable[[], bool], ends: float) -> bool:
        """Whether it came before the end of our patience. If not, there are no gates any more."""
        while not look():
            if time.monotonic() >= ends:
                self.works = False
                self._say(
                    "The processes of torch.distributed that train together did not stop after the "
                    f"same step within {format_duration(self._patience)}, so this one goes on, and "
                    "gives no turn back any more. Others may compute on the same GPU."
                )
                return False
            time.sleep(_POLL)
        return True

    def _next_round(self) -> None:
        self._round += 1
        self._stop = self._ended = None

    def _key(self, name: str) -> str:
        return f"{_PREFIX}/{self._group.name}/{self._round}/{name}"

    def _set(self, name: str, value: str) -> None:
        self._group.store.set(self._key(name), value)

    def _add(self, name: str) -> None:
        self._group.store.add(self._key(name), 1)

    def _count(self, name: str) -> int:
        return int(self._group.store.add(self._key(name), 0))

    def _said(self, name: str) -> str | None:
        """What rank 0 said; ``None``: nothing yet."""
        store, key = self._group.store, self._key(name)
        return store.get(key).decode() if store.check([key]) else None


class RankGate:
    """The gate at the end of a step in a process that has joined its parent's lease.

    Once a process group of several ranks is there, and all of them have joined the same lease, rank
    0 takes turns for all. Until then, and where there is no such group, ``alone()`` is the gate.
    ``lease()`` names this process's. ``drop`` as of `Together`;
    ``capturing()``: whether a CUDA graph is recorded, in which nobody may wait.
    """

    def __init__(
        self,
        torch: Any,
        turns: Turns,
        *,
        alone: Callable[[], object],
        lease: Callable[[], str | None],
        drop: Callable[[], object],
        capturing: Callable[[], bool],
        say: Callable[[str], object],
    ) -> None:
        #: Whether all ranks have stopped, and rank 0 waits for its turn.
        self.pauses = False
        self._alone = alone
        self._distributed = torch.distributed
        self._turns = turns
        self._lease, self._drop, self._capturing, self._say = lease, drop, capturing, say
        self._of: Callable[[], object] = lambda: None  # the process group that `_group` is of
        self._group: Group | None = None
        self._together: Together | None = None
        self._next_look = 0.0

    @property
    def leads(self) -> bool:
        """Whether this process is the rank that takes turns for all of them."""
        return self._turns.leads and not self._turns.alone

    def step_ends(self) -> None:
        """May wait. Raises what the turns raise, and `KeyboardInterrupt`."""
        self._look_at_group()
        group, together = self._group, self._together
        if group is None or together is None:
            self._alone()
            return
        if not together.works:
            self._turns.leads = False
            return
        if group.rank == 0:
            if not self._turns.leads:
                self._see_who_is_here(group, together)
            if self._turns.leads:
                self._turns.announce()
        together.step_ends()

    def _look_at_group(self) -> None:
        distributed = self._distributed
        there = distributed.is_available() and distributed.is_initialized()
        now = distributed.distributed_c10d._get_default_group() if there else None
        if now is self._of():
            return
        # Weakly, so that a group that was destroyed is not kept alive by us.
        self._of = (lambda: None) if now is None else weakref.ref(now)
        self._group = self._together = None
        self._turns.leads = self._turns.alone = False
        if now is not None and (size := distributed.get_world_size()) > 1:
            self._group = group = Group(
                distributed.distributed_c10d._get_default_store(),
                distributed.get_rank(),
                size,
                _timeout(distributed, now),
                str(now.group_name),
            )
            # Also without a lease: rank 0 waits for a word of each, and then knows that nobody may
            # lead.
            group.store.set(_here(group, group.rank), self._lease() or "")
            self._together = Together(
                group,
                wanted=lambda: (
                    self._turns.leads and self._turns.is_closed and not self._capturing()
                ),
                pause=self._pause,
                drop=self._drop,
                say=self._say,
            )

    def _pause(self, seconds: float) -> None:
        self.pauses = True
        try:
            self._turns.gate(at_most=seconds)
        finally:
            self.pauses = False

    def _see_who_is_here(self, group: Group, together: Together) -> None:
        """Rank 0 leads once all have joined its lease; where one has another, nobody leads."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK
        keys = [_here(group, rank) for rank in range(group.size)]
        if group.store.check(keys):
            leases = {group.store.get(key).decode() for key in keys}
            together.works = self._turns.leads = leases == {self._lease()}


def _here(group: Group, rank: int) -> str:
    """The key at which a rank says which lease it has joined."""
    return f"{_PREFIX}/{group.name}/here/{rank}"


def _timeout(distributed: Any, default: Any) -> float:
    """Seconds for which an operation of the process group waits for another rank."""
    kind = "cuda" if "nccl" in str(distributed.get_backend()) else "cpu"
    try:
        options = default._get_backend(distributed.distributed_c10d.torch.device(kind)).options
        return float(options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return _TIMEOUT
