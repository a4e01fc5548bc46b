"""A client with memory on its GPU: it idles, is parked, comes back, and looks at what it had.

It uses the product's own ``Broker``, as a kernel does, and the pretend framework in
``pretend.py``. A cell is a time in which it is busy; between two it may be parked, by moving its
blocks or by the driver's checkpoint. When its memory is lost its person would restart the kernel,
so it ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from jupyter_gpushare.client.adapters import registry
from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.client.memory import ladder
from jupyter_gpushare.client.requests import getting
from jupyter_gpushare.client.requests.broker import Broker
from jupyter_gpushare.client.session.lease import OwnState
from jupyter_gpushare.client.words.settings import Ask

from . import pretend
from .client import Client, gpus_of
from .observed import Log, Saw, boot
from .planted_clients import IN_CLIENTS
from .pretend import NAME, DriverSaid, Pretend

GIB = 2**30
BEAT = 0.15  # seconds between two looks at the lease
#: Bytes of the lease that the blocks leave for the context, and for rounding.
SPARE = GIB


def stands_for(module: ModuleType, name: str, ours: object) -> None:
    """Put ``ours`` in the place of what a module has. It must be there: what moved is missed."""
    getattr(module, name)
    setattr(module, name, ours)


class _Watched:
    """The display of a wait, which writes down that there is one."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.shown_at: float | None = None

    def update(self, notice: Mapping[str, Any]) -> None:
        if self.shown_at is None:
            self.shown_at = time.monotonic()
            self._log.note(Saw.QUEUED, request="tenant", lease=notice.get("lease"))

    def away(self, left: float) -> None:
        """Nothing to show."""

    def done(self, text: str | None = None) -> None:
        """Nothing to show."""


class Tenant(Client):
    """One life."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        os.environ.update(spec["environ"])
        # A checkpoint here takes milliseconds; who waits half a minute sees no deadline pass.
        stands_for(ladder, "deadline_for", lambda memory: spec["deadline"])
        if spec["plant"] is not None:
            IN_CLIENTS[spec["plant"]]()
        # Between two cells nothing of a person's runs; our own loop is no such thing.
        stands_for(ladder, "threads_object", lambda found: None)
        # Only kernels are asked to park.
        kind = "kernel" if spec["role"] in ("tenant", "mover") else "process"
        task = {"name": spec["role"], "kind": kind, "kernel_id": None, "path": None}
        stands_for(getting, "describe_task", lambda environ: task)
        self.framework = Pretend(spec["movable"], spec.get("keeps_lock", False))
        sys.modules[NAME] = self.framework
        sys.modules[f"{registry.__package__}.{NAME}"] = pretend
        stands_for(registry, "BUILT_IN", (*registry.BUILT_IN, NAME))
        self.broker = Broker(os.environ, make_display=lambda: _Watched(self.log), say=self._hears)
        self.lease = ""
        self._is_parked = False
        self._dead: str | None = None  # what it was told when its memory was lost

    def _hears(self, text: str) -> None:
        if ladder._DEAD in text:
            self._dead = text

    def run(self) -> None:
        """Until it has had its cells, or has lost something."""
        self._begin()
        if self._fill() and self._look(self.rng.uniform(0.0, 0.5)):
            for _ in range(self.spec["cells"]):
                if not (self._idle() and self._cell()):
                    break
            else:
                self._release()
        self.log.note(Saw.LET_GO, lease=self.lease)
        self.broker.close()

    def _begin(self) -> None:
        self.born()
        self.broker.set_activity(True)
        while not self._acquire():
            time.sleep(self.rng.uniform(0.05, 0.3))

    def _acquire(self) -> bool:
        t0 = self.log.note(Saw.ASKED, request="tenant", notebook=True)
        try:
            grant = self.broker.request(
                Ask(1, self.spec["memory"], self.spec.get("class")), wait_timeout=5.0
            )
        except GpuShareError as error:
            self.log.note(Saw.GAVE_UP, t0, request="tenant", why=str(error))
            return False
        self.lease = grant.lease
        self.log.note(Saw.GRANTED, t0, request="tenant", lease=self.lease, gpus=gpus_of(grant))
        return True

    def _fill(self) -> bool:
        most = self.spec["memory"] - SPARE
        first = int(most * self.rng.uniform(0.3, 0.7))
        sizes = [first, int((most - first) * self.rng.uniform(0.8, 1.0))]
        try:
            self.framework.fill(sizes, self.rng)
        except DriverSaid as error:
            self.log.note(Saw.GAVE_UP, request="fill", why=str(error))
            return False
        self.log.note(Saw.FILLED, memory=sum(sizes))
        return True

    def _idle(self) -> bool:
        """Nothing is vouched for: it may be parked at any moment. False: the lease has ended."""
        self.log.note(Saw.PARKING, lease=self.lease)
        self.broker.set_activity(False)
        until = time.monotonic() + self.rng.uniform(*self.spec["idle"])
        while time.monotonic() < until:
            time.sleep(self.rng.uniform(0.3, 1.0) * BEAT)
            if self._heartbeat() is None:
                return False
            if not self._is_parked and self.broker.state is OwnState.PARKED:
                self._is_parked = True
                given = self.broker._memory.given
                self.log.note(
                    Saw.PARKED, lease=self.lease, rung=given.rung.value, memory=given.memory
                )
        return True

    def _steps(self, seconds: float, step: Callable[[], bool]) -> bool:
        """Steps for some time, with looks at the lease. False: one of them ended its life."""
        until = look = time.monotonic()
        until += seconds
        while (now := time.monotonic()) < until:
            if not step():
                return False
            if now >= look:
                look = now + BEAT
                if self._heartbeat() is None:
                    return False
        return True

    def _heartbeat(self) -> str | None:
        return self.beat(self.broker.call, self.lease)

    def _cell(self) -> bool:
        """Be busy for some time, with all that was there. False: its life is over."""
        own = self.broker
        own.set_activity(True)
        t0 = boot()
        own.cells.before_cell()
        if own.cells.barred is not None:
            is_lost = ladder._DEAD in own.cells.barred
            self.log.note(Saw.GIVEN_UP if is_lost else Saw.BARRED, t0, why=own.cells.barred)
            return not is_lost
        if own.state is not OwnState.HELD or own.lease != self.lease:
            # Whether that may be is the checker's question.
            self.log.note(Saw.LOST, t0, lease=self.lease, message=f"it is {own.state.value}")
            return False
        return self._look(self.rng.uniform(0.1, 1.0))

    def _look(self, seconds: float) -> bool:
        """Look at the lease for some time, and at the memory. False: its life is over."""
        until, is_held = time.monotonic() + seconds, False
        while True:
            t0 = boot()
            state = self._heartbeat()
            if state is None:
                return False
            grant = self.broker.grant
            if state == "held" and not is_held and grant is not None:
                is_held = True
                gpus = gpus_of(grant)
                self.log.note(Saw.GRANTED, t0, request="cell", lease=self.lease, gpus=gpus)
            if is_held and time.monotonic() >= until:
                break
            time.sleep(BEAT)
        t0 = boot()
        try:
            is_whole = self.framework.is_whole()
        except DriverSaid as error:
            self.log.note(Saw.GIVEN_UP, t0, why=str(error))
            return False
        self.log.note(Saw.WHOLE if is_whole else Saw.DAMAGED, t0, parked=self._is_parked)
        self._is_parked = False
        return is_whole

    def _release(self) -> None:
        self.give_back(self.lease, self.broker.release)
        # CUDA keeps what it has until the process ends.
        time.sleep(self.rng.uniform(0.0, 0.5))
