"""Finds the node manager's socket without importing Jupyter.

The socket of a node manager that a Jupyter server hosts has the host's name: hosts may share the
home directory, and a node manager owns the GPUs of one host. In a batch system's job it has the
job's name, too: there it owns the GPUs of that job.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from . import names
from .batchjob import has_anothers_socket, job_of, step_of

SYSTEM_SOCKET: Final = "/run/jupyter-gpushare/node.sock"
EMBEDDED_STEM: Final = "gpushare-node"
#: Before the digits of what belongs to a batch system's job, which ends soon.
JOB_PREFIX: Final = "job"
_MACHINE_ID: Final = "/etc/machine-id"
#: Seconds for which a node manager for all users, which left its folder, is expected back.
AWAY_FOR: Final = 300.0
#: What ends that at once.
CLEARED_BY: Final = f"sudo rm -f {SYSTEM_SOCKET}; sudo rmdir {os.path.dirname(SYSTEM_SOCKET)}"


class Found(NamedTuple):
    """A socket's path. ``configured``: somebody said it must be there."""

    path: str
    configured: bool


class Presence(Enum):
    """What can be said of a node manager for all users of the host.

    Its folder outlives it: a restart must not look as if there were none. A folder where nobody has
    listened for longer than that is left from one that was stopped for good or removed.
    """

    THERE = "there"
    AWAY = "away"
    GONE = "gone"


def system_socket() -> str:
    """The socket of a node manager for all users of the host."""
    return SYSTEM_SOCKET


def presence(system: str = SYSTEM_SOCKET, wall: Callable[[], float] = time.time) -> Presence:
    """Whether one listens at ``system``, or is expected back there. Does not wait."""
    try:
        last = os.stat(os.path.dirname(system)).st_mtime  # when a name there came or went
    except OSError:
        return Presence.GONE
    from .sockets import answers  # few processes need it

    if answers(system):
        return Presence.THERE
    with contextlib.suppress(OSError):  # it may have taken its socket along
        last = max(last, os.stat(system).st_mtime)  # it touches it now and then
    return Presence.AWAY if wall() - last < AWAY_FOR else Presence.GONE


def host_id(environ: Mapping[str, str], machine_id: str = _MACHINE_ID) -> str:
    """Eight hexadecimal digits for this host; in a batch system's job, ``job`` and eight for both.

    Of what the environment says, else of the machine's id, which is not to be shown itself, else
    of the host's name: a container may have no such id. A step that has a part of its job's GPUs is
    like a job.
    """
    return _digits(environ, f"{job_of(environ)} {step_of(environ)}".strip(), machine_id)


def _digits(environ: Mapping[str, str], job: str, machine_id: str = _MACHINE_ID) -> str:
    name = environ.get(names.HOST) or _read_id(machine_id) or os.uname().nodename
    text = f"{name} {job}" if job else name
    digits = hashlib.blake2b(text.encode(), digest_size=4, person=b"gpushare").hexdigest()
    return JOB_PREFIX + digits if job else digits


def _read_id(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(64).strip()
    except OSError:
        return ""
    return text if len(text) == 32 else ""  # "uninitialized", at the first boot


def embedded_socket(runtime_dir: str, host: str) -> str:
    """The socket of a node manager that a Jupyter server of this user hosts on ``host``."""
    return os.path.join(runtime_dir, f"{EMBEDDED_STEM}-{host}.sock")


def _embedded_sockets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where a server of this user hosts a node manager for us: for our step, else for our job."""
    hosts = [host_id(environ)]
    if step_of(environ):
        hosts.append(_digits(environ, job_of(environ)))
    return tuple(embedded_socket(jupyter_runtime_dir(environ), host) for host in hosts)


def is_another_hosts(path: str, environ: Mapping[str, str]) -> bool:
    """Whether ``path`` is of a node manager that this user's server hosts on another host or job.

    A batch job inherits the environment of the terminal in which it was submitted.
    """
    return _is_embedded(path, environ) and path not in _embedded_sockets(environ)


def _is_embedded(path: str, environ: Mapping[str, str]) -> bool:
    """Whether the node manager there is hosted by a Jupyter server of this user, on any host."""
    folder, name = os.path.split(path)
    ours = name.startswith(EMBEDDED_STEM) and name.endswith(".sock")
    return ours and folder == jupyter_runtime_dir(environ)


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


def configured_socket(environ: Mapping[str, str]) -> str | None:
    """The path that the environment variable names for this host, or ``None``."""
    path = environ.get(names.SOCKET)
    if not path or is_another_hosts(path, environ) or has_anothers_socket(environ):
        return None
    return path


def find_socket(
    environ: Mapping[str, str],
    system: str = SYSTEM_SOCKET,
    wall: Callable[[], float] = time.time,
) -> Found | None:
    """The socket to use, or ``None`` when no node manager is set up here.

    The environment variable counts even when no socket is there: the user wanted a node manager. So
    does the system's while it is away for a moment. A socket found without the variable must belong
    to root or to us, because another user could plant one.
    """
    configured = configured_socket(environ)
    if configured is not None:
        return Found(configured, configured=True)
    embedded = next(filter(_is_trusted_socket, _embedded_sockets(environ)), None)
    hosted = None if embedded is None else Found(embedded, configured=False)
    if _is_trusted_socket(system):
        is_left = hosted is not None and presence(system, wall) is Presence.GONE
        return hosted if is_left else Found(system, configured=False)
    if hosted is None and not os.path.lexists(system) and presence(system, wall) is Presence.AWAY:
        return Found(system, configured=False)
    return hosted


def is_administrators(found: Found, environ: Mapping[str, str]) -> bool:
    """Whether an administrator may have put the node manager there.

    False for a node manager that a Jupyter server hosts: it identifies people by their OS user and
    must not get a token of the Hub.
    """
    if _is_embedded(found.path, environ):
        return False
    return found.configured or found.path == SYSTEM_SOCKET


def told_token(environ: Mapping[str, str], *, shows_hub: bool) -> str | None:
    """The token by which this process says who it is; a file is better than the variable, as it
    shows in no process list.

    ``shows_hub``: the one that JupyterHub gave it will do, where ``JUPYTER_GPUSHARE_IDENTITY`` says
    so.
    """
    if token := environ.get(names.TOKEN):
        return token
    if path := environ.get(names.TOKEN_FILE):
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as file:
                return file.read().strip() or None
        except (OSError, UnicodeDecodeError):
            # The node manager will say that it wants a token.
            return None
    if shows_hub and environ.get(names.IDENTITY) == "hub":
        return environ.get(names.HUB_TOKEN) or None
    return None


def _is_trusted_socket(path: str) -> bool:
    try:
        there = os.stat(path)
    except OSError:
        return False
    # Only root can make the directory under /run, so root has allowed the listener there.
    trusted = path == SYSTEM_SOCKET or there.st_uid in (0, os.getuid())
    return stat.S_ISSOCK(there.st_mode) and trusted
