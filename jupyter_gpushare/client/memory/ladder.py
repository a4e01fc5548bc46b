"""Gives an idle process's GPU memory back, by the lowest rung that frees enough.

The node manager says how many bytes may stay on each GPU, and how many it
measured there. The ladder tries, in this order: emptying caches (always
harmless); moving the framework's tensors to host memory; a checkpoint of the
whole process by the CUDA driver. Dropping gradients is no rung of an idle
notebook: a person may still read them.

The memory is brought back in the opposite order; its room on the GPUs must be reserved before. The
ladder does not talk to the node manager.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from ...figures import format_size
from ...protocol.checkpoint import Cause, Outcome, Result, SeenGpu
from ...protocol.hostmemory import Room
from ..adapters.parkers.base import ParkedDamaged, Parker, ParkingError, host_bytes
from ..errors import GpuShareError
from ..words.recalls import Need
from .bystanders import Bystanders, look, tasks_object, threads_object
from .driver import Ability, deadline_for
from .rungs import (
    ANY,
    Bounds,
    CannotGive,
    Given,
    Movable,
    NeverBroughtBack,
    NotBroughtBack,
    ProcessLost,
    Rung,
)

#: Bytes to assume for a CUDA context that was not measured: more than any seen so far.
CONTEXT: Final = 1024**3
#: Bytes of host memory that stay free beside what is parked, for this process to go on.
SPARE: Final = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Framework:
    """One that has started CUDA here, and what moves its memory, if anything does."""

    name: str
    parker: Parker | None


Objects = Callable[[Sequence[str], Sequence[SeenGpu]], str | None]


class Checkpoints(Protocol):
    """What checkpoints this process, or one that is kept, as `DriverCheckpoint` does."""

    def probe(self) -> Ability:
        """Whether the driver can."""

    def park(self, deadline_s: float) -> Outcome:
        """Move everything from the GPUs into host memory."""

    def resume(self, gpu_map: Mapping[str, str] | None, deadline_s: float) -> Outcome:
        """Bring it back to the GPUs."""


class Ladder:
    """Chooses and carries out a rung. Not thread-safe; call it only while no cell runs, or on the
    thread that runs it, at a gate.

    ``frameworks`` knows which have started CUDA; ``None``: only the driver can move what is there.
    ``say`` speaks to the person. ``objection`` gives a reason why a checkpoint of this process is
    dangerous or impossible, from the lease's GPUs and those that the driver sees. ``bystanders``
    finds other code of the user that may run meanwhile. ``room`` gives the host memory that may be
    taken. ``alone`` makes other kernels wait that would take host memory from the same place.
    """

    def __init__(
        self,
        frameworks: Callable[[], Sequence[Framework]] | None,
        driver: Checkpoints,
        say: Callable[[str], None],
        objection: Objects = lambda gpus, seen: None,
        bystanders: Callable[[], Bystanders] = look,
        room: Callable[[], Room | None] = lambda: None,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._has_frameworks = frameworks is not None
        self._frameworks = frameworks or (lambda: ())
        self._driver = driver
        self._say = say
        self._objection = objection
        self._bystanders = bystanders
        self._room = room
        self._alone = alone
        self._moved: list[Parker] = []  # whose tensors are in host memory
        #: Whether the driver has taken it.
        self.checkpointed = False
        self.memory = 0  # bytes in host memory now
        #: Bytes for which there was no room in host memory when it was tried last.
        self.lacking = 0

    @property
    def holds(self) -> bool:
        """Whether memory must be brought back before CUDA is used again."""
        return self.checkpointed or bool(self._moved)

    def ability(self, gpus: Sequence[str]) -> tuple[Rung, str]:
        """The highest rung this process could take now, and why no higher one."""
        driver = self._driver.probe()
        against = self._against(gpus, driver)
        # Nothing smaller is known of before it is tried: the context alone takes so much.
        crowded = self._crowded(self.lacking or CONTEXT)
        if against is None and crowded is None:
            return Rung.DRIVER, ""
        frameworks = self._frameworks()
        hindrance = _hindrance(frameworks) if self._has_frameworks else ""
        why = " ".join(filter(None, (crowded, hindrance, against)))
        if self._has_frameworks and not hindrance and crowded is None:
            return Rung.STORAGE, why
        can_trim = any(framework.parker is not None for framework in frameworks)
        return Rung.TRIM if can_trim else Rung.NONE, why

    def _against(self, gpus: Sequence[str], driver: Ability) -> str | None:
        """Why the driver's checkpoint is not tried."""
        return self._objection(gpus, driver.gpus) if driver.usable else driver.why

    # -- giving back -------------------------------------------------------------------

    def give(
        self,
        needs: Sequence[Need],
        plan: Callable[[int], None],
        after: Rung = Rung.RELEASE,
        bounds: Bounds = ANY,
    ) -> Given:
        """Give memory until no more than may stay is on each GPU, by a rung above ``after``.

        ``plan`` is told the bytes that will go to host memory; it raises :class:`GpuShareError` if
        there is no budget. Raises :class:`CannotGive`, with nothing parked, when no rung frees
        enough.
        """
        with self._alone():
            return self._give(needs, plan, after, bounds)

    def _give(
        self, needs: Sequence[Need], plan: Callable[[int], None], after: Rung, bounds: Bounds
    ) -> Given:
        began = time.monotonic()
        self.lacking = 0
        why: list[str] = []
        if not self.holds:
            needs = self._after_trimming(needs)
            # Asked again after caches were emptied, the node manager needs what that left.
            if after is not Rung.TRIM and not bounds.elsewhere and _enough(needs, 0):
                return Given(Rung.TRIM, seconds=time.monotonic() - began)
        present = self._bystanders()
        if (against := tasks_object(present)) is not None:
            raise CannotGive(against)
        if self._has_frameworks and not self.holds:
            if bounds.elsewhere:
                why.append("Tensors that are moved one by one come back to the same GPUs only.")
            elif not bounds.tensors:
                why.append("Tensors are moved one by one only at the end of a step.")
            # No reason against a checkpoint: a thread then only waits in its next CUDA call.
            elif (against := threads_object(present)) is not None:
                why.append(against)
            elif self._move_tensors(needs, plan, why):
                return Given(Rung.STORAGE, self.memory, seconds=time.monotonic() - began)
        given = self._checkpoint(needs, plan, why, bounds)
        if given is None:
            raise CannotGive(" ".join(why))
        return given._replace(seconds=time.monotonic() - began)

    def _after_trimming(self, needs: Sequence[Need]) -> Sequence[Need]:
        parkers = [framework.parker for framework in self._frameworks()]
        return _less(needs, sum(parker.trim() for parker in parkers if parker is not None))

    def _move_tensors(
        self, needs: Sequence[Need], plan: Callable[[int], None], why: list[str]
    ) -> bool:
        frameworks = self._frameworks()
        if hindrance := _hindrance(frameworks):
            why.append(hindrance)
            return False
        parkers = [framework.parker for framework in frameworks if framework.parker is not None]
        try:
            amounts = [parker.bytes_to_park() for parker in parkers]
            if not any(amounts) or not _enough(needs, sum(amounts)):
                why.append("Moving its tensors to host memory would not free enough.")
                return False
            held = sum(map(host_bytes, parkers, amounts))
            self._must_fit(held)
            # Asked before anything moves: the budget of host memory is the node manager's.
            plan(held)
            for parker in parkers:
                try:
                    self.memory += parker.park()
                finally:
                    if parker.is_parked:  # also a parking that broke off and could not be undone
                        self._moved.append(parker)
        except CannotGive:
            raise  # the driver's copy would be larger still
        except GpuShareError as error:
            why.append(str(error))
            self._move_back()
            return False
        return True

    def _must_fit(self, amount: int) -> None:
        """Raises :class:`CannotGive` where host memory has no room for ``amount`` bytes more."""
        if (crowded := self._crowded(amount)) is not None:
            self.lacking = amount
            raise CannotGive(crowded)

    def _crowded(self, amount: int) -> str | None:
        room = self._room()
        if room is None or amount + SPARE <= room.memory:
            return None
        return (
            f"Parking {format_size(amount)} needs {format_size(amount + SPARE)} of host memory, "
            f"and {room.bound} leaves {format_size(room.memory)}: this kernel could be killed. "
            "Free memory here, or have the limit raised."
        )

    def _move_back(self) -> None:
        """Undo a parking that came half way."""
        try:
            while self._moved:
                self._moved[-1].resume()
                # Only when it is back: what fails stays on the list, and the next cell tries it
                # again.
                self._moved.pop()
        except ParkingError as error:
            self._say(f"{error} The next cell tries again.")
            return
        self.memory = 0

    def _checkpoint(
        self, needs: Sequence[Need], plan: Callable[[int], None], why: list[str], bounds: Bounds
    ) -> Given | None:
        ability = self._driver.probe()
        against = self._against([need.gpu for need in needs], ability)
        if against is None and bounds.elsewhere and not ability.migration:
            against = "This driver brings a process back to the same GPUs only."
        if against is not None:
            why.append(against)
            return None
        # All that it has there goes, the context too, however little is asked for.
        amount = sum(CONTEXT if need.used is None else need.used for need in needs)
        try:
            self._must_fit(amount)
            plan(self.memory + amount)
        except GpuShareError as error:
            why.append(str(error))
            return None
        outcome = self._driver.park(deadline_for(amount))
        if outcome.result is Result.DONE:
            self.checkpointed = True
            self.memory += amount
            # Tensors that went back by themselves need the GPUs that torch knows by index.
            movable = Movable.KIND if ability.migration and not self._moved else Movable.SAME
            return Given(Rung.DRIVER, self.memory, movable)
        why.append(outcome.message)
        if outcome.result is Result.STUCK:
            # In between: CUDA blocks until it is set going again, which the next cell tries.
            self.checkpointed = True
        elif outcome.result is Result.DEAD:
            why.append(_DEAD)
        return None

    # -- bringing back -----------------------------------------------------------------

    def bring_back(self, gpu_map: Mapping[str, str]) -> float:
        """Put everything back, on GPUs where there is room; seconds it took.

        ``gpu_map``: old to new UUIDs, as far as they differ. Raises
        :class:`NotBroughtBack` and :class:`ProcessLost`.
        """
        began = time.monotonic()
        if self.checkpointed:
            self._settled(self._driver.resume(gpu_map or None, deadline_for(self.memory)))
            self.checkpointed = False
        # After the driver: a call of CUDA blocks for good in a process that is checkpointed.
        while self._moved:
            try:
                self._moved[-1].resume()
            except ParkedDamaged as error:
                self._say(str(error))  # all that can come back is back: another try would not help
            except ParkingError as error:
                raise NotBroughtBack(str(error)) from error
            self._moved.pop()
        self.memory = 0
        return time.monotonic() - began

    def found(self, checkpointed: bool, moved: Sequence[Parker]) -> None:
        """Another process has parked it, and has ended."""
        self.checkpointed, self._moved = checkpointed, list(moved)

    def forget(self) -> None:
        """The processes have ended, and what they had with them."""
        self._moved.clear()
        self.checkpointed, self.memory = False, 0

    def _settled(self, outcome: Outcome) -> None:
        if outcome.result is Result.DONE:
            return
        if outcome.result is Result.DEAD:
            raise ProcessLost(f"{outcome.message} {_DEAD}")
        never = outcome.cause is Cause.NOT_PERMITTED
        raise (NeverBroughtBack if never else NotBroughtBack)(
            f"{outcome.message} Your variables are kept in host memory as long as this process "
            "lives; run a cell, or `%gpushare resume`, to try again."
        )


_DEAD: Final = (
    "The CUDA driver has given this process up: what was on the GPU is lost. Save what is in "
    "host memory (CPU variables still work) and restart the kernel."
)


def _hindrance(frameworks: Sequence[Framework]) -> str:
    """Why tensors cannot be moved one by one; empty: they can, as far as is known yet."""
    if not frameworks:
        return "It is not known what uses CUDA in this process."
    if without := [framework.name for framework in frameworks if framework.parker is None]:
        return f"The memory of {' and '.join(without)} cannot be moved tensor by tensor."
    return ""


def _less(needs: Sequence[Need], freed: int) -> Sequence[Need]:
    """The used memory after ``freed`` bytes went, from each GPU in proportion to its use."""
    total = sum(need.used or 0 for need in needs)
    if not total:
        return needs
    left = max(0, total - freed)
    return [
        # Rounded up: what stays is not told too small.
        need if need.used is None else need._replace(used=-(-need.used * left // total))
        for need in needs
    ]


def _enough(needs: Sequence[Need], freed: int) -> bool:
    """Whether no more than may stay is left after ``freed`` bytes more."""
    return all(
        # Unmeasured: when all tensors are gone the context is what is left.
        (CONTEXT if need.used is None and freed else need.used or 0) <= need.may_stay
        and (need.used is not None or freed > 0)
        for need in _less(needs, freed)
    )
