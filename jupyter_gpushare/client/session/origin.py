"""Gathers the facts by which a request that names no class gets one (:mod:`..words.classes`).

They come from ``/proc`` and the environment. A fact that cannot be read counts as false.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from ...protocol import names
from ...protocol.batchjob import came_along
from ...protocol.processes import parent_of, status_of
from ..words.classes import Origin
from .task import running_kernel

#: Programs that run notebooks for nobody to watch, as commands and as modules (``-m``).
RUNNERS: Final = (
    "papermill",
    "jupyter-nbconvert",
    "jupyter-execute",
    "jupyter-run",
    "nbconvert",
    "nbclient",
)
_MOST_ANCESTORS: Final = 64


def origin(environ: Mapping[str, str]) -> Origin:
    """The facts about this process."""
    is_kernel = running_kernel() is not None
    # A job that is submitted in a kernel has its variables, too, and nobody waits for the job.
    is_theirs = not is_kernel and not came_along(environ)
    return Origin(
        kernel=is_kernel,
        of_kernel=is_theirs and any(name in environ for name in names.OF_KERNEL),
        foreground=_is_in_foreground(),
        nohup=_survives_its_terminal(),
        runner=_runner_above(os.getppid()),
    )


@cache  # who started a process stays the same, and to read it takes as long as a grant
def _runner_above(parent: int) -> str:
    """The first of :data:`RUNNERS` from this process up; empty: there is none."""
    return next((found for words in _line_of(parent) if (found := runner_of(words))), "")


def runner_of(command: Sequence[str]) -> str:
    """Which of :data:`RUNNERS` a command line is; empty: none.

    It may be a script, which Python runs, or a module.
    """
    for at, word in enumerate(command[:3]):
        name = os.path.basename(word).removesuffix(".exe")
        is_module = at > 0 and command[at - 1] == "-m"
        is_command = at == 0 or (at == 1 and not word.startswith("-"))
        if name in RUNNERS and (is_module or is_command):
            return name
    return ""


def _is_in_foreground() -> bool:
    """Whether it has a controlling terminal, and its group is the one that the terminal heeds."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _survives_its_terminal() -> bool:
    """Whether it ignores the terminal's end because it was told so itself, as by ``nohup``.

    A server that was started so passes it on to its kernels and terminals, and these to all that
    runs in them. So it does not count where whoever leads this session ignores it, too, or the one
    who started that (an interactive shell heeds it, and its programs do not).
    """
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        return False
    leader = os.getsid(0)
    before = {leader, parent_of(leader)} - {os.getpid()}
    return not any(map(_ignores_hang_up, before))


def _ignores_hang_up(pid: int) -> bool:
    (ignored,) = status_of(pid, "SigIgn") or ["0"]
    return bool(int(ignored, 16) & 1 << signal.SIGHUP - 1)


def _line_of(pid: int) -> Iterator[Sequence[str]]:
    """The command lines of a process and its parents, the nearest first."""
    for _ in range(_MOST_ANCESTORS):
        if pid <= 1:
            return
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read(4096)
        except OSError:
            return
        yield [os.fsdecode(word) for word in line.split(b"\0")]
        pid = parent_of(pid)
