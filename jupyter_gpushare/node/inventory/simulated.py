"""Simulated GPUs: pretend devices for demos, tests and planning.

They exist only where a person gave a spec, and each says ``simulated`` about itself. No memory is
ever in use on them, and no kernel runs on them. Their utilisation is the share of the time for
which the leases that hold them said that they were busy.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from jupyter_gpushare.figures import format_size
from jupyter_gpushare.node.inventory.base import Build, InventoryError, LeftOut, Sensors
from jupyter_gpushare.policy.words.events import ChangesUse
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Bytes,
    Gpu,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
)
from jupyter_gpushare.predict.kinds import KINDS, named
from jupyter_gpushare.protocol.sizes import parse_size

if TYPE_CHECKING:
    from jupyter_gpushare.node.host.outcome import Outcome
    from jupyter_gpushare.policy.books.state import State

_PART = re.compile(
    r"(?:(?P<count>[0-9]{1,9})\s*[x×*]\s*)?"  # noqa: RUF001
    r"(?:(?P<memory>[0-9.]+\s*[A-Za-z]+)|(?P<kind>[A-Za-z][\w \-]{0,40}))"
)
_MOST_GPUS = 1024
_ANY = "GPU"  # of no kind that anybody makes
_NAMESPACE = uuid.UUID("5c1a1f6c-7b0e-4f5e-9d0a-2f3a7e3d9b41")


def parse_spec(spec: str) -> tuple[Gpu, ...]:
    """Reads ``4x24GiB`` or ``1xA100,2x24GiB`` (``24GiB`` or ``T4`` alone is one GPU).

    A kind of :data:`~jupyter_gpushare.predict.kinds.KINDS` has its memory, and predictions are
    those of such GPUs. The same spec always gives the same UUIDs. Raises :class:`InventoryError`.
    """
    each: list[tuple[int, str]] = []
    for part in spec.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise _unreadable(spec, f"{part.strip()!r} is not COUNTxMEMORY, nor COUNTxKIND")
        one = _one(spec, match)
        count = int(match["count"] or 1)
        if count < 1:
            raise _unreadable(spec, f"{part.strip()!r} is no GPU at all")
        if len(each) + count > _MOST_GPUS:
            raise _unreadable(spec, f"at most {_MOST_GPUS} GPUs can be simulated")
        each += [one] * count
    canonical = ",".join(
        f"{memory}" if kind == _ANY else f"{memory} {kind}" for memory, kind in each
    )
    return tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{uuid.uuid5(_NAMESPACE, f'{canonical}/{index}')}"),
            index=index,
            name=f"Simulated {kind} ({format_size(memory)})",
            memory=Bytes(memory),
            simulated=True,
        )
        for index, (memory, kind) in enumerate(each)
    )


def _one(spec: str, match: re.Match[str]) -> tuple[int, str]:
    """The memory and the kind of each GPU of a part."""
    if match["kind"] is not None:
        found = named(match["kind"])
        if found is None:
            known = ", ".join(kind.name for kind in KINDS)
            raise _unreadable(
                spec, f"there is no kind {match['kind'].strip()!r}; known are {known}"
            )
        return found.memory, found.name
    try:
        return parse_size(match["memory"]), _ANY
    except ValueError as error:
        raise _unreadable(spec, str(error).rstrip(".")) from error


def _unreadable(spec: str, why: str) -> InventoryError:
    return InventoryError(
        f"Cannot simulate {spec!r}: {why}. Write for example 2x24GiB or 1xA100,2x24GiB."
    )


class SimulatedInventory:
    """Simulated GPUs, which always work and hold no memory; :meth:`heard` listens to the manager.

    NVML defines utilisation as the share of the last sample period in which a
    kernel ran. Here the period is the time since the last :meth:`read`, and a
    lease that is busy stands for a kernel that runs.
    """

    simulated = True

    def __init__(self, spec: str, now: Callable[[], float] = time.monotonic) -> None:
        """``now`` gives seconds that never go back.

        Raises :class:`InventoryError` when the spec cannot be read.
        """
        self._gpus = parse_spec(spec)
        self._now = now
        # heard() is the event loop's, read() the inventory thread's.
        self._lock = threading.Lock()
        self._held: dict[LeaseId, tuple[Allocation, ...]] = {}  # by busy leases
        self._busy: Counter[GpuUuid] = Counter()  # how many of them each GPU has
        self._busy_since: dict[GpuUuid, float] = {}
        self._busy_for = defaultdict[GpuUuid, float](float)  # seconds of this period
        self._read_at: float | None = None
        self._shares: dict[GpuUuid, float] = {}
        self._has_begun = False

    def discover(self) -> tuple[Gpu, ...]:
        return self._gpus

    def read(self) -> tuple[GpuReading, ...]:
        with self._lock:
            self._sample(self._now())
            return tuple(
                GpuReading(
                    uuid=gpu.uuid,
                    problem=None,
                    used=Bytes(0),
                    utilisation=self._shares.get(gpu.uuid),
                )
                for gpu in self._gpus
            )

    def sensors(self) -> dict[GpuUuid, Sensors]:
        """None: what does not exist is not warm."""
        return {}

    def builds(self) -> dict[GpuUuid, Build]:
        """None: the facts about a kind come from its name."""
        return {}

    def left_out(self) -> tuple[LeftOut, ...]:
        return ()

    def close(self) -> None:
        """There is no driver to let go of."""

    def heard(self, outcome: Outcome, state: State) -> None:
        """Look again at the leases whose events came: a step costs what happened in it."""
        if not self._has_begun:
            # The time before this start, which the ledger has, was not reported.
            self._has_begun = True
            for lease in state.leases:
                self._look(lease, state)
        for event in outcome.events:
            if isinstance(event, ChangesUse):
                self._look(event.lease, state)

    def _look(self, name: LeaseId, state: State) -> None:
        lease = state.leases.get(name)
        now, before = set[GpuUuid](), {part.gpu for part in self._held.pop(name, ())}
        if lease is not None and lease.phase is LeasePhase.HELD and lease.activity is Activity.BUSY:
            # The lease's own tuple: a set for each of 10,000 leases would take 2 MB.
            self._held[name] = lease.allocations
            now = {part.gpu for part in lease.allocations}
        with self._lock:
            at = self._now()
            for gpu in now ^ before:
                self._settle(gpu, at)
                self._busy[gpu] += 1 if gpu in now else -1

    def _sample(self, now: float) -> None:
        """Begin a new period; two reads at one instant tell the same."""
        for gpu in self._busy:
            self._settle(gpu, now)
        if self._read_at is not None:
            if now <= self._read_at:
                return
            period = now - self._read_at
            self._shares = {
                gpu.uuid: min(1.0, self._busy_for[gpu.uuid] / period) for gpu in self._gpus
            }
        self._busy_for.clear()
        self._read_at = now

    def _settle(self, gpu: GpuUuid, now: float) -> None:
        """Count the time until now, if the GPU is busy."""
        if self._busy[gpu]:
            self._busy_for[gpu] += max(0.0, now - self._busy_since[gpu])
        self._busy_since[gpu] = now
