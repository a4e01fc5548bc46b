"""The class of a request that names none, by what its process is. Pure: facts in, a word out."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """Plain facts about a process.

    ``kernel``: it is a Jupyter kernel. ``of_kernel``: one started it, directly or not.
    ``foreground``: it is in the foreground of a terminal. ``nohup``: it was told to outlive its
    terminal. ``runner``: the program that started it, directly or not, if that
    runs notebooks for nobody to watch; empty: none.
    """

    kernel: bool = False
    of_kernel: bool = False
    foreground: bool = False
    nohup: bool = False
    runner: str = ""


def class_of(origin: Origin) -> str:
    """``interactive`` where a person waits, as far as can be told, else ``batch``."""
    if origin.runner or (origin.nohup and not origin.kernel):
        return "batch"
    return "interactive" if origin.kernel or origin.foreground or origin.of_kernel else "batch"
