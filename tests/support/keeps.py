"""A keeper of one program, in a process of its own: ``python keeps.py NAME COMMAND…``.

The program has this process's standard input and output. It rests from the beginning.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from jupyter_gpushare.client.words.recalls import MEMORY, read_recall
from jupyter_gpushare.keeper.holding import Holding
from jupyter_gpushare.keeper.keeper import Keeper
from jupyter_gpushare.keeper.program import ladder_of
from jupyter_gpushare.keeper.record import Record
from jupyter_gpushare.keeper.tree import KeptTree
from jupyter_gpushare.protocol.checkpoint import State
from jupyter_gpushare.protocol.messages import Notification

REQUEST = {"task": {"name": "kept", "kind": "process"}, "memory": 3 * 2**30, "keeper": True}


class Kept:
    """A keeper with all that is around it; ``say`` hears what it tells people."""

    def __init__(self, environ: Mapping[str, str], name: str, command: Sequence[str]) -> None:
        self.record = Record(environ, name)
        self.holding = Holding(environ, on_lost=self._lost, on_notice=self._noticed)
        self.tree = KeptTree(self.holding, command, self.holding.environ_of_program)
        ladder = ladder_of(self.tree, environ, self._say)
        self.keeper = Keeper(self.holding, REQUEST, ladder, self.tree, say=self._say)

    def begin(self) -> None:
        """Ask for the GPU, and start the program."""
        self.holding.ask(REQUEST, 60.0)
        self.tree.start()
        self.record.write(self.tree.noted())
        self.keeper.set_busy(False)

    def succeed(self) -> None:
        """Take over from a keeper that was killed."""
        noted = self.record.read()
        assert noted is not None
        holds = self.holding.succeed(noted.grant, noted.secret, noted.root.pid)
        state = self.tree.succeed(noted)
        self.keeper.succeeds(holds=holds, checkpointed=state is State.CHECKPOINTED)

    def _lost(self, _lease: str, message: str, _released: bool) -> None:
        self.keeper.lost(message)

    def _noticed(self, told: Notification) -> None:
        recall = read_recall(told)
        if recall is not None and recall.give in MEMORY:
            self.keeper.asked(recall)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    Kept(os.environ, sys.argv[1], sys.argv[2:]).begin()
    signal.pause()
