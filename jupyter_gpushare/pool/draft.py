"""A command being worked out: the state as it goes on."""

from __future__ import annotations

from ..policy.words.described import Happening
from .evolve import evolve
from .state import NOT_LENT, Host, State
from .words import events as ev
from .words.config import PoolConfig
from .words.hosts import Environment


class Draft:
    """The state while one command is worked out. All that it lends has one message number."""

    def __init__(self, state: State, config: PoolConfig, at: float) -> None:
        self.state = state
        self.config = config
        self.at = at
        self.number = state.number + 1
        #: What counted for groups before.
        self.used = state.used
        self.events: list[Happening] = []
        self.renewed: set[str] = set()
        #: Environments to plan anew; those in ``resend`` are told even what stays as it is.
        self.plan: set[Environment] = set()
        self.resend: set[Environment] = set()

    def emit(self, event: Happening) -> None:
        """Note an event and go on from the state after it."""
        self.state = evolve(self.state, event)
        self.events.append(event)

    @property
    def until(self) -> float:
        """How long what is sent now counts: the clock of the host may be slow."""
        return self.at + self.config.validity * (1 + self.config.drift)

    def lend(
        self,
        host: Host,
        environment: Environment,
        gpus: int,
        hours: float | None,
        why: str = "",
        *,
        reclaim: bool = False,
    ) -> None:
        """Lend a sub-budget, unless the host was told the same already."""
        old = host.out.get(environment, NOT_LENT)
        here = host.here.get(environment)
        held = 0 if here is None else here.held
        # It kept more than was asked because it was held, and some of that is free now.
        again = old.answered and gpus <= old.asked and max(gpus, held) < old.gpus
        same = (gpus, hours, why, reclaim) == (old.asked, old.asked_hours, old.why, old.reclaim)
        known = environment in host.out
        if (same and not again and not (known and environment in self.resend)) or (
            not known and not (gpus or why or held)
        ):
            return
        # The number is shared by all that is sent in one step.
        event = (environment, gpus, self.number, self.until, hours, reclaim, why)
        self.emit(ev.BudgetLent(self.at, host.name, *event))

    def renew(self, host: str) -> None:
        """Send everything to a host again, for another validity."""
        if host not in self.renewed:
            self.renewed.add(host)
            self.emit(ev.Renewed(self.at, host, self.number, self.until))
