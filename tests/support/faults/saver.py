"""A batch program that can be stopped: it saves its state, ends, and goes on from there later.

Its state is a number of steps, in a file that outlives it. The harness starts the next one with the
same file, as ``run --requeue`` does. It uses the product's own ``Broker`` and ``Stopping``.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from jupyter_gpushare.client.errors import Preempted

from .observed import Saw, boot
from .tenant import Tenant


class Saver(Tenant):
    """One life."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._file = Path(spec["file"])
        # Between the two numbers lies a step: what is saved then is worth nothing.
        self._begun = self._done = self._load()

    def run(self) -> None:
        """Count until its time is over, or it is stopped."""
        if self.spec["says_first"]:
            self._say()
            self._begin()
        else:
            self._begin()
            self._say()
        try:
            if self._steps(self.rng.uniform(*self.spec["hold"]), self._step):
                self._release()
        except Preempted:
            return  # its process ends, and the kernel tells so
        self.log.note(Saw.LET_GO, lease=self.lease)
        self.broker.close()

    def _load(self) -> int:
        t0 = boot()
        count = int(json.loads(self._file.read_text())) if self._file.exists() else 0
        self.log.note(Saw.LOADED, t0, slot=self.spec["slot"], count=count)
        return count

    def _say(self) -> None:
        """How it is stopped. What the product tells it, and answers for it, is written down."""
        stopping = self.broker.stopping
        wanted, kept = stopping.wanted, stopping._tell_kept

        def told(seconds: float) -> None:
            self.log.note(Saw.TOLD, lease=self.lease, seconds=seconds)
            wanted(seconds)

        def keeps(why: str) -> None:
            self.log.note(Saw.KEEPS, lease=self.lease, why=why)
            kept(why)

        stopping.wanted, stopping._tell_kept = told, keeps  # type: ignore[method-assign]
        stopping._say = self._hears
        self.log.note(Saw.SAYS)
        self.broker.stops_by(self._save)

    def _save(self) -> None:
        data = {"slot": self.spec["slot"], "count": self._done, "begun": self._begun}
        self.log.note(Saw.SAVING, **data)
        scratch = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        scratch.write_text(json.dumps(self._done))
        time.sleep(self.rng.uniform(*self.spec["save"]))  # gigabytes, for a real program
        if self.rng.random() < self.spec["fails"]:
            raise OSError("the disk is full")
        scratch.replace(self._file)
        self.log.note(Saw.SAVED, **data)

    def _step(self) -> bool:
        """Raises ``Preempted``."""
        self._begun += 1
        time.sleep(self.rng.uniform(0.02, 0.2))  # the pretend GPU computes
        self._done += 1
        self.log.note(Saw.COUNTED, slot=self.spec["slot"], count=self._done)
        if self.spec["gates"]:
            self.broker.stopping.gate()
        return True
