"""The GPU frameworks of this process, and the adapters that speak to each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from ..adapters import registry
from ..adapters.parkers.base import meter_of, parker_of
from ..words.grant import Grant

if TYPE_CHECKING:
    from ..adapters.holdings import Holdings
    from .ladder import Framework

_LIMIT: Final = "set a memory limit"


class Frameworks:
    """Speaks to each framework through its adapter; ``say`` reports what an adapter cannot do.

    A framework is *known* from before its module runs, and *loaded* once that has run.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: dict[str, tuple[registry.Adapter, ModuleType | None]] = {}
        # Looking up a limit and telling it must be one step; else an older limit may be told last.
        self._telling = threading.RLock()

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
        self._known[module] = (adapter, loaded)

    @property
    def live(self) -> bool | None:
        """Whether the limits of all that are here, or about to come, can change while they run.

        ``None``: there is none yet.
        """
        known = tuple(self._known.values())
        return all(is_live(adapter) for adapter, _loaded in known) if known else None

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
        return self._known.get(module, (None, None))[0]

    def inherit(self, parent: Frameworks) -> None:
        """After a fork: what the parent had imported is imported here."""
        self._known = dict(parent._known)

    def catch_first_use(
        self, acquire: Callable[[str], Grant | None], expected: Callable[[], int]
    ) -> None:
        """Have those ask before they start CUDA that can and have not started it."""

        def watch(module: str, adapter: registry.Adapter, loaded: ModuleType) -> None:
            if adapter.catches_first_use and adapter.cuda_started(loaded) is False:
                adapter.first_use(loaded, partial(acquire, module), expected)

        self.each("watch its first use", watch)

    def names(self, *, late_too: bool = True) -> Sequence[str]:
        """The loaded frameworks; ``late_too``: also those that can ask when they start CUDA."""
        return [
            module
            for module, adapter, _ in self.loaded()
            if late_too or not adapter.catches_first_use
        ]

    def look_around(self) -> None:
        """Take in the frameworks that were imported before anybody asked us."""
        for module in registry.BUILT_IN:
            loaded = sys.modules.get(module)
            # One that is still being imported lacks what its adapter asks for. The hook tells of it
            # later.
            being_imported = getattr(getattr(loaded, "__spec__", None), "_initializing", False)
            if loaded is not None and not being_imported and module not in self._known:
                adapter = self.find(module)
                if adapter is not None:
                    self.add(module, adapter, loaded)

    # -- what they are told -------------------------------------------------------------

    def tell(self, grant_for: Callable[[registry.Adapter], Grant | None]) -> None:
        """Tell each loaded framework what it may use."""
        with self._telling:
            self.each(_LIMIT, lambda _, adapter, loaded: adapter.after(loaded, grant_for(adapter)))

    def limit(self, now: Callable[[], Grant | None]) -> bool:
        """Tell those whose limits can change while they run; whether there is any."""
        with self._telling:
            grant = now()
            if grant is None:
                return False
            return self.each(
                _LIMIT, lambda _, adapter, loaded: adapter.after(loaded, grant), is_live
            )

    def empty_caches(self) -> None:
        """Empty the frameworks' caches. Call it on a thread of its own, because it may take long.

        It frees nothing else, because a cell may run meanwhile.
        """
        self.each(
            "empty its caches",
            lambda _, adapter, loaded: cast("Any", adapter).empty_cache(loaded),
            lambda adapter: hasattr(adapter, "empty_cache"),
        )

    def each(
        self,
        what: str,
        do: Callable[[str, registry.Adapter, ModuleType], object],
        which: Callable[[registry.Adapter], bool] = lambda adapter: True,
    ) -> bool:
        """Do it with each loaded framework, and say which adapter could not do ``what``: it may be
        another package's, and raise anything, and that is not worth the user's program.

        Returns whether any has done it.
        """
        done = False
        for module, adapter, loaded in self.loaded():
            try:
                if which(adapter):
                    do(module, adapter, loaded)
                    done = True
            except Exception as error:  # noqa: BLE001 - as said above
                self._say(f"The adapter for {module} could not {what}: {error!r}")
        return done

    # -- what they say --------------------------------------------------------------------

    def holdings(self) -> Sequence[Holdings]:
        """What the data of each takes that has started CUDA and can be asked."""
        from ..adapters.holdings import holdings_of

        return [
            holdings
            for module, adapter, loaded in self.loaded()
            if adapter.cuda_started(loaded)
            and (holdings := holdings_of(module, loaded)) is not None
        ]

    def last_step(self) -> float | None:
        """Seconds since a training step ended in this process; ``None``: none was seen."""
        ends = [
            stepped_at
            for adapter, _ in tuple(self._known.values())
            if (meter := meter_of(adapter)) is not None
            and (stepped_at := meter.stepped_at) is not None
        ]
        return None if not ends else time.monotonic() - max(ends)

    def records_graphs(self) -> bool:
        """Whether CUDA graphs have memory here: one may be in the making, in whatever thread."""
        meters = [meter_of(adapter) for _module, adapter, _loaded in self.loaded()]
        return any(meter is not None and meter.has_graphs() for meter in meters)

    def on_gpus(self) -> Sequence[Framework]:
        """Those that have started CUDA here, or do not say."""
        from .ladder import Framework

        self.look_around()
        found = []
        for module, adapter, loaded in self.loaded():
            try:
                started = adapter.cuda_started(loaded)
                if started is not False:
                    found.append(Framework(module, parker_of(adapter, loaded)))
            except Exception:  # noqa: BLE001 - an adapter that cannot tell has not told
                found.append(Framework(module, None))
        return found

    def loaded(self) -> Sequence[tuple[str, registry.Adapter, ModuleType]]:
        """Those whose module has run: its name, its adapter and itself."""
        # A copy at once: other threads import.
        return [
            (module, adapter, loaded)
            for module, (adapter, loaded) in tuple(self._known.items())
            if loaded is not None
        ]


def is_live(adapter: registry.Adapter) -> bool:
    """Whether a limit can be changed while the framework runs."""
    return bool(getattr(adapter, "live_limits", False))
