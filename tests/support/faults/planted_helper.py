"""A checkpoint helper with a bug: it does not unlock what the helper before it had locked.

See ``planted.py``. Its heir, which follows when it is killed, has the same bug.
"""

from __future__ import annotations

import sys

from jupyter_gpushare.node.checkpoint import supervisor
from jupyter_gpushare.node.checkpoint.locks import Locks

if __name__ == "__main__":
    Locks.unlock_left = lambda locks: None
    original = supervisor.heir_command

    def heir_command(place, idle):
        command = original(place, idle)
        return [*command[:3], "support.faults.planted_helper", *command[4:]]

    supervisor.heir_command = heir_command
    sys.exit(supervisor.main())
