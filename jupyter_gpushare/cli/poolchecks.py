"""The part of ``jupyter gpushare doctor`` that looks at this host's place in a pool."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..console.check import Check, ok, problem, warning
from ..daemon.membership import BadMembership, Membership

_AGAIN: Final = (
    "At the pool make a token with `jupyter gpushare pool token HOST`; here say, as the node"
    " manager's user, `jupyter gpushare pool join TOKEN --name HOST`."
)
#: The pool renews after 20 of 30 days, so with fewer days than this it has not reached the host.
_SOON: Final = 7 * 86400.0


def membership(folder: Path, now: float | None = None) -> Iterator[Check]:
    """What is to be said where the host has joined a pool; nothing where it has not.

    ``now``: Unix time.
    """
    try:
        if not (folder / "pool.json").exists():
            return
        found = Membership.open(folder)
        if found is None:
            return
        (begins, ends), vouched, loose = (
            found.valid(),
            found.is_vouched_for(),
            found.open_to_others(),
        )
    except PermissionError:
        return  # Only the node manager's user may look; its own run of the doctor says it.
    except (BadMembership, OSError) as error:
        yield problem("pool", str(error), _AGAIN)
        return
    yield _certificate(found.name, begins, ends, vouched, time.time() if now is None else now)
    for place in loose:
        text = f"Others may read or change {place}: whoever has its key can say to be {found.name}."
        mode = "700" if place == folder else "600"
        fix = (
            f"chmod {mode} {shlex.quote(str(place))}. If others use this computer, say also "
            f"`jupyter gpushare pool forget {found.name}` at the pool, and join it again."
        )
        yield problem("pool", text, fix)


def _certificate(name: str, begins: float, ends: float, vouched: bool, now: float) -> Check:
    day = time.strftime("%Y-%m-%d", time.localtime(ends))
    told = f"this host is {name} in its pool; its certificate lasts until {day}"
    if not vouched:
        text = (
            f"The certificate of the host {name} is not by an authority of its pool, so the pool "
            "does not believe it. Files of two pools may have been mixed."
        )
        return problem("pool", text, _AGAIN)
    if now < begins:
        text = f"The certificate of the host {name} is not valid yet: this host's clock is late."
        return problem(
            "pool", text, "Set the clock, for instance with chrony or systemd-timesyncd."
        )
    if now >= ends:
        text = f"The certificate of the host {name} expired on {day}: the pool cannot use it."
        return problem("pool", text, _AGAIN)
    if ends - now < _SOON:
        fix = "See at the pool with `jupyter gpushare pool hosts` why it cannot reach this host."
        return warning("pool", f"{told}, and the pool has not renewed it", fix)
    return ok("pool", told)
