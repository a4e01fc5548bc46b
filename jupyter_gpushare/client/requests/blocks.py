"""Blocks of code that hold a lease: ``with lease(...)`` and ``@gpu(...)``.

Blocks that run at the same time, nested or in threads, share one lease: the first block asks for it
and the last one gives it back. A lease that the process held before stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...protocol.sizes import least_of
from ..errors import GpuShareError
from ..words.grant import Grant
from ..words.promises import Wish
from ..words.settings import Ask
from .broker import Broker


class Needs(NamedTuple):
    """The arguments of a block's request, as in `Broker.request`."""

    ask: Ask
    wait: bool = True
    wait_timeout: float | None = None
    wish: Wish | None = None


def covers(grant: Grant, ask: Ask) -> bool:
    """Whether a held lease is enough for these needs."""
    least = least_of(ask.memory) or 0
    enough = all(gpu.memory >= least for gpu in grant.gpus)
    if isinstance(ask.gpus, str):
        return enough and grant.of_quota
    return enough and len(grant.gpus) >= (ask.gpus or 1)


def enter(broker: Broker, needs: Needs, cancelled: Callable[[], bool] = lambda: False) -> Grant:
    """A lease that is enough, the one held or another. Errors as of `Broker.request`."""
    inside = broker.own.blocks
    with broker.own.lock:
        held = broker.grant
        if held is not None and covers(held, needs.ask):
            if held.lease in inside:
                inside[held.lease] += 1
            return held
        if held is not None and held.lease in inside:
            raise GpuShareError(
                f"Other code of this process holds {held.words}, which is less than this "
                "request. A process has one lease at a time, so make the largest request first."
            )
        before = broker.lease
        grant = broker.request(
            needs.ask, wait=needs.wait, wait_timeout=needs.wait_timeout, cancelled=cancelled
        )
        if grant.lease != before:
            inside[grant.lease] = 1
        return grant


def leave(broker: Broker, grant: Grant) -> None:
    """The block that got ``grant`` has ended. Raises :class:`GpuShareError`."""
    inside = broker.own.blocks
    with broker.own.lock:
        left = inside.pop(grant.lease, 0) - 1
        if left > 0:
            inside[grant.lease] = left
        elif left == 0 and broker.lease == grant.lease:
            broker.release()
