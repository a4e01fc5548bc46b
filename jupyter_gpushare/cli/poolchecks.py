"""The part of ``jupyter gpushare doctor`` that looks at this host's place in a pool."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..node.host.membership import BadMembership, Membership
from .checks import Check, ok, problem, warning

_AGAIN: Final = (
    "At the pool make a token with `jupyter gpushare pool token HOST`; here say, as the node"
    " manager's user, `jupyter gpushare pool join TOKEN --name HOST`."
)
#: The pool renews after 20 of 30 days, so with fewer days than this it has not reached the host.
_SOON: Final = 7 * 86400.0


def membership(folder: Path, now: float | None = None) -> Iterator[Check]:
    """One check where the host has joined a pool, none where it has not. ``now``: Unix time."""
    try:
        if not (folder / "pool.json").exists():
            return
        found = Membership.open(folder)
        if found is None:
            return
        ends = found.expires()
    except PermissionError:
        return  # Only the node manager's user may look; its own run of the doctor says it.
    except (BadMembership, OSError) as error:
        yield problem("pool", str(error), _AGAIN)
        return
    left = ends - (time.time() if now is None else now)
    day = time.strftime("%Y-%m-%d", time.localtime(ends))
    told = f"this host is {found.name} in its pool; its certificate lasts until {day}"
    if left <= 0:
        text = f"The certificate of the host {found.name} expired on {day}: the pool cannot use it."
        yield problem("pool", text, _AGAIN)
    elif left < _SOON:
        fix = "See at the pool with `jupyter gpushare pool hosts` why it cannot reach this host."
        yield warning("pool", f"{told}, and the pool has not renewed it", fix)
    else:
        yield ok("pool", told)
