"""A program that nobody speaks for, parked while it rests and woken when it computes again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..client.errors import GpuShareError, LeaseLost, NotGranted
from ..client.memory.bystanders import Bystanders
from ..client.memory.driver import StartedTree
from ..client.memory.ladder import Ladder
from ..client.memory.oneatatime import one_at_a_time
from ..client.words.recalls import Recall
from ..protocol import hostmemory
from .holding import Holding
from .keeper import Keeper, Rest
from .resting import Used, processor_time, rate, wants
from .tree import KeptTree

#: Seconds over which its usual rate is measured, and between two tries to have a free GPU.
USUALLY: Final = 10.0


def ladder_of(tree: KeptTree, environ: Mapping[str, str], say: Callable[[str], None]) -> Ladder:
    """The ladder that parks a tree by the driver alone."""
    return Ladder(
        None,
        tree,
        say,
        tree.objection,
        bystanders=Bystanders,  # its code may run: it waits in its next CUDA call
        room=lambda: hostmemory.room(hostmemory.look()),
        alone=lambda: one_at_a_time(environ),
    )


class RestingProgram:
    """Keeps one program. `look` is called all the time, ``every`` so many seconds."""

    every: Final = 1.0

    def __init__(
        self,
        holding: Holding,
        request: Mapping[str, Any],
        command: Sequence[str],
        environ: Callable[[], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        self._tree = KeptTree(holding, command, environ)
        ladder = ladder_of(self._tree, environ(), say)
        self._keeper = Keeper(holding, request, ladder, self._tree, say=say)
        self._say = say
        self._usual, self._since = 0.0, Used(0.0, time.monotonic())
        self._last, self._tried_at = self._since, 0.0
        self._waking: threading.Thread | None = None

    def start(self) -> StartedTree:
        """Start it. Raises :class:`GpuShareError`, ``OSError``."""
        self._tree.start()
        assert self._tree.started is not None
        return self._tree.started

    def asked(self, recall: Recall) -> None:
        """The node manager wants its memory; on the session's thread."""
        self._keeper.asked(recall)

    def look(self) -> None:
        """Wake it where it computes more than it did while it rested. Never waits."""
        now = Used(processor_time(self._tree.processes()), time.monotonic())
        before, self._last = self._last, now
        if self._keeper.rest is not Rest.ASLEEP:
            if now.at - self._since.at >= USUALLY:
                self._usual, self._since = rate(self._since, now), now
            return
        if self._waking is not None and self._waking.is_alive():
            return
        wanted = wants(before, now, self._usual)
        if wanted or now.at - self._tried_at >= USUALLY:
            self._tried_at = now.at
            self._waking = threading.Thread(target=self._wake, args=(wanted,), daemon=True)
            self._waking.start()

    def _wake(self, wanted: bool) -> None:
        if wanted:
            self._say("The command computes again, and waits for its GPU.")
        try:
            self._keeper.wake(wait=wanted)
            self._say("The command has its GPU memory again.")
        except NotGranted:
            pass  # no GPU is free, and it does not need one yet
        except LeaseLost as error:
            self._say(str(error))
        except GpuShareError as error:
            self._say(f"{error} It is tried again.")
