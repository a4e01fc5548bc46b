"""What all clients of the storm do: all that happens to them is written down as it was seen."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_gpushare.client.errors import GpuShareError, LeaseLost
from jupyter_gpushare.client.words.grant import Grant
from jupyter_gpushare.protocol.messages import Method

from .observed import Log, Saw, boot


def gpus_of(grant: Grant) -> list[list[Any]]:
    """The GPUs of a grant: UUID and promised bytes."""
    return [[gpu.uuid, gpu.memory] for gpu in grant.gpus]


class Client:
    """One life. ``spec`` is its part in the storm: see ``storm.py``."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.rng = random.Random(spec["seed"])
        self.log = Log(Path(spec["log"]))

    def born(self) -> None:
        environment, role = self.spec["environment"], self.spec["role"]
        self.log.note(Saw.BORN, pid=os.getpid(), environment=environment, role=role)

    def beat(self, call: Callable[..., Any], lease: str, request: str | None = None) -> str | None:
        """What the node manager says of the lease; ``None``: it has ended. Empty: no answer."""
        t0 = boot()
        try:
            state = str(call(Method.HEARTBEAT, lease=lease)["state"])
        except LeaseLost as error:
            self.log.note(Saw.LOST, t0, lease=lease, message=str(error))
            return None
        except GpuShareError as error:
            self.log.note(Saw.GAVE_UP, t0, lease=lease, why=type(error).__name__)
            return ""
        self.log.note(Saw.ALIVE, t0, lease=lease, state=state, request=request)
        return state

    def give_back(self, lease: str, release: Callable[[], str | None]) -> None:
        """By ``release``, which returns the state that the lease has then."""
        t0 = self.log.note(Saw.RELEASING, lease=lease)
        try:
            state = release()
        except LeaseLost:
            self.log.note(Saw.LOST, t0, lease=lease, message="released, but unknown")
        except GpuShareError as error:
            self.log.note(Saw.GAVE_UP, t0, lease=lease, why=str(error))
        else:
            self.log.note(Saw.RELEASED, t0, lease=lease, state=state)
