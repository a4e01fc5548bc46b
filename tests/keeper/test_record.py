"""What a keeper notes of its program is whole, whoever writes it at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from jupyter_gpushare.keeper.record import Noted, Record, noted
from jupyter_gpushare.protocol.checkpoint import Target
from jupyter_gpushare.protocol.processes import start_time


def test_threads_that_write_at_once_do_not_meet(tmp_path: Path) -> None:
    """The keeper's threads and the one that starts the program."""
    root = Target(os.getpid(), start_time(os.getpid()) or 0)
    failed: list[Exception] = []
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with contextlib.closing(Record(environ, "it")) as record:

        def write(name: str) -> None:
            try:
                for number in range(200):
                    record.write(Noted(name, number, root, {}, ""))
            except OSError as error:
                failed.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        found = noted(environ, "it")
    assert not failed
    assert found is not None
    assert found.helper == 199
