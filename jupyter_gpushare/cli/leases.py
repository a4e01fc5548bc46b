"""``jupyter gpushare leases``: lists the holders of GPUs, and the waiting requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.holding import (
    each_state,
    each_text,
    gpu_number,
    job_name,
    job_of,
    rows,
    shared_text,
    sharers,
)
from ..protocol.sizes import format_size
from .node import connect, whole_status
from .table import duration, table
from .verb import Verb, flag

if TYPE_CHECKING:
    from ..protocol import documents as doc

#: Characters of a lease's name that people see and may type.
SHORT = 12


class LeasesApp(Verb):
    """List leases."""

    name = "leases"
    description = """List the leases: who holds which GPU, and who waits. What belongs to other
    people is shown without names, unless you are an administrator. The leases of one job, such
    as an elastic training or a sweep, are one line."""
    examples = """
    jupyter gpushare leases --mine
    jupyter gpushare leases --each
    jupyter gpushare leases --json
    """

    mine = flag("Only your own leases.")
    each = flag("A line for each lease of a job, too.")

    def run(self, arguments: list[str]) -> int:
        with connect() as node:
            status = whole_status(node)
        leases = [lease for lease in status["leases"] if lease["mine"] or not self.mine]
        now = status["node"]["time"]
        return self.say({"leases": leases}, lease_table(leases, now, self.each))


def lease_table(leases: list[doc.Lease], now: float, each: bool = False) -> str:
    """Leases as a table, the waiting ones last; a job is one line, or also ``each`` of its leases.

    ``now``: the node's time, Unix seconds.
    """
    if not leases:
        return "No leases."
    ordered = sorted(leases, key=lambda lease: (lease["position"] or 0, lease["requested"]))
    lines = []
    for row in rows(ordered):
        job = job_of(row)
        if job is not None:
            lines.append(job_line(job, row))
        if job is None or each:
            lines += [lease_line(lease, leases, now) for lease in row]
    return table(("LEASE", "WHO", "WHAT", "STATE", "GPUS", "MEMORY EACH", "CLASS", "AGE"), lines)


def lease_line(lease: doc.Lease, leases: list[doc.Lease], now: float) -> tuple[object, ...]:
    """One lease."""
    return (
        short(lease["id"]),
        who(lease),
        lease["name"] and clipped(lease["name"]),
        state(lease, now),
        gpus(lease),
        memory(lease, leases),
        lease["priority_class"],
        duration(lease["age"]),
    )


def job_line(job: str, row: list[doc.Lease]) -> tuple[object, ...]:
    """All leases of one job; it is as old as the oldest."""
    held = sorted(
        (gpu for lease in row for gpu in lease["gpus"]),
        key=lambda gpu: (gpu["index"], gpu.get("instance") or 0),
    )
    numbers = dict.fromkeys(map(gpu_number, held))
    granted = ", ".join(filter(None, (_named(row), *_limits(row))))
    return (
        "1 lease" if len(row) == 1 else f"{len(row)} leases",
        who(row[0]),
        job_name(clipped(job), row),
        each_state(str(lease["state"]) for lease in row),
        ",".join(numbers) or f"asks {sum(lease['asked']['gpus'] for lease in row)}",
        granted or memory(row[0], row),
        each_state(str(lease["priority_class"]) for lease in row),
        duration(max(lease["age"] for lease in row)),
    )


def short(lease: str | None) -> str:
    """Enough of a lease's name to tell it apart; `release` takes it too.

    Others' leases have no name for us.
    """
    return "-" if lease is None else lease[:SHORT]


def clipped(name: str) -> str:
    """A task's name that leaves room for the other columns."""
    return name if len(name) <= 40 else name[:39] + "\N{HORIZONTAL ELLIPSIS}"


def who(row: doc.Lease | doc.Waiting) -> str:
    """The environment, as far as it may be told."""
    name = row["environment"] or "someone else"
    return f"{name} (you)" if row["mine"] else str(name)


def state(lease: doc.Lease, now: float) -> str:
    """The state, with the place in the queue, its turn and limits, and what is told of parking."""
    from ..client.words.render import parking_words, sharing_words, stall_words, survivor_words

    place = None if lease["position"] is None else str(lease["position"])
    more = ", ".join(
        part
        for part in (
            place,
            survivor_words(lease, now),
            sharing_words(lease, now),
            stall_words(lease, now),
            parking_words(lease, now),
        )
        if part
    )
    return f"{lease['state']} ({more})" if more else str(lease["state"])


def gpus(lease: doc.Lease) -> str:
    """Indices of the GPUs held, or how many are asked."""
    if lease["gpus"]:
        return ",".join(gpu_number(gpu) for gpu in lease["gpus"])
    return f"asks {lease['asked']['gpus']}"


def memory(lease: doc.Lease, leases: list[doc.Lease]) -> str:
    """Bytes on each GPU, granted or asked; with whom they are shared; limits that are otherwise."""
    from ..client.words.render import reserve_words

    if not lease["gpus"]:
        asked = lease["asked"]["memory"]
        return "whole GPU" if asked is None else format_size(asked)
    others = {name for gpu in lease["gpus"] for name in sharers(leases, lease, gpu["uuid"])}
    shared = shared_text([clipped(name) for name in sorted(others)], "")
    told = (_named([lease]), reserve_words(lease), shared, *_limits([lease]))
    return ", ".join(filter(None, told))


def _named(leases: list[doc.Lease]) -> str:
    """Bytes granted on each GPU; nothing where a range was asked for, of which `_limits` speaks."""
    if any(lease.get("memory_most") for lease in leases):
        return ""
    return each_text(sorted({gpu["memory"] for lease in leases for gpu in lease["gpus"]}))


def _limits(leases: list[doc.Lease]) -> list[str]:
    """Limits that are otherwise than what was granted, and shares of a range."""
    from ..client.words.render import limit_words

    told = {limit_words(gpu, lease.get("memory_most")) for lease in leases for gpu in lease["gpus"]}
    return sorted(told - {""})
