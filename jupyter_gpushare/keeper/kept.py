"""A program, its lease, and the keeper that parks it: what all kinds of kept programs share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..client.adapters.parkers.base import Parker
from ..client.errors import GpuShareError
from ..client.memory.bystanders import Bystanders
from ..client.memory.ladder import CONTEXT, Framework, Ladder
from ..client.memory.oneatatime import one_at_a_time
from ..client.words.recalls import MEMORY, read_recall
from ..protocol import hostmemory
from ..protocol.checkpoint import State
from ..protocol.messages import Notification
from .holding import Holding, say
from .keeper import Keeper, Rest
from .record import Noted, Record
from .tree import KeptTree


class Kept:
    """Holds them together. Subclasses say what is different of their kind.

    ``record`` is for a successor; without one there is none. ``frameworks``: what puts the program
    to sleep by its own means. ``how`` is as of `KeptTree`.
    """

    def __init__(
        self,
        holding: Holding,
        request: Mapping[str, Any],
        command: Sequence[str],
        *,
        record: Record | None = None,
        frameworks: Callable[[], Sequence[Framework]] | None = None,
        **how: Any,
    ) -> None:
        self.holding, self.request, self.record = holding, request, record
        self.tree = KeptTree(
            holding,
            command,
            self.environ,
            ready=self.until_ready,
            parks=lambda: self.note(checkpointed=True),
            **how,
        )
        self.ladder = Ladder(
            frameworks,
            self.tree,
            say,
            self.tree.objection,
            bystanders=Bystanders,  # its code may run: it waits in its next CUDA call
            room=lambda: hostmemory.room(hostmemory.look()),
            alone=lambda: one_at_a_time(holding.environ),
        )
        self.keeper = Keeper(holding, request, self.ladder, self.tree, on_rest=self.rests, say=say)
        self._waking: threading.Thread | None = None
        #: Bytes that it had on GPUs when its memory was asked for last.
        self.used = 0

    # -- what is different -------------------------------------------------------------

    def environ(self) -> Mapping[str, str]:
        """The program's environment."""
        return self.holding.environ_of_program()

    def until_ready(self) -> None:
        """It was started: return when it can be used. Raises :class:`GpuShareError`."""
        self.note()

    def more(self) -> dict[str, Any]:
        """What a successor needs to know beside."""
        return {}

    def rests(self, rest: Rest) -> None:
        """On the thread that changed it; it must not wait."""
        if rest in (Rest.AWAKE, Rest.ASLEEP):
            self.note()

    # -- what the node manager says, on the session's thread ---------------------------

    def noticed(self, told: Notification) -> None:
        """There is news of the lease."""
        recall = read_recall(told)
        if recall is not None and recall.give in MEMORY:
            self.used = sum(CONTEXT if need.used is None else need.used for need in recall.needs)
            self.keeper.asked(recall)

    def lost(self, message: str) -> None:
        """The lease has ended without us."""
        self.keeper.lost(message)

    # -- both --------------------------------------------------------------------------

    def wakes(self, wake: Callable[[], None]) -> None:
        """Do this on a thread of its own, unless that is being done."""
        if self._waking is None or not self._waking.is_alive():
            self._waking = threading.Thread(target=wake, daemon=True)
            self._waking.start()

    def note(self, *, checkpointed: bool | None = None) -> None:
        """What a successor needs to know; ``checkpointed``: the driver is about to do that."""
        holding, tree, started = self.holding, self.tree, self.tree.started
        if self.record is None or started is None or holding.lease is None:
            return
        self.record.write(
            Noted(
                tree.place,
                tree.helper,
                started.root,
                holding.told,
                holding.secret,
                self.ladder.checkpointed if checkpointed is None else checkpointed,
                self.more(),
            )
        )

    def succeed(self, noted: Noted, moved: Sequence[Parker] = ()) -> bool:
        """Whether it goes on with the program of a keeper that was killed, which is ended if not.

        ``moved``: what has put it to sleep by its own means.
        """
        state = self.tree.succeed(noted)
        try:
            holds = self.holding.succeed(noted.grant, noted.secret, noted.root.pid)
        except GpuShareError as error:
            say(f"{error} What was left is ended.")
            self.tree.stop()
            return False
        # The driver may say it to ancestors only, of which the last may have been killed.
        parked = noted.checkpointed if state is None else state is not State.RUNNING
        self.keeper.succeeds(holds=holds, checkpointed=parked, moved=moved)
        say("It goes on with what another one has left.")
        return True

    def close(self) -> None:
        """The program has ended: give the lease back, unless others have joined it and go on."""
        if self.record is not None and self.tree.place:  # else what is noted is not ours yet
            self.record.close()
        self.holding.close()
