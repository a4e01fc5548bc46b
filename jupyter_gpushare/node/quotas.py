"""Works out the quotas of configuration and Hub for the GPUs that the node has.

``"all"`` GPUs and ``0.5`` of one change when GPUs come, so they are worked out again then. They
stay when GPUs go: a GPU that is lost for a minute must not cause refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..policy.books.state import State
from ..policy.words.commands import ConfigureQuotas
from ..policy.words.events import GpuFound
from ..policy.words.model import Gpu
from ..quotas.config import NodeSize, configure
from .host.outcome import Outcome


class QuotasInForce:
    """Makes the command that tells the policy its quotas.

    ``clock`` gives boot time; ``submit`` sends the command when GPUs came.
    """

    def __init__(
        self,
        default: Any,
        groups: Mapping[str, Any],
        users: Mapping[str, Any],
        clock: Callable[[], float],
        submit: Callable[[ConfigureQuotas], None],
    ) -> None:
        self._default = default
        self._groups = groups
        self._users = users
        self._hub_groups: Mapping[str, Any] = {}
        self._clock = clock
        self._submit = submit
        self._size: NodeSize | None = None  # for which the quotas were made last

    def of(
        self, gpus: Iterable[Gpu], hub_groups: Mapping[str, Any] | None = None
    ) -> ConfigureQuotas:
        """The quotas on a node with these GPUs; ``hub_groups`` are the Hub's, if it told new ones.

        Raises :class:`ValueError` with a sentence for a quota that makes no sense.
        """
        if hub_groups is not None:
            self._hub_groups = hub_groups
        size = self._size = NodeSize.of(gpus)
        groups = {**self._groups, **self._hub_groups}
        return configure(self._clock(), size, self._default, groups, self._users)

    def heard(self, outcome: Outcome, state: State) -> None:
        """A listener of the manager's: more GPUs than the quotas were made for?"""
        if self._size is None or not any(isinstance(e, GpuFound) for e in outcome.events):
            return
        gpus = [books.gpu for books in state.gpus.values()]
        if len(gpus) > self._size.gpus:
            self._submit(self.of(gpus))
