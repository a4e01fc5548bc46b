"""Where the node manager's socket is, without importing Jupyter."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from . import names

SYSTEM_SOCKET: Final = "/run/jupyter-gpushare/node.sock"
EMBEDDED_NAME: Final = "gpushare-node.sock"


@dataclass(frozen=True, slots=True)
class Found:
    """A socket's path. ``configured``: somebody said it must be there."""

    path: str
    configured: bool


def system_socket() -> str:
    """The socket of a node manager for all users of the host."""
    return SYSTEM_SOCKET


def embedded_socket(runtime_dir: str) -> str:
    """The socket of a node manager that a Jupyter server of this user hosts."""
    return os.path.join(runtime_dir, EMBEDDED_NAME)


def jupyter_runtime_dir(environ: Mapping[str, str]) -> str:
    """Jupyter's runtime directory by the rules of ``jupyter_core.paths`` on Linux."""
    if runtime := environ.get("JUPYTER_RUNTIME_DIR"):
        return runtime
    if data := environ.get("JUPYTER_DATA_DIR"):
        return os.path.join(data, "runtime")
    home = environ.get("XDG_DATA_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".local", "share"
    )
    return os.path.join(home, "jupyter", "runtime")


def find_socket(environ: Mapping[str, str], system: str = SYSTEM_SOCKET) -> Found | None:
    """The socket to use, or ``None`` when no node manager is set up here.

    The environment variable counts even when nothing is there: somebody
    wanted a node manager. A socket found by itself must belong to root or to
    us, or another user could plant one.
    """
    if configured := environ.get(names.SOCKET):
        return Found(configured, configured=True)
    for path in (system, embedded_socket(jupyter_runtime_dir(environ))):
        if _is_trusted_socket(path):
            return Found(path, configured=False)
    return None


def is_administrators(found: Found, environ: Mapping[str, str]) -> bool:
    """Whether an administrator may have put the node manager there.

    Not so for the one that a Jupyter server hosts: it knows people by their OS
    user, and has no business with a token of the Hub's.
    """
    if found.path == embedded_socket(jupyter_runtime_dir(environ)):
        return False
    return found.configured or found.path == SYSTEM_SOCKET


def _is_trusted_socket(path: str) -> bool:
    try:
        there = os.stat(path)
    except OSError:
        return False
    # Only root can make the directory under /run, so whoever listens there was let in by root.
    trusted = path == SYSTEM_SOCKET or there.st_uid in (0, os.getuid())
    return stat.S_ISSOCK(there.st_mode) and trusted
