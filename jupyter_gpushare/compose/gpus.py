"""What there is to say of a GPU: whose its memory is, and whose its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..figures import counted, ended
from ..protocol import documents as doc
from .leases import LIFTED_HINT, name_of
from .text import Text, clock, join, left, name, percent, perhaps, said, since, size, text

#: Tasks on a GPU that are named; others are counted.
_NAMED: Final = 4


def says(
    gpu: doc.Gpu, there: Sequence[doc.Lease], most_tasks: int | None, now: float
) -> list[doc.Fact]:
    """All that there is to say of a GPU at ``now``, Unix seconds.

    ``there`` are the leases on it as the viewer may know them, one's own first. A GPU with
    ``most_tasks`` tasks takes no new environment. If it is ``None``, memory decides.
    """
    return [
        *_columns(gpu, most_tasks),
        *_parts(gpu),
        *_problems(gpu),
        *_residents(gpu, there, now),
        *_memory(gpu),
    ]


def whose(row: doc.Lease) -> str:
    """``your train.ipynb``, ``bob's train.ipynb``, ``someone else's notebook``."""
    if row["mine"]:
        return f"your {name_of(row)}"
    if row["environment"] is None:
        return f"someone else's {'program' if row['kind'] == 'process' else 'notebook'}"
    return f"{name(row['environment'])}'s {name_of(row)}"


_EMPTY: Final = "It is empty."
_KEPT: Final = "Its tasks keep {}, and a step of one needs {} more at most."
_LIFTED: Final = "Limits are lifted by {} for now."
_TURNS: Final = (
    "Where several tasks can take turns, they compute here one after the other, and each keeps its "
    "memory meanwhile."
)


def _columns(gpu: doc.Gpu, most_tasks: int | None) -> Iterator[doc.Fact]:
    if gpu["problem"] is not None:
        yield said("health", "lost", tone="bad")
    elif gpu.get("out_of_service") is not None:
        yield said("health", "out of service", tone="warn")
    else:
        yield said("health", "ok", tone="good")
    of = "" if most_tasks is None else f"{gpu['tasks']} of "
    used, busy, most = gpu["used"], gpu["utilisation"], most_tasks
    yield from (
        *perhaps(gpu["share_mode"] == "time", "turns", "by turns", hint=_TURNS),
        said("tasks", of + counted(gpu["tasks"] if most is None else most, "task")),
        *perhaps(used is not None, "used", "{}", size(used or 0)),
        *perhaps(busy is not None, "busy", "{}", percent(busy or 0)),
    )


def _parts(gpu: doc.Gpu) -> Iterator[doc.Fact]:
    """Each part of its memory and whose it is. The parts add up to all of the memory."""
    total, left_of = gpu["memory"], gpu["memory"]
    system = min(gpu.get("system", 0), gpu["unleased"])
    out = gpu["problem"] is not None or gpu.get("out_of_service") is not None
    parts = (
        ("mine", "yours", gpu["mine"]),
        ("others", "reserved by others", gpu["reserved"] - gpu["mine"]),
        ("turns", "used by turns", gpu["shared"]),
        ("system", "used by the system (a screen, monitoring)", system),
        ("unleased", "used beyond any lease", gpu["unleased"] - system),
        ("free", "not given to anybody" if out else "free", total),
    )
    for kind, word, most in parts:
        # The figures are from different moments, and may be more together than the GPU has.
        part = min(max(0, most), left_of)
        left_of -= part
        if part:
            yield said("part", "{} {}", size(part), word, share=part / max(1, total), kind=kind)


def _problems(gpu: doc.Gpu) -> Iterator[doc.Fact]:
    if gpu["problem"] is not None:
        yield said("problem", f"It takes no leases: {ended(name(gpu['problem'], 500))}", tone="bad")
    if (out := gpu.get("out_of_service")) is not None:
        by = f" ({name(out['by'])})" if out["by"] else ""
        still = f"{counted(out['leases'], 'lease is', 'leases are')} still there."
        still, why = still if out["leases"] else _EMPTY, ended(name(out["reason"], 500))
        until = out.get("until") if out["leases"] else None
        due = "" if until is None else text("It is to be empty by {}.", clock(until))
        told = join([f"Out of service{by}: {why}", due, still], " ")
        yield said("problem", told, tone="warn")
    for one in gpu["squatters"]:
        who = "A process" if one["pid"] is None else f"Process {one['pid']}"
        used = "memory" if one["memory"] is None else size(one["memory"])
        over = ", more than its lease allows" if one["kind"] == "over_limit" else " without a lease"
        yield said("squatter", "{} uses {}{}.", who, used, over, tone="warn")


def _memory(gpu: doc.Gpu) -> list[doc.Fact]:
    kept, step, lifted = gpu["persistent"], gpu["temporary"], gpu["lifted"]
    return [
        *perhaps(kept or step, "figures", _KEPT, size(kept), size(step), tone="muted"),
        *perhaps(lifted, "lifted", _LIFTED, size(lifted), tone="muted", hint=LIFTED_HINT),
    ]


def _residents(gpu: doc.Gpu, there: Sequence[doc.Lease], now: float) -> Iterator[doc.Fact]:
    if there:
        more = f"{len(there) - _NAMED} more" if len(there) > _NAMED else ""
        told = join([*(_resident(gpu, row) for row in there[:_NAMED]), more], "; ")
        yield said("residents", "Memory: {}.", told)
        tone = "plain" if any(_computes(row) for row in there) else "muted"
        yield said("time", _time(there, now), tone=tone)


def _resident(gpu: doc.Gpu, row: doc.Lease) -> Text:
    part = next(one for one in row["gpus"] if one["uuid"] == gpu["uuid"])
    may, measured, begun = size(part["memory"]), part["measured"], part.get("there_since")
    has = text("has {}", may) if measured is None else text("uses {} of {}", size(measured), may)
    return text("{} {}{}", whose(row), has, "" if begun is None else text(" for {}", since(begun)))


def _computes(row: doc.Lease) -> bool:
    """Whether it computes, or would in its turn."""
    return row["turn"] is not None or row["state"] == "active"


def _time(there: Sequence[doc.Lease], now: float) -> Text:
    taking = [row for row in there if row["turn"] is not None]
    if not taking:
        busy = [whose(row) for row in there if _computes(row)] or ["nobody"]
        more = f" and {len(busy) - 1} more compute" if len(busy) > 1 else " computes"
        return Text(f"Time: no turns; {busy[0]}{more}.")
    holder = next((row for row in taking if row["turn"] in ("holds", "yields")), None)
    waiting = [row for row in taking if row["turn"] == "waits"]
    waiting.sort(key=lambda row: row["turn_place"] or len(taking))
    told = ["by turns", "nobody computes" if holder is None else _holds(holder)]
    until = None if holder is None else holder.get("turn_pinned_until")
    if until is not None and until > now:
        told.append(text("its turn is pinned for {} more", left(until)))
    if waiting:
        paused = since(waiting[0]["turn_since"] or now)
        told.append(text("next is {}, paused for {}", whose(waiting[0]), paused))
    if len(waiting) > 1:
        told.append(f"{len(waiting) - 1} more paused")
    return text("Time: {}.", join(told, "; "))


def _holds(row: doc.Lease) -> Text:
    if row["turn"] == "yields":
        return text("{} ends its turn", whose(row))
    begun = row["turn_since"]
    return text("{} computes{}", whose(row), "" if begun is None else text(" for {}", since(begun)))
