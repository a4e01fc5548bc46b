"""A host that has nothing of ours yet, whatever its owner has installed, left or running.

The product knows some places by constants, such as ``/run/jupyter-gpushare``: while that folder is
there, a Jupyter server hosts no node manager. So the process that starts the tests looks once at
what lies in such places. Where something does, it goes on in mount namespaces of its own, in which
it does not; all that it starts inherit them, and the host sees nothing of it. It also forgets the
variables of its environment that say how Jupyter, Python or a framework shall behave.

Standard library only, since it runs before all else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
import sysconfig
import time
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import NamedTuple

#: Where the product asks whether its folders exist: they must be absent.
PARENTS = ("/run", "/var/lib")
OURS = "jupyter-gpushare"
#: What says how everybody's programs shall behave: it must be empty.
FOR_ALL = (
    "/etc/ipython",
    "/etc/jupyter",
    "/etc/jupyterhub",
    "/opt/jupyterhub/etc/jupyterhub",
    "/usr/local/etc/ipython",
    "/usr/local/etc/jupyter",
    "/usr/local/share/jupyter",
    "/usr/share/jupyter",
)

#: Variables of Jupyter, of launchers, of GPUs and frameworks, of systemd, of git's hooks, and of
#: what a program writes and how.
FORGOTTEN = (
    *("JUPYTER", "JPY_", "IPYTHON", "VSCODE_", "XDG_"),
    *("RAY_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_"),
    *("PBS_", "LSB_", "OAR_", "FLUX_"),
    *("CUDA_", "HIP_", "NVIDIA_", "NCCL_", "GLOO_", "PYTORCH_", "TORCH_"),
    *("TF_", "XLA_", "JAX_", "KERAS_", "CUPY_"),
    *("LISTEN_", "NOTIFY_", "WATCHDOG_", "CREDENTIALS_", "INVOCATION_ID", "JOURNAL_"),
    *("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"),
    *("LC_", "LANGUAGE", "FORCE_COLOR", "CLICOLOR_FORCE"),
)
ALSO_FORGOTTEN = frozenset(
    {
        *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("COLUMNS", "LINES", "PAGER", "MPLBACKEND", "BROWSER"),
    }
)
#: Of Python's own ones stay those that say where code is, and which examples are drawn.
PYTHONS = frozenset(
    {
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONHASHSEED"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHON_GIL"),
    }
)
#: A cache has no say; without it each run would load everything anew.
KEPT = frozenset({"XDG_CACHE_HOME"})
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
#: This machine, and the hosts of ``support.hosts``.
NEAR = "localhost,127.0.0.1,::1,198.18.0.0/15"

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_BIND, _REC, _PRIVATE = 4096, 16384, 1 << 18


class NotOurs(Exception):
    """The host has something that changes results, and it cannot be hidden; says what to do."""


class Left(NamedTuple):
    """What the host has of ours: folders and files to hide, folders to empty."""

    hidden: tuple[str, ...]
    emptied: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join((*self.hidden, *self.emptied))


def own(folder: Path) -> None:
    """Make this process and all that it starts run as on a host that has nothing of ours.

    ``folder``: an empty one, for what programs would look for in a home. Raises :class:`NotOurs`.
    """
    environment(os.environ, folder)
    time.tzset()
    os.umask(0o022)
    if any(found := left()):
        enter(found)


def environment(environ: MutableMapping[str, str], folder: Path) -> None:
    """Forget what whoever runs the tests has set for programs like the tested ones."""
    for name in list(environ):
        python = name.startswith("PYTHON") and name not in PYTHONS
        other = name.startswith(FORGOTTEN) and name not in KEPT
        if python or other or name in ALSO_FORGOTTEN:
            del environ[name]
    environ |= {"LANG": "C.UTF-8", "TZ": "UTC"}
    # In place of ~/.jupyter, ~/.local/share/jupyter and ~/.ipython. Other things of a home stay:
    # git says there whose folders it trusts, pip where packages are, and Python may have some.
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        environ[name] = str(folder / name.lower())
    folder.chmod(0o755)  # programs that tests start as other OS users look there, too
    if any(environ.get(name) or environ.get(name.upper()) for name in PROXIES):
        for name in ("no_proxy", "NO_PROXY"):
            environ[name] = ",".join(filter(None, (environ.get(name), NEAR)))


def left() -> Left:
    """What lies in the places that the product knows."""
    hidden = []
    for parent in PARENTS:
        with contextlib.suppress(OSError):
            names = sorted(name for name in os.listdir(parent) if name.startswith(OURS))
            hidden += [f"{parent}/{name}" for name in names]
    return Left(tuple(hidden), tuple(place for place in FOR_ALL if _has(place)))


def _has(place: str) -> bool:
    """Whether something lies there that did not come with this very Python."""
    roots = {os.path.realpath(root) for root in (sys.prefix, sysconfig.get_path("data"))}
    real = os.path.realpath(place)
    if any(os.path.dirname(os.path.dirname(real)) == root for root in roots):
        return False
    try:
        return bool(os.listdir(real))
    except OSError:
        return False  # none there, or nobody may look


def enter(found: Left) -> None:
    """Go on in a mount namespace of our own, in which nothing of what was found is there.

    Only the calling thread moves, so there should be no other. Raises :class:`NotOurs`.
    """
    try:
        _unshare()
        _mount("none", "/", flags=_REC | _PRIVATE)  # from here on the host sees no mount of ours
        for parent in PARENTS:
            names = {os.path.basename(p) for p in found.hidden if os.path.dirname(p) == parent}
            if names:
                _without(os.path.realpath(parent), names)
        for place in found.emptied:
            flags = _READ_ONLY | _NO_SUID | _NO_DEVICES
            _mount("tmpfs", os.path.realpath(place), "tmpfs", flags, "mode=755")
        if os.geteuid() != 0:
            _give_up_capabilities()
    except OSError as error:
        raise NotOurs(
            f"This host has {found}: with that, tests say other things than elsewhere. Tests hide "
            f"it from themselves in a mount namespace, but none can be made here ({error}). Move "
            "it away while the tests run, run them as root, or allow user namespaces."
        ) from error
    if any(still := left()):
        raise NotOurs(f"This host has {still}, and it could not be hidden from the tests.")


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    flags = _NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USERS
    _checked(_libc().unshare(flags), "unshare")
    if user != 0:
        # Whoever is not root may only be who they are, and gives up to change groups.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _without(parent: str, names: Iterable[str]) -> None:
    """Cover the folder with one that has the same in it, but for these names.

    What is in it stays what it was: a socket answers, and what others write there is seen.
    """
    before = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        there = os.fstat(before)
        mode = f"mode={stat.S_IMODE(there.st_mode):o}"
        _mount("tmpfs", parent, "tmpfs", _NO_SUID | _NO_DEVICES, mode)
        if os.geteuid() == 0:
            os.chown(parent, there.st_uid, there.st_gid)
        for name in sorted(set(os.listdir(before)) - set(names)):
            _again(before, name, os.path.join(parent, name))
    finally:
        os.close(before)


def _again(before: int, name: str, place: str) -> None:
    """Show an entry of the covered folder again."""
    try:
        kind = os.stat(name, dir_fd=before, follow_symlinks=False).st_mode
        if stat.S_ISLNK(kind):
            os.symlink(os.readlink(name, dir_fd=before), place)
            return
        if stat.S_ISDIR(kind):
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            _mount(f"/proc/self/fd/{before}/{name}", place, flags=_BIND | _REC)
        except FileNotFoundError:
            (os.rmdir if stat.S_ISDIR(kind) else os.unlink)(place)
    except FileNotFoundError:
        pass  # it went away meanwhile


def _give_up_capabilities() -> None:
    """Be no more than before: the first in a user namespace may do everything in it."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_libc().capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [os.fsencode(word) if word else None for word in (source, target, kind)]
    done = _libc().mount(*words, ctypes.c_ulong(flags), data.encode() or None)
    _checked(done, f"mount on {target}")


def _checked(done: int, what: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
