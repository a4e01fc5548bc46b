"""Keeps the memory that this process had on its GPUs while the GPUs are given back.

Caches were emptied, or tensors lie in host memory, or the CUDA driver has the whole process.
`ladder` knows how that is done; this module knows what is missing until it is back.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ...figures import format_size
from ...protocol.messages import Method
from ..errors import GpuShareError
from ..session.interrupts import deaf_to_interrupts
from ..session.lease import OwnLease
from ..session.session import Session
from ..words.grant import Grant
from ..words.recalls import Need
from .frameworks import Frameworks
from .rungs import ANY, LEAVE_SOMETHING, Bounds, Given, NotBroughtBack, Rung

if TYPE_CHECKING:
    import socket

    from ...protocol.checkpoint import Ability, Outcome, SeenGpu
    from .driver import DriverCheckpoint
    from .ladder import Ladder


class ParkedMemory:
    """Keeps the memory while the GPUs are given back, and brings it back.

    Call its methods with `OwnLease.lock` held, except `ability` and those that only read.
    """

    def __init__(
        self,
        own: OwnLease,
        frameworks: Frameworks,
        environ: MutableMapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.given = Given(Rung.RELEASE)  # what was done last, until the GPUs are back
        self._own = own
        self._frameworks = frameworks
        self._environ = environ
        self._say = say
        self._had: tuple[str, ...] = ()  # UUIDs of the GPUs it came from
        self._lockable: Ability | None = None  # as of the first look

    @property
    def holds(self) -> bool:
        """Whether memory that this process had on the GPU lies elsewhere."""
        # Asked without making it: the ladder loads modules that a process without parking never
        # needs.
        return "_ladder" in vars(self) and self._ladder.holds

    @property
    def is_incomplete(self) -> bool:
        """Whether a cell would miss memory on the GPU, or use a GPU that it may not."""
        return self.holds or self.given.rung is not Rung.RELEASE

    def must_be_whole(self) -> None:
        """Raises :class:`GpuShareError` while what this process had on the GPU lies elsewhere."""
        if self.holds:
            raise GpuShareError(
                "This kernel's GPU memory is in host memory, and can only be restored under this "
                "lease. `%gpushare resume` (or any cell) brings it back; then try again, or "
                "restart the kernel to drop it."
            )

    @property
    def lacks_memory(self) -> bool:
        """Whether host memory had no room at the last try."""
        return "_ladder" in vars(self) and bool(self._ladder.lacking)

    def ability(self) -> tuple[Rung, str]:
        """The highest rung this process could take now, and why no higher one. Takes seconds."""
        return self._ladder.ability(self._own.gpus)

    def against_lock(self) -> str | None:
        """Why the driver cannot lock this process now; ``None``: it can. Some seconds, at first."""
        if self._lockable is None:
            self._lockable = self._driver.probe()
        if not self._lockable.usable:
            return self._lockable.why
        why = self._objection(self._own.gpus, self._lockable.gpus)
        if why is None and self._frameworks.records_graphs():
            why = "It has CUDA graphs, and must not be locked while one is recorded."
        return why

    def uses_cuda(self) -> bool:
        """Whether the driver knows this process, which is neither parked nor locked."""
        from ...protocol.checkpoint import State

        return self._driver.state() is State.RUNNING

    def lock(self, seconds: float, told: socket.socket, say: str) -> Outcome:
        """Lock this process; see `DriverCheckpoint.lock`. From any thread."""
        return self._driver.lock(seconds, told, say)

    def give(
        self, needs: Sequence[Need], plan: Callable[[int], None], bounds: Bounds = ANY
    ) -> Given:
        """Free what is needed; arguments and errors as of `Ladder.give`."""
        if not self.holds:
            # A parked lease that is asked for more has no GPUs now. Its memory came from those of
            # before.
            self._had = self._own.gpus or self._had
        return self._ladder.give(needs, plan, self.given.rung, bounds)

    def granted(self, session: Session | None) -> None:
        """The GPUs are held again. If only caches were emptied, nothing has to come back."""
        # What lies in host memory is not back yet; `bring_back` says so when it is.
        if self.given.rung in LEAVE_SOMETHING and not self.holds and session is not None:
            self._own.cuda_had = self._own.gpus
            session.tell_surely(Method.RESTORED, lease=self._own.lease)
        self.given = Given(Rung.RELEASE)

    def bring_back(self, grant: Grant, session: Session | None) -> None:
        """Put parked memory back on the GPUs of ``grant``. Not to be interrupted.

        Raises :class:`NotBroughtBack` (try again) and :class:`ProcessLost`.
        """
        now = tuple(gpu.uuid for gpu in grant.gpus)
        moved = {old: new for old, new in zip(self._had, now, strict=False) if old != new}
        if moved and len(now) != len(self._had):
            raise NotBroughtBack("The lease has other GPUs than the memory came from.")
        memory = self._ladder.memory
        with deaf_to_interrupts():  # from the word on: who reads it may press the button
            self._say(f"Restoring {format_size(memory)} of GPU memory …")
            seconds = self._ladder.bring_back(moved)
            # CUDA has moved with the process, so it keeps no other GPUs than the lease's.
            self._own.cuda_had = now
            if session is not None:
                session.tell_surely(Method.RESTORED, lease=grant.lease, seconds=seconds)
        self._say(f"Restored {format_size(memory)} of GPU memory in {seconds:.1f} s.")

    def _objection(self, gpus: Sequence[str], seen: Sequence[SeenGpu]) -> str | None:
        """Why a checkpoint of this process is dangerous or impossible."""
        from . import safety

        return next(safety.objections(gpus, seen, self._environ), None)

    @cached_property
    def _driver(self) -> DriverCheckpoint:
        from .driver import DriverCheckpoint

        return DriverCheckpoint(environ=self._environ)

    @cached_property
    def _ladder(self) -> Ladder:
        """Made when CUDA must be given up."""
        from ...protocol import hostmemory
        from .ladder import Ladder
        from .oneatatime import one_at_a_time

        return Ladder(
            self._frameworks.on_gpus,
            self._driver,
            self._say,
            self._objection,
            room=lambda: hostmemory.room(hostmemory.look()),
            alone=lambda: one_at_a_time(self._environ),
        )
