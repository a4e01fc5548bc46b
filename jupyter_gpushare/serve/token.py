"""The token that opens a server to callers. It lies in a folder of the server's owner."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from ..protocol.privateplace import UnsafePlace, is_others, make_private, replace_private


def token_at(path: Path) -> str:
    """The token in this file, which is made if there is none: it stays the same as long as that.

    Raises :class:`UnsafePlace` where others could have written it, and :class:`OSError`.
    """
    make_private(str(path.parent))
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if why := is_others(os.fstat(file.fileno())):
                raise UnsafePlace(f"{path} {why}")
            token = file.read(256).decode("ascii", "replace").strip()
    except FileNotFoundError:
        token = ""
    if not token:
        token = secrets.token_urlsafe(32)
        replace_private(path, f"{token}\n".encode())
    return token


def fits(token: str, header: str | None) -> bool:
    """Whether an ``Authorization`` has it. It takes as long whatever is wrong."""
    scheme, _, given = (header or "").partition(" ")
    is_it = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
    return scheme.lower() == "bearer" and is_it
