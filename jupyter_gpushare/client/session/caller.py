"""Gathers the facts by which an import of a framework is a wish for a GPU (:mod:`..words.callers`).

They come from the stacks of this process's threads and from its open files. Nothing is imported.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from ...protocol.processes import open_files
from ..words.callers import Caller, Doing, Facts, caller_of, command_words
from .task import running_kernel

#: Modules whose code looks at names for a person who types, and packages that do.
_LOOKERS: Final = frozenset({
    *("IPython.core.completer", "IPython.core.completerlib", "IPython.core.oinspect"),
    *("rlcompleter", "ptpython.completer"),
})  # fmt: skip
_LOOKING_PACKAGES: Final = frozenset({"jedi", "parso", "_pyrepl"})
#: A kernel's and a shell's answers to the same questions, and their packages.
_LOOKING: Final = frozenset({"do_complete", "do_inspect", "object_inspect_mime"})
_SHELLS: Final = frozenset({"ipykernel", "IPython"})
_SHELL: Final = "IPython.core.interactiveshell"
_SET_UP: Final = "IPython.core.shellapp"
#: Modules that run an event loop.
_LOOPS: Final = frozenset(
    {"asyncio.base_events", "asyncio.runners", "tornado.platform.asyncio", "trio._core._run"}
)
#: Applications that serve people, and their modules.
_SERVERS: Final = (
    ("jupyter_server.serverapp", "ServerApp"),
    ("jupyterhub.app", "JupyterHub"),
    ("notebook.notebookapp", "NotebookApp"),
)


def this_caller() -> Caller:
    """Who runs code in this thread now."""
    kernel = running_kernel() is not None
    doing, starts, in_loop = _on_stack(sys._getframe(1))
    return caller_of(
        Facts(
            kernel=kernel,
            doing=doing,
            starts=starts,
            silent=kernel and doing is Doing.CELL and _is_silent(),
            serves=not kernel and _serves(in_loop),
            in_loop=in_loop,
            words=command_words(getattr(sys, "orig_argv", [])),
        )
    )


def _on_stack(frame: FrameType | None) -> tuple[Doing, bool, bool]:
    """What a thread does; whether an IPython application is set up there; whether a loop runs."""
    doing, modules = Doing.OTHER, set[str]()
    while frame is not None:
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        modules.add(module)
        if doing is Doing.OTHER:
            doing = _says(module, name)
        frame = frame.f_back
    return doing, _SET_UP in modules, not _LOOPS.isdisjoint(modules)


def _says(module: str, function: str) -> Doing:
    if module == _SHELL and function == "run_code":
        return Doing.CELL
    package = module.partition(".")[0]
    looks = module in _LOOKERS or package in _LOOKING_PACKAGES
    looks = looks or (package in _SHELLS and function in _LOOKING)
    return Doing.LOOKS if looks else Doing.OTHER


def _is_silent() -> bool:
    """Whether the request that a kernel's shell executes is a front end's own."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    parent: Any = getattr(shell, "parent_header", None)
    with suppress(KeyError, TypeError):
        return parent["content"]["silent"] is True
    return False


def _serves(in_loop: bool) -> bool:
    """Whether others call this process: a Jupyter server, or an event loop beside which it listens.

    A program under ``asyncio.run`` that listens nowhere serves nobody.
    """
    for module, name in _SERVERS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and kind.initialized():
            return True
    if not in_loop:
        main = threading.main_thread().ident
        in_loop = main is not None and _on_stack(sys._current_frames().get(main))[2]
    return in_loop and _listens()


def _listens() -> bool:
    """Whether this process has a socket that accepts connections."""
    for number, file in open_files():
        if file.startswith("socket:"):
            with (
                suppress(OSError),  # it was closed meanwhile
                # A copy, which may be closed. The family is said for Python's sake: the kernel asks
                # its own.
                socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as copy,
            ):
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return True
    return False
