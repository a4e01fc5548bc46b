"""The files beside the ledger: its folder, the key, and what is remembered of JupyterHub."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from ..protocol.privateplace import replace_private


class UnsafeFile(Exception):
    """A file of the node manager's is in others' hands; the text says which, and what to do."""


def check_directory(path: Path) -> None:
    """Check that no other user can put files beside the ledger. Raises :class:`UnsafeFile`."""
    there = path.stat()
    mode = stat.S_IMODE(there.st_mode)
    # In a folder like /tmp everybody may make files, but not replace another user's.
    is_open = mode & 0o002 and not mode & stat.S_ISVTX
    if there.st_uid not in (0, os.getuid()) or is_open:
        raise UnsafeFile(
            f"The ledger's directory {path} belongs to user {there.st_uid} and has mode {mode:o}: "
            "others could replace the ledger. Give it to the node manager's user "
            f"(`chown`), run `chmod go-w {path}`, or name another place with --ledger."
        )


def hub_people(ledger: Path) -> Path:
    """The file of those for whom JupyterHub vouched lately."""
    return ledger.with_suffix(".hub-people.json")


def key_file(ledger: Path) -> Path:
    return ledger.with_suffix(".key")


def key_beside(ledger: Path) -> bytes:
    """The key from which leases' secrets and vouchers are derived; kept beside the ledger."""
    path = key_file(ledger)
    with contextlib.suppress(FileNotFoundError):
        with path.open("rb") as file:
            there = os.fstat(file.fileno())
            key = file.read()
        if there.st_uid not in (0, os.getuid()) or stat.S_IMODE(there.st_mode) & 0o077:
            raise UnsafeFile(
                f"The key {path}, from which leases' secrets are made, belongs to user "
                f"{there.st_uid} and has mode {stat.S_IMODE(there.st_mode):o}: others could know "
                "it. Remove it and start again; a new one is made, and leases stay."
            )
        if len(key) >= 32:
            return key
    fresh = secrets.token_bytes(32)
    replace_private(path, fresh)
    return fresh
