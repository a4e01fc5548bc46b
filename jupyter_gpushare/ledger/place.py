"""Chooses the place of a ledger if none is configured: on this host's own disk, one for each host.

Hosts may share a home directory, but each has GPUs and a ledger of its own. SQLite's log (WAL) also
needs memory that all its processes share: on a network file system records get lost or torn.

A batch system's job has a ledger of its own, too (:func:`~..protocol.address.host_id` names the
job): it is nobody else's, and is removed some time after the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ..daemon import privatefile
from ..protocol.address import JOB_PREFIX
from ..protocol.privateplace import UnsafePlace, make_private
from .ledger import LedgerError, LedgerInUse, locked

# fmt: off
_NETWORK: Final = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
})
# fmt: on
#: FUSE file systems that serve this host's own disk.
_LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs", "fuse.bindfs", "fuse.lxcfs"})


#: Other places for a ledger; files in /tmp may be gone after a boot.
SPARE: Final = (Path("/var/tmp"), Path("/tmp"))


#: The suffixes of a ledger's files, the ledger itself last.
_PARTS: Final = (
    ".key",
    ".hub-people.json",
    ".sqlite-wal",
    ".sqlite-journal",
    ".sqlite",
)


class NoLocalDisk(LedgerError):
    """Every place for the ledger is on a network file system, or is not ours."""


def mounts() -> str:
    """The list of mounts, as :func:`file_system` reads it."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return file.read()


def file_system(path: Path, mountinfo: str) -> str:
    """The kind of file system that ``path``, or what there is of it, lies on. Empty if unknown."""
    real, kind, longest = os.path.realpath(path), "", -1
    for line in mountinfo.splitlines():
        left, _dash, right = line.partition(" - ")
        fields, about = left.split(), right.split()
        if len(fields) < 5 or not about:
            continue
        point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), fields[4])
        # Of two at the same place the later one hides the other.
        if len(point) >= longest and Path(real).is_relative_to(point):
            kind, longest = about[0], len(point)
    return kind


def is_network(kind: str) -> bool:
    """Whether the file system may be shared with other hosts."""
    return (kind in _NETWORK or kind.startswith("fuse.")) and kind not in _LOCAL_FUSE


def places(data: Path, host: str, mountinfo: str, spare: Sequence[Path] = SPARE) -> Iterator[Path]:
    """The possible places of the ledger of ``host``, the best first.

    ``data``: Jupyter's data directory.
    """
    fixed = (one / _own_name() for one in spare)
    for folder in (data / "gpushare", *_remembered(data, host, spare), *fixed):
        if not is_network(file_system(folder, mountinfo)):
            yield folder / _file_name(host)


def look(data: Path, host: str, mountinfo: str, spare: Sequence[Path] = SPARE) -> Path:
    """The place of the ledger, or the place where it would be made. Makes nothing."""
    paths = [path for path in places(data, host, mountinfo, spare) if not _is_others(path.parent)]
    local = (one for one in spare if not is_network(file_system(one, mountinfo)))
    return next(
        filter(_is_there, paths), paths[0] if paths else next(local, data) / _file_name(host)
    )


def choose(
    data: Path, host: str, mountinfo: str, spare: Sequence[Path] = SPARE
) -> tuple[Path, str | None]:
    """The ledger's path, and a sentence for people where that is not in ``data``.

    Raises :class:`NoLocalDisk`.
    """
    kind = file_system(data, mountinfo)
    home = f"{data} is on a network file system ({kind}), where SQLite cannot keep a ledger"
    reasons = []
    paths = list(places(data, host, mountinfo, spare))
    if paths and paths[0].is_relative_to(data):
        return paths[0], None
    # A ledger that is there already comes first: leases of another start may be in it.
    for path in sorted(paths, key=lambda path: not _is_there(path)):
        try:
            try:
                make_private(str(path.parent))
            except UnsafePlace as error:
                # Anybody may have made that one first, to keep us out.
                reasons.append(str(error))
                path = _another(path, data, host)
        except OSError as error:
            reasons.append(f"{path.parent}: {error.strerror}")
        else:
            return path, f"{home}: this host's is {path}. Set a ledger path for another place."
    raise NoLocalDisk(
        f"{home}, and there is no other place ({'; '.join(reasons) or 'no local disk'}). Set "
        "a path on a local disk: c.GpuShareExtension.ledger, or --ledger."
    )


def _own_name() -> str:
    return f"jupyter-gpushare-{os.getuid()}"


def _file_name(host: str) -> str:
    return f"ledger-{host}.sqlite"


def _is_others(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid != os.getuid()
    except OSError:
        return False


def _is_there(path: Path) -> bool:
    """Whether a ledger of this user is there; other users' ledgers do not count."""
    return not _is_others(path.parent) and os.path.exists(path)


def _another(path: Path, data: Path, host: str) -> Path:
    """A ledger's path beside ``path``'s folder, which is not ours, found again at the next start.

    Raises :class:`OSError`.
    """
    memory = _memory(data, host)
    memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{_own_name()}-", dir=path.parent.parent)
    try:
        privatefile.write(memory, folder)
    except OSError:
        os.rmdir(folder)
        raise
    return Path(folder, path.name)


def _memory(data: Path, host: str) -> Path:
    return data / "gpushare" / f"ledger-{host}.place"


def _remembered(data: Path, host: str, spare: Sequence[Path]) -> Iterator[Path]:
    """The folder that :func:`_another` made, if any. The caller must check who owns it now."""
    try:
        folder = Path(str(json.loads(_memory(data, host).read_bytes())))
    except (OSError, ValueError):
        return
    if folder.parent in spare and folder.name.startswith(f"{_own_name()}-"):
        yield folder


def adopt(new: Path) -> str | None:
    """Move the newest ledger of another name in ``new``'s folder to ``new``, and say so.

    On a disk that is not shared it is of this host, whose name changed, as a container's does each
    time that it is made anew. One in use is left alone: it is another host's.
    """
    # A ledger under the own name is never given up for another one.
    if new.exists():
        return None
    hosts = [found for found in new.parent.glob(_file_name("*")) if found not in _jobs(new.parent)]
    for found in sorted(hosts, key=_changed, reverse=True):
        if os.path.exists(found) and found.lstat().st_uid == os.getuid() and _take(found, new):
            return f"The ledger {found} is this host's now: {new}."
    return None


def remove_jobs(folder: Path, before: float) -> str | None:
    """Remove the ledgers of jobs that ended: unused, and not written since the wall time.

    How many there were, in a sentence for people. One that cannot be removed is left for later.
    """
    removed = 0
    for found in _jobs(folder):
        with contextlib.suppress(LedgerError, OSError):
            if found.lstat().st_uid == os.getuid() and _changed(found) < before:
                with locked(found):
                    for suffix in (".sqlite-shm", ".sqlite.lock", *_PARTS):
                        found.with_suffix(suffix).unlink(missing_ok=True)
                removed += 1
    return f"Ledgers of jobs that ended, removed: {removed}." if removed else None


def _jobs(folder: Path) -> list[Path]:
    return list(folder.glob(_file_name(f"{JOB_PREFIX}*")))


def _changed(ledger: Path) -> float:
    """When it was written last."""
    last = 0.0
    for suffix in (".sqlite", ".sqlite-wal"):
        with contextlib.suppress(OSError):
            last = max(last, ledger.with_suffix(suffix).lstat().st_mtime)
    return last


def _take(old: Path, new: Path) -> bool:
    """Rename a ledger with all that belongs to it; not one in use."""
    try:
        with locked(old):
            # The ledger itself last: should we die in between, we begin again.
            for suffix in _PARTS:
                if (part := old.with_suffix(suffix)).exists():
                    part.rename(new.with_suffix(suffix))
            old.with_suffix(".sqlite-shm").unlink(missing_ok=True)
    except LedgerInUse:
        return False
    return True
