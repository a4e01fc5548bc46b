"""Ray Tune, for those who have it: a trial asks for its lease where Tune has started it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..client.api import lease


def leased(
    train: Callable[[Mapping[str, Any]], Any],
    gpus: int = 1,
    memory: int | str | None = None,
    wait_timeout: float | None = None,
) -> Callable[[Mapping[str, Any]], Any]:
    """``train`` as a function for ``tune.Tuner`` whose trials each hold a lease while they run.

    A trial waits in its host's queue in the class ``batch``. Import frameworks inside ``train``, as
    Tune recommends: its card is known only then. Do not ask Tune for GPUs as well.
    """

    @functools.wraps(train)
    def trial(config: Mapping[str, Any]) -> Any:
        with lease(gpus, memory, "batch", wait_timeout=wait_timeout):
            return train(config)

    return trial
