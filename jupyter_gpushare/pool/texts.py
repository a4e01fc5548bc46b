"""The pool's sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..policy.say.texts import gpus
from ..protocol.periods import moment
from ..protocol.words import did_you_mean
from .words.hosts import Group, Holding


def clock(unix: float) -> str:
    """The time of day, as ``14:05:30 UTC``; of a part of a second the whole one."""
    seconds = int(-(-unix // 1)) % 86400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} UTC"


def ends(held: Holding) -> str:
    """A host that is not there for long."""
    until = "" if held.until is None else moment(held.until)
    return f"It leaves the pool at {until}, when {held.engine} {held.piece} ends."


def in_use(quota: int, places: Sequence[tuple[str, int]]) -> str:
    """The quota is used on other hosts."""
    where = " and ".join(f"{count} on host {host}" for host, count in places)
    if quota == 1 and len(places) == 1:
        return f"Your 1 GPU in the pool is in use on host {places[0][0]}."
    return f"Of your {gpus(quota)} in the pool you use {where}."


def lost(host: str, count: int, until: float) -> str:
    """What a lost host has of the quota can be used elsewhere later."""
    return (
        f"Host {host} cannot be reached. It may still give you {gpus(count)} of your quota, which "
        f"you can have on another host from {clock(until)} on."
    )


def out_of_service(host: str, reason: str) -> str:
    """An administrator has drained the host; a lost one is spoken of elsewhere."""
    return f"Host {host} is out of service: {reason}." if reason else ""


def too_many(asked: int, quota: int) -> str:
    """The request is larger than the whole quota."""
    return f"You asked for {gpus(asked)}; your quota in the whole pool is {gpus(quota)}."


def others_first(quota: int) -> str:
    """Earlier requests of the same person take it."""
    return f"Your requests that have waited longer are to have your {gpus(quota)} first."


def group_full(group: Group, used: int) -> str:
    """The group has nothing left for a request, and cannot borrow."""
    most = None if group.borrowing is None else group.nominal + group.borrowing
    if most is not None and used >= most:
        if not group.borrowing:
            return f"Group {group.name} uses all of its {gpus(group.nominal)}, and may borrow none."
        return (
            f"Group {group.name} uses all of its {gpus(group.nominal)} and the "
            f"{group.borrowing} that it may borrow."
        )
    return (
        f"Group {group.name} has none of its own {gpus(group.nominal)} left for this, and no other "
        "group has one to lend now."
    )


def taken_back(group: Group) -> str:
    """Those who borrowed are asked to give it back."""
    return (
        f"Other groups have borrowed GPUs of group {group.name}. They are asked to give them back."
    )


def given_back(group: Group) -> str:
    """Why a borrower's sub-budget is lowered."""
    return f"Group {group.name} borrowed this GPU, and the group that lent it needs it."


def no_group(name: str, known: Sequence[str]) -> str:
    """Nothing can be taken back from a group that has nothing."""
    if not known:
        return f"Group {name} has no GPUs of its own, and no other group has any."
    like = did_you_mean(name, known) or "."
    return f"Group {name} has no GPUs of its own{like} Groups that have: {', '.join(known)}."


def no_host(name: str, known: Sequence[str]) -> str:
    """Somebody named a host that never joined, or is forgotten."""
    hosts = ", ".join(known) or "none yet"
    return f"There is no host {name!r} in the pool; its hosts: {hosts}."


def lends_less(group: Group) -> str:
    """It cannot lend as many as was said."""
    return (
        f"Group {group.name} may lend {group.lending}, but has only {gpus(group.nominal)} of its "
        "own: it never lends more than these."
    )


def more_than_there_are(own: int, have: int) -> str:
    """Not all groups can have what is their own."""
    return (
        f"All groups together have {gpus(own)} of their own, and the pool's hosts have {have}: a "
        "group may have to wait for its own. Lower --nominal of a group, or let more hosts join."
    )


def hint(host: str, kind: str) -> str:
    """Another host has room."""
    return f"Host {host} has a free GPU now ({kind}): start your kernel there."
