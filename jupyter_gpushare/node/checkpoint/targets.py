"""Files beside the helper's socket that name processes, for a helper that comes after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from jupyter_gpushare.protocol.checkpoint import Target
from jupyter_gpushare.protocol.privateplace import replace_private


def write_targets(path: str, targets: Iterable[Target]) -> None:
    """Replace the file as a whole; without targets there is none. Raises ``OSError``."""
    if text := "".join(f"{target.pid} {target.start_time}\n" for target in targets):
        replace_private(path, text.encode(), lasting=False)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def read_targets(path: str) -> tuple[Target, ...]:
    """What it names; nothing where it is not there, and what makes no sense is passed over."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(path, flags), encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ()
    return tuple(
        Target(int(words[0]), int(words[1]))
        for words in lines
        if len(words) == 2 and all(word.isdecimal() for word in words)
    )
