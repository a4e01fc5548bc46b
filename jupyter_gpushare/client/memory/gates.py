"""The gates of this process: the places of its program at which its turn, or its memory, can go.

A gate is a place where the program can wait without harm to itself or others: nothing is half
computed there that another thread, a compiler or another rank relies on. Which places these are, a
framework knows: the end of an optimizer's step (`parkers.steps`), the call of a module where no
steps are seen (`parkers.forwards`), a batch of Keras (`batches`), and the end of the same step in
all ranks that train together (`ranks`). `Gates` puts hooks there, which call `Turns`. While
it is not asked to stop, `Turns` returns at once; that costs about a microsecond.

`Turns` also asks back: whether the program may stop here, what it keeps on the GPUs, whether its
next step fits. `Gates` answers for the framework that was connected last. In practice there is one
that can tell, which is torch.

Two things differ in a process that has joined the lease of its parent. It does not report what its
steps need, for the lease is not its own. And it stops with the other ranks if there are any; else
it stops alone, if it uses a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from ..adapters import registry
from ..adapters.parkers.base import meter_of, parker_of
from ..session.activity import Activity
from ..session.lease import OwnLease, OwnState
from ..session.progress import Progress, Source
from .frameworks import Frameworks
from .ranks import RankGate
from .stopping import Place, Stopping
from .turns import Turns

if TYPE_CHECKING:
    from ..adapters.batches import BatchGate
    from ..adapters.parkers.forwards import ForwardGate
    from ..adapters.parkers.steps import MemoryUse, StepMeter


class Gates:
    """The gates of one process. For `Turns` it is the `Program`."""

    def __init__(
        self,
        own: OwnLease,
        frameworks: Frameworks,
        activity: Activity,
        progress: Progress,
        stopping: Stopping,
        say: Callable[[str], None],
    ) -> None:
        self._own = own
        self._frameworks = frameworks
        self._activity = activity
        self._progress = progress
        self._stopping = stopping
        self._say = say
        self._batches: BatchGate | None = None
        # Of the framework that was connected last.
        self._framework: tuple[registry.Adapter, ModuleType] | None = None
        self._meter: StepMeter | None = None
        self._forwards: ForwardGate | None = None
        self._ranks: RankGate | None = None
        self._is_own = False  # whether its steps are reported

    # -- what `Turns` asks ----------------------------------------------------------------

    def drop_caches(self) -> None:
        """At a gate: wait for the GPUs' queued work, and empty caches where that is possible."""

        def drop(_module: str, adapter: registry.Adapter, loaded: ModuleType) -> None:
            if (parker := parker_of(adapter, loaded)) is not None:
                parker.drop_cache()
            elif adapter.cuda_started(loaded) and hasattr(adapter, "synchronize"):
                adapter.synchronize(loaded)

        self._frameworks.each("wait for its GPUs", drop)

    def trim(self) -> None:
        """Empty more, while no code runs."""
        if self._framework and (parker := parker_of(*self._framework)) is not None:
            parker.trim()

    def look(self) -> MemoryUse | None:
        """Measure what stays; ``None``: nobody can tell, or it is not for this process to tell."""
        return self._meter.look() if self._meter is not None and self._is_own else None

    def next_step_fits(self) -> bool:
        """Whether the next step has room beside what is on its GPUs now, measured."""
        return self._meter is None or self._meter.next_step_fits()

    def hindrance(self) -> str | None:
        """Why this process must never stop; ``None``: it can."""
        # Who leads all ranks stops with them. To the meter it looks like one that would keep them
        # waiting.
        if self._meter is None or (self._ranks is not None and self._ranks.leads):
            return None
        return self._meter.hindrance()

    def may_stop(self) -> bool:
        """Whether this thread may stop at this place."""
        # All ranks have stopped, so the meter's reason against it, that they wait, holds no more.
        if self._meter is None or (self._ranks is not None and self._ranks.pauses):
            return True
        return self._meter.may_stop()

    def watch(self) -> None:
        """Look for places where it can stop, while that is wanted. From any thread."""
        if self._forwards is not None:
            self._forwards.watch()

    def cell_begins(self) -> None:
        """A cell begins: look for such places anew."""
        if self._forwards is not None:
            self._forwards.cell_begins()

    # -- hooks ----------------------------------------------------------------------------

    def connect(self, turns: Turns) -> None:
        """From now on the frameworks that are here come to ``turns`` at their gates.

        Call it again when another framework, or a lease, is here.
        """
        is_joined = self._own.state is OwnState.JOINED
        at_step = partial(self._gate, turns, Place.STEP_END)
        if self._batches is None:
            from ..adapters.batches import BatchGate
            from ..adapters.trainers import are_followed

            at_batch = partial(self._stops, at_step)
            self._batches = BatchGate(at_batch, self._activity.runs_here, self._progress)
            self._batches.watch()
            are_followed(self._progress)
        for _module, adapter, loaded in self._frameworks.loaded():
            meter = meter_of(adapter)
            # Joined, it has a gate alone; with a lease of its own it is connected anew.
            is_connected = meter is not None and (meter.on_step or (is_joined and meter.gate))
            if meter is None or is_connected:
                continue
            from ..adapters.parkers.forwards import ForwardGate

            self._framework, self._meter = (adapter, loaded), meter
            self._forwards = ForwardGate(
                loaded,
                meter,
                gate=partial(self._gate, turns, Place.OTHER),
                is_closed=lambda: turns.is_closed,
                is_wanted=lambda: turns.wants_gates,
                runs_here=self._activity.runs_here,
            )
            if is_joined:
                self._ranks = RankGate(
                    loaded,
                    turns,
                    alone=at_step,
                    lease=lambda: self._own.lease,
                    drop=self.drop_caches,
                    capturing=meter.capturing,
                    say=self._say,
                )
                meter.gate = partial(self._step_ends, self._ranks.step_ends)
            else:
                self._ranks, self._is_own = None, True
                meter.on_step, meter.gate = turns.report, partial(self._step_ends, turns.gate)
        self.watch()

    def _gate(self, turns: Turns, place: Place) -> None:
        is_joined = self._own.state is OwnState.JOINED
        # Below `run` there may be several programs, of which one takes turns for the lease. One
        # that uses no GPU must not be the first to say so.
        if not is_joined or turns.leads or (turns.may_come and self._uses_gpus()):
            turns.checkpoint(place)

    def _uses_gpus(self) -> bool:
        """Whether a framework has something on a GPU here, or one of them does not say."""
        return any(
            adapter.cuda_started(loaded) is not False
            or ((meter := meter_of(adapter)) is not None and meter.uses_gpu())
            for _module, adapter, loaded in self._frameworks.loaded()
        )

    def _step_ends(self, gate: Callable[[], None]) -> None:
        # Before the gate, where it may wait or end: the step is done in any case.
        self._progress.ended(Source.STEP)
        self._stops(gate)

    def _stops(self, gate: Callable[[], None]) -> None:
        self._stopping.step_ended()
        gate()
