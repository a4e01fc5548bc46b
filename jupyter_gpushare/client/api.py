"""The same as the magics, for programs: ``with lease(gpus=2): ...``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..protocol.messages import Method
from ..protocol.sizes import parse_size
from .acquire import broker
from .grant import Grant
from .settings import Ask, parse_class, parse_gpus


def make_ask(
    gpus: int | str | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
) -> Ask:
    """Checked needs; ``memory`` in bytes or like ``"8GiB"``. Raises :class:`ValueError`."""
    return Ask(
        None if gpus is None else parse_gpus(gpus),
        None if memory is None else parse_size(memory),
        None if priority_class is None else parse_class(priority_class),
    )


def request(
    gpus: int | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
    *,
    wait: bool = True,
) -> Grant:
    """Get a lease for this process, waiting in the queue if need be.

    ``memory`` is bytes on each GPU, or text like ``"8GiB"``. Raises
    ``QuotaExceeded``, ``NodeUnavailable``, :class:`ValueError`; Ctrl-C leaves
    the queue.
    """
    return broker().request(make_ask(gpus, memory, priority_class), wait=wait)


def release() -> dict[str, Any] | None:
    """Give this process's lease back; ``None`` if it had none. Raises ``NodeUnavailable``."""
    result = broker().release()
    return None if result is None else dict(result)


@contextmanager
def lease(
    gpus: int | None = None,
    memory: int | str | None = None,
    priority_class: str | None = None,
) -> Iterator[Grant]:
    """Hold a lease for a block of code. Raises as :func:`request` does."""
    grant = request(gpus, memory, priority_class)
    try:
        yield grant
    finally:
        current = broker().grant
        if current is not None and current.lease == grant.lease:
            release()


def status() -> dict[str, Any]:
    """The status document (docs/protocol.md). Raises ``NodeUnavailable``."""
    return broker().status()


def quota() -> dict[str, Any]:
    """This environment's quota: GPUs, bytes on each, weight. Raises ``NodeUnavailable``."""
    return dict(status()["quota"])


def history(limit: int = 50) -> list[dict[str, Any]]:
    """This environment's newest events, newest first. Raises ``NodeUnavailable``."""
    result = broker().call(Method.HISTORY, limit=limit)
    return list(result["events"])
