"""The GPU frameworks of this process, and the adapters that speak to each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..adapters import registry
from ..session.progress import Progress, Source
from ..words.grant import Grant
from .places import Place

if TYPE_CHECKING:
    from ..adapters.batches import BatchGate
    from ..adapters.holdings import Holdings
    from ..adapters.parkers.steps import StepMeter
    from .gate import Turns
    from .ladder import Framework


class Frameworks:
    """Speaks to each framework through its adapter; ``say`` reports what an adapter cannot do.

    ``progress`` counts the steps of all of them.

    A framework is *known* from before its module runs, and *loaded* once that has run.
    """

    def __init__(self, say: Callable[[str], None], progress: Progress) -> None:
        self._say = say
        self._progress = progress
        self._known: dict[str, tuple[registry.Adapter, ModuleType | None]] = {}
        self._batches: BatchGate | None = None
        #: Called at the end of each step, before its gate; may end the program.
        self.step_ended: Callable[[], object] = lambda: None
        # Looking up a limit and telling it must be one step; else an older limit may be told last.
        self._telling = threading.RLock()
        self._live: dict[str, bool] = {}

    def find(self, module: str) -> registry.Adapter | None:
        """A new adapter; ``None`` if no adapter works."""
        try:
            adapter = registry.find(module)
            if adapter is not None and hasattr(adapter, "say"):
                adapter.say = self._say
            return adapter
        except Exception as error:  # noqa: BLE001 - another package's adapter may raise anything
            self._say(f"The adapter for {module} cannot be used and is left out: {error!r}")
            return None

    def add(self, module: str, adapter: registry.Adapter, loaded: ModuleType | None = None) -> None:
        """A framework is known from now on, and loaded where that is given."""
        self.comes(module, adapter)
        self._known[module] = (adapter, loaded)

    def comes(self, module: str, adapter: registry.Adapter) -> None:
        """A framework is about to be imported."""
        self._live[module] = is_live(adapter)

    @property
    def live(self) -> bool | None:
        """Whether the limits of all that are here, or about to come, can change while they run.

        ``None``: there is none yet.
        """
        return all(self._live.values()) if self._live else None

    def arrive(
        self,
        module: str,
        adapter: registry.Adapter,
        loaded: ModuleType,
        grant_for: Callable[[registry.Adapter], Grant | None],
    ) -> None:
        """A known framework's module has run, and is told what it may use."""
        with self._telling:
            self.add(module, adapter, loaded)
            adapter.after(loaded, grant_for(adapter))

    def adapter(self, module: str) -> registry.Adapter | None:
        """The adapter of a known framework."""
        known = self._known.get(module)
        return None if known is None else known[0]

    def inherit(self, parent: Frameworks) -> None:
        """After a fork: what the parent had imported is imported here."""
        self._known, self._live = parent._known, dict(parent._live)

    def catch_first_use(
        self, acquire: Callable[[str], Grant | None], expected: Callable[[], int]
    ) -> None:
        """Have those ask before they start CUDA that can and have not started it."""
        for module, adapter, loaded in self._loaded():
            try:
                if adapter.catches_first_use and adapter.cuda_started(loaded) is False:
                    adapter.first_use(loaded, partial(acquire, module), expected)
            except Exception as error:  # noqa: BLE001 - not worth the user's program
                self._say(f"The adapter for {module} could not watch its first use: {error!r}")

    def names(self, *, late_too: bool = True) -> Sequence[str]:
        """The loaded frameworks; ``late_too``: also those that can ask when they start CUDA."""
        return [
            module
            for module, adapter, _ in self._loaded()
            if late_too or not adapter.catches_first_use
        ]

    def look_around(self) -> None:
        """Take in the frameworks that were imported before anybody asked us."""
        for module in registry.BUILT_IN:
            loaded = sys.modules.get(module)
            being_imported = getattr(getattr(loaded, "__spec__", None), "_initializing", False)
            if loaded is not None and not being_imported and module not in self._known:
                adapter = self.find(module)
                if adapter is not None:
                    self.add(module, adapter, loaded)

    # -- what they are told -------------------------------------------------------------

    def tell(self, grant_for: Callable[[registry.Adapter], Grant | None]) -> None:
        """Tell each loaded framework what it may use."""
        with self._telling:
            for module, adapter, loaded in self._loaded():
                self._limit(module, adapter, loaded, grant_for(adapter))

    def limit(self, now: Callable[[], Grant | None]) -> bool:
        """Tell those whose limits can change while they run; whether there is any."""
        with self._telling:
            grant = now()
            done = [
                self._limit(module, adapter, loaded, grant)
                for module, adapter, loaded in self._loaded()
                if grant is not None and is_live(adapter)
            ]
        return any(done)

    def _limit(
        self, module: str, adapter: registry.Adapter, loaded: ModuleType, grant: Grant | None
    ) -> bool:
        try:
            adapter.after(loaded, grant)
        except Exception as error:  # noqa: BLE001 - a limit is not worth the user's program
            self._say(f"The adapter for {module} could not set a memory limit: {error!r}")
            return False
        return True

    def gate_steps(
        self,
        turns: Turns,
        runs_here: Callable[[], bool],
        joined: Callable[[], str | None] | None = None,
    ) -> None:
        """Connect gates to ``turns``: steps are reported; they, modules' calls and batches wait.

        ``runs_here()``: whether this thread runs the cell, or the program. ``joined()`` names the
        lease of others that this process has joined: what its steps need is not reported then, and
        it stops with the other ranks, if there are any, or alone, if it uses a GPU.
        """
        from ..adapters.batches import BatchGate
        from ..adapters.parkers.base import meter_of
        from ..adapters.trainers import are_followed

        def gate(place: Place) -> None:
            if joined is None or turns.leads or (turns.may_come and self._uses_gpus()):
                turns.checkpoint(place)

        if self._batches is None:
            at_batch = partial(self._stops, partial(gate, Place.STEP_END))
            self._batches = BatchGate(at_batch, runs_here, self._progress)
            self._batches.watch()
            are_followed(self._progress)
        for _module, adapter, loaded in self._loaded():
            meter = meter_of(adapter)
            if meter is None or meter.on_step is not None:
                continue
            if joined is not None and meter.gate is not None:
                continue  # with a lease of its own it is connected anew
            forwards = meter.forward_gate(
                gate=partial(gate, Place.OTHER),
                is_closed=lambda: turns.is_closed,
                is_wanted=lambda: turns.wants_gates,
                runs_here=runs_here,
            )
            turns.trim, turns.fits = _trim(adapter, loaded), meter.next_step_fits
            turns.watch, turns.cell_begins = forwards.watch, forwards.cell_begins
            if joined is None:
                turns.look, turns.hindrance = meter.look, meter.hindrance
                turns.may_stop = meter.may_stop
                meter.on_step, meter.gate = turns.report, partial(self._step_ends, turns.gate)
            else:
                alone = partial(gate, Place.STEP_END)
                self._gate_ranks(turns, meter, loaded, alone, joined)
        turns.watch()
        if joined is None:
            turns.offer_lock()

    def _gate_ranks(
        self,
        turns: Turns,
        meter: StepMeter,
        loaded: ModuleType,
        alone: Callable[[], object],
        lease: Callable[[], str | None],
    ) -> None:
        from ..adapters.parkers.ranks import RankGate

        ranks = RankGate(
            loaded,
            turns,
            alone=alone,
            lease=lease,
            drop=self.drop_caches,
            capturing=meter.capturing,
            say=self._say,
        )
        turns.hindrance = lambda: None if turns.leads_ranks else meter.hindrance()
        turns.may_stop = lambda: ranks.pauses or meter.may_stop()
        meter.gate = partial(self._step_ends, ranks.step_ends)

    def _uses_gpus(self) -> bool:
        """Whether a framework has something on a GPU here, or one of them does not say."""
        from ..adapters.parkers.base import meter_of

        for _module, adapter, loaded in self._loaded():
            meter = meter_of(adapter)
            if adapter.cuda_started(loaded) is not False or (meter and meter.uses_gpu()):
                return True
        return False

    def _step_ends(self, gate: Callable[[], None]) -> None:
        self._progress.ended(Source.STEP)
        self._stops(gate)

    def _stops(self, gate: Callable[[], None]) -> None:
        self.step_ended()
        gate()

    def drop_caches(self) -> None:
        """At a gate: wait for the GPUs' queued work, and empty caches where that is possible."""
        from ..adapters.parkers.base import parker_of

        for module, adapter, loaded in self._loaded():
            try:
                if (parker := parker_of(adapter, loaded)) is not None:
                    parker.drop_cache()
                elif adapter.cuda_started(loaded) and hasattr(adapter, "synchronize"):
                    adapter.synchronize(loaded)
            except Exception as error:  # noqa: BLE001 - not worth the user's program
                self._say(f"The adapter for {module} could not wait for its GPUs: {error!r}")

    def empty_caches(self) -> None:
        """Empty the frameworks' caches. Call it on a thread of its own, because it may take long.

        It frees nothing else, because a cell may run meanwhile.
        """
        for module, adapter, loaded in self._loaded():
            empty = getattr(adapter, "empty_cache", None)
            if empty is None:
                continue
            try:
                empty(loaded)
            except Exception as error:  # noqa: BLE001 - not worth the user's program
                self._say(f"The adapter for {module} could not empty its caches: {error!r}")

    # -- what they say --------------------------------------------------------------------

    def holdings(self) -> Sequence[Holdings]:
        """What the data of each takes that has started CUDA and can be asked."""
        from ..adapters.holdings import holdings_of

        return [
            holdings
            for module, adapter, loaded in self._loaded()
            if adapter.cuda_started(loaded)
            and (holdings := holdings_of(module, loaded)) is not None
        ]

    def last_step(self) -> float | None:
        """Seconds since a training step ended in this process; ``None``: none was seen."""
        from ..adapters.parkers.base import meter_of

        ends = [
            stepped_at
            for adapter, _ in tuple(self._known.values())
            if (meter := meter_of(adapter)) is not None
            and (stepped_at := meter.stepped_at) is not None
        ]
        return None if not ends else time.monotonic() - max(ends)

    def records_graphs(self) -> bool:
        """Whether CUDA graphs have memory here: one may be in the making, in whatever thread."""
        from ..adapters.parkers.base import meter_of

        meters = [meter_of(adapter) for _module, adapter, _loaded in self._loaded()]
        return any(meter is not None and meter.has_graphs() for meter in meters)

    def on_gpus(self) -> Sequence[Framework]:
        """Those that have started CUDA here, or do not say."""
        from ..adapters.parkers.base import parker_of
        from .ladder import Framework

        self.look_around()
        found = []
        for module, adapter, loaded in self._loaded():
            try:
                started = adapter.cuda_started(loaded)
                if started is not False:
                    found.append(Framework(module, parker_of(adapter, loaded)))
            except Exception:  # noqa: BLE001 - an adapter that cannot tell has not told
                found.append(Framework(module, None))
        return found

    def _loaded(self) -> Sequence[tuple[str, registry.Adapter, ModuleType]]:
        # A copy at once: other threads import.
        return [
            (module, adapter, loaded)
            for module, (adapter, loaded) in tuple(self._known.items())
            if loaded is not None
        ]


def is_live(adapter: registry.Adapter) -> bool:
    """Whether a limit can be changed while the framework runs."""
    return bool(getattr(adapter, "live_limits", False))


def _trim(adapter: registry.Adapter, loaded: ModuleType) -> Callable[[], Any]:
    def trim() -> None:
        from ..adapters.parkers.base import parker_of

        parker = parker_of(adapter, loaded)
        if parker is not None:
            parker.trim()

    return trim
