"""Describes this process to people. The node manager trusts none of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from ...protocol import names

SESSION_NAME: Final = "JPY_SESSION_NAME"  # Jupyter's: what a kernel's session is for

_LONGEST_NAME: Final = 256
_LONGEST_PATH: Final = 4096
_CONNECTION_FILE: Final = r"kernel-([A-Za-z0-9_-]{1,100})\.json"


def running_kernel() -> Any:
    """The application of the Jupyter kernel that this process is, or ``None``. Imports nothing.

    A child that a kernel has forked is a process of its own.
    """
    kind = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    app = kind.instance() if kind is not None and kind.initialized() else None
    session = getattr(app, "session", None)
    return app if getattr(session, "pid", None) == os.getpid() else None


def is_worker() -> bool:
    """Whether :mod:`multiprocessing` has started this process, which ends with its parent then."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def describe_task(environ: Mapping[str, str]) -> dict[str, Any]:
    """The ``task`` of a request."""
    app = running_kernel()
    task = _process() if app is None else _kernel(app, environ)
    if job := _clean(environ.get(names.JOB, ""), _LONGEST_NAME):
        task["job"] = job
        task["job_kind"] = _clean(environ.get(names.JOB_KIND, ""), _LONGEST_NAME) or None
    return task


def _kernel(app: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    file = str(getattr(app, "connection_file", ""))
    return describe_kernel(file, environ, notebook_path(app, environ))


def describe_kernel(file: str, environ: Mapping[str, str], path: str | None) -> dict[str, Any]:
    """The ``task`` of a kernel with this connection file and this notebook."""
    match = re.fullmatch(_CONNECTION_FILE, os.path.basename(file))
    # Servers without our extension do not tell the kernel its id; its file's name does.
    kernel_id = environ.get(names.KERNEL_ID) or (match[1] if match else None)
    name = os.path.basename(path) if path else "notebook"
    return {
        "name": _clean(name, _LONGEST_NAME) or "notebook",
        "kind": "kernel",
        "kernel_id": _clean(kernel_id or "", 128) or None,
        "path": _clean(path or "", _LONGEST_PATH) or None,
    }


def notebook_path(app: Any, environ: Mapping[str, str]) -> str | None:
    """The path of a kernel's notebook, as its session or its editor names it."""
    names_there = getattr(getattr(app, "shell", None), "user_ns", {})
    path = environ.get(SESSION_NAME) or names_there.get("__vsc_ipynb_file__")
    return path if isinstance(path, str) else None


def _process() -> dict[str, Any]:
    arguments = [*getattr(sys, "orig_argv", [])]
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    # While Python looks for the module, `-m` stands where the script's path will be.
    if "-m" in arguments[:-1] and (script == "-m" or not script):
        name, path = f"python -m {arguments[arguments.index('-m') + 1]}", None
    elif script in ("", "-", "-c", "-m"):
        name, path = "python", None
    else:
        name, path = os.path.basename(script), os.path.abspath(script)
    return {
        "name": _clean(name, _LONGEST_NAME) or "python",
        "kind": "process",
        "path": _clean(path or "", _LONGEST_PATH) or None,
    }


def _clean(text: str, most: int) -> str:
    """The text as a message may carry it: printable Unicode, not too long."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(filter(str.isprintable, plain))[:most]
