"""What there is to say of a GPU: whose its memory is, and whose its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..protocol import documents as doc
from .leases import LIFTED_HINT, name_of
from .text import Text, count, join, left, name, percent, said, since, size, text

#: Tasks on a GPU that are named; others are counted.
_NAMED: Final = 4


def says(
    gpu: doc.Gpu, there: Sequence[doc.Lease], most_tasks: int | None, now: float
) -> list[doc.Fact]:
    """All that there is to say of a GPU at ``now``, Unix seconds.

    ``there`` are the leases on it as the viewer may know them, one's own first. A GPU with
    ``most_tasks`` tasks takes no new environment. If it is ``None``, memory decides.
    """
    return [*_columns(gpu, most_tasks), *_parts(gpu), *_notes(gpu, there, now)]


def whose(row: doc.Lease) -> str:
    """``your train.ipynb``, ``bob's train.ipynb``, ``someone else's notebook``."""
    if row["mine"]:
        return f"your {name_of(row)}"
    if row["environment"] is None:
        return f"someone else's {'program' if row['kind'] == 'process' else 'notebook'}"
    return f"{name(row['environment'])}'s {name_of(row)}"


_TURNS: Final = (
    "Where several tasks can take turns, they compute here one after the other, and each keeps its "
    "memory meanwhile."
)


def _columns(gpu: doc.Gpu, most_tasks: int | None) -> Iterator[doc.Fact]:
    out = gpu.get("out_of_service")
    if gpu["problem"] is not None:
        yield said("health", "lost", tone="bad")
    elif out is not None:
        yield said("health", "out of service", tone="warn")
    else:
        yield said("health", "ok", tone="good")
    if gpu["share_mode"] == "time":
        yield said("turns", "by turns", hint=_TURNS)
    tasks = count(gpu["tasks"], "task")
    if most_tasks is not None:
        tasks = f"{gpu['tasks']} of {count(most_tasks, 'task')}"
    yield said("tasks", tasks)
    if gpu["used"] is not None:
        yield said("used", "{}", size(gpu["used"]))
    if gpu["utilisation"] is not None:
        yield said("busy", "{}", percent(gpu["utilisation"]))


def _parts(gpu: doc.Gpu) -> Iterator[doc.Fact]:
    """Each part of its memory and whose it is. The parts add up to all of the memory."""
    total = gpu["memory"]
    mine = min(gpu["mine"], total)
    others = min(max(0, gpu["reserved"] - gpu["mine"]), total - mine)
    turns = min(gpu["shared"], total - mine - others)
    unleased = min(gpu["unleased"], total - mine - others - turns)
    system = min(gpu.get("system", 0), unleased)
    out = gpu["problem"] is not None or gpu.get("out_of_service") is not None
    free = "not given to anybody" if out else "free"
    parts = (
        ("mine", "yours", mine),
        ("others", "reserved by others", others),
        ("turns", "used by turns", turns),
        ("system", "used by the system (a screen, monitoring)", system),
        ("unleased", "used beyond any lease", unleased - system),
        ("free", free, total - mine - others - turns - unleased),
    )
    for kind, word, part in parts:
        if part > 0:
            yield said("part", "{} {}", size(part), word, share=part / max(1, total), kind=kind)


def _notes(gpu: doc.Gpu, there: Sequence[doc.Lease], now: float) -> Iterator[doc.Fact]:
    if gpu["problem"] is not None:
        yield said("problem", f"It takes no leases: {_ended(gpu['problem'])}", tone="bad")
    if (out := gpu.get("out_of_service")) is not None:
        by = f" ({name(out['by'])})" if out["by"] else ""
        still = {0: "It is empty.", 1: "1 lease is still there."}
        words = still.get(out["leases"], f"{out['leases']} leases are still there.")
        yield said("problem", f"Out of service{by}: {_ended(out['reason'])} {words}", tone="warn")
    for one in gpu["squatters"]:
        who = "A process" if one["pid"] is None else f"Process {one['pid']}"
        used = "memory" if one["memory"] is None else size(one["memory"])
        words = "{} uses {} without a lease."
        if one["kind"] == "over_limit":
            words = "{} uses {}, more than its lease allows."
        yield said("squatter", words, who, used, tone="warn")
    if there:
        yield said("residents", _residents(gpu, there))
        tone = "plain" if any(_computes(row) for row in there) else "muted"
        yield said("time", _time(there, now), tone=tone)
    if gpu["persistent"] or gpu["temporary"]:
        words = "Its tasks keep {}, and a step of one needs {} more at most."
        kept, step = size(gpu["persistent"]), size(gpu["temporary"])
        yield said("figures", words, kept, step, tone="muted")
    if gpu["lifted"]:
        words = "Limits are lifted by {} for now."
        yield said("lifted", words, size(gpu["lifted"]), tone="muted", hint=LIFTED_HINT)


def _ended(sentence: str) -> str:
    """With a full stop, where it has none."""
    told = name(sentence, 500)
    return told if told.endswith((".", "!", "?")) else f"{told}."


def _residents(gpu: doc.Gpu, there: Sequence[doc.Lease]) -> Text:
    told = [_resident(gpu, row) for row in there[:_NAMED]]
    more = len(there) - len(told)
    return text("Memory: {}.", join([*told, Text(f"{more} more" if more else "")], "; "))


def _resident(gpu: doc.Gpu, row: doc.Lease) -> Text:
    part = next(one for one in row["gpus"] if one["uuid"] == gpu["uuid"])
    words = text("{} has {}", whose(row), size(part["memory"]))
    if part["measured"] is not None:
        used, may = size(part["measured"]), size(part["memory"])
        words = text("{} uses {} of {}", whose(row), used, may)
    if (begun := part.get("there_since")) is not None:
        words = text("{} for {}", words, since(begun))
    return words


def _computes(row: doc.Lease) -> bool:
    """Whether it computes, or would in its turn."""
    return row["turn"] is not None or row["state"] == "active"


def _time(there: Sequence[doc.Lease], now: float) -> Text:
    taking = [row for row in there if row["turn"] is not None]
    if not taking:
        busy = [row for row in there if _computes(row)]
        if not busy:
            return Text("Time: no turns; nobody computes.")
        more = f" and {len(busy) - 1} more compute." if len(busy) > 1 else " computes."
        return Text(f"Time: no turns; {whose(busy[0])}{more}")
    told = [Text("by turns")]
    holder = next((row for row in taking if row["turn"] in ("holds", "yields")), None)
    if holder is None:
        told.append(Text("nobody computes"))
    elif holder["turn"] == "yields":
        told.append(Text(f"{whose(holder)} ends its turn"))
    else:
        begun = holder["turn_since"]
        for_ = text(" for {}", since(begun)) if begun is not None else Text("")
        told.append(text("{} computes{}", whose(holder), for_))
    until = None if holder is None else holder.get("turn_pinned_until")
    if until is not None and until > now:
        told.append(text("its turn is pinned for {} more", left(until)))
    waiting = [row for row in taking if row["turn"] == "waits"]
    waiting.sort(key=lambda row: row["turn_place"] or len(taking))
    if waiting:
        paused = since(waiting[0]["turn_since"] or now)
        told.append(text("next is {}, paused for {}", whose(waiting[0]), paused))
    if len(waiting) > 1:
        told.append(Text(f"{len(waiting) - 1} more paused"))
    return text("Time: {}.", join(told, "; "))
