"""What there is to say of the node itself, and of who looks at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from ..figures import counted, listed
from ..protocol import documents as doc
from .leases import WHY_LATE
from .text import Text, name, perhaps, said, since, size, span, text

_SIMULATED: Final = (
    "These GPUs are simulated: quotas, queue and leases are real, the devices are not. Frameworks "
    "compute on the CPU."
)
_AS_OF: Final = "JupyterHub does not answer. Quotas of its groups are those of {} ago."
_FULL: Final = "All of it is used: a task that needs more cannot be parked and keeps its GPU."


def says(status: doc.StatusHead) -> list[doc.Fact]:
    """The node's own facts, the problems first."""
    node, told = status["node"], status["node"].get("quotas_as_of")
    preset, walls, more = node.get("preset"), node.get("walls"), status.get("more")
    used, most = node["parked_memory"], node["parked_memory_limit"]
    simulated = " (simulated)" if node["simulated"] else ""
    whose = node["name"], simulated, node["version"], since(node["started"])
    role = ", administrator" if status["admin"] else ""
    rows = {"leases": more["leases"], "waiting requests": more["queue"]} if more else {}
    return [
        *perhaps(node["problem"], "problem", name(node["problem"] or "", 1000), tone="bad"),
        *(said("left_out", name(one, 1000), tone="warn") for one in status.get("left_out", ())),
        *perhaps(told is not None, "quotas_as_of", _AS_OF, since(told or 0), tone="warn"),
        said("node", "GPUs of {}{}, node manager {}, up {}", *whose),
        *perhaps(simulated, "simulated", _SIMULATED, tone="info"),
        said("you", f"You are {name(status['environment'])}{role}."),
        *([] if preset is None else [said("preset", name(preset["text"], 500), label="Preset")]),
        *(() if walls is None else _walls(walls)),
        *(
            said("others", f"{number} more {what} of others are not shown.", tone="muted")
            for what, number in rows.items()
            if number
        ),
        *([_host_memory(used, most)] if used else ()),
        *_waits(status["waits"]),
        *_verdicts(status.get("promises")),
    ]


_DENIED: Final = (
    "A program without a lease finds no GPU: `jupyter gpushare run -- COMMAND`, or `import torch` "
    "in a kernel, gets one."
)
_ONE_EACH: Final = "See that each person has a control group: docs/how-to/walls.md"


_NO_WALL: Final = "There is no wall between {}: they are in one control group."
_SEVERAL: Final = "There are several control groups of {}: memory is for those that hold a lease."
_OUTSIDE: Final = "There is no wall around some processes of {}."


def _walls(walls: doc.Walls) -> list[doc.Fact]:
    if not walls["stand"]:
        words = "Nothing is granted until the walls stand again."
        hint = "Look at the helper: `systemctl status jupyter-gpushare-walls`"
        return [said("walls", words, tone="bad", hint=hint)]
    memory = ", and the driver limits their memory there" if walls["level"] == "memory" else ""
    words = "The kernel lets processes open only the GPUs that their owner has a lease on{} ({})."
    groups, several = counted(walls["groups"], "control group"), _some(walls.get("several", ()))
    outside, warn = _some(walls.get("outside", ())), partial(said, "walls", tone="warn")
    return [
        said("walls", words, Text(memory), groups, tone="good"),
        said("walls", _DENIED, tone="good"),
        *(warn(_NO_WALL, _some(one), hint=_ONE_EACH) for one in walls.get("shared", ())),
        *perhaps(memory and several, "walls", _SEVERAL, several, tone="good"),
        *perhaps(outside, "walls", _OUTSIDE, outside, tone="warn", hint=_ONE_EACH),
    ]


def _some(names: Sequence[str]) -> Text:
    told = listed(names if len(names) < 10 else [*names[:8], f"{len(names) - 8} others"])
    return name(told, 500)


def _host_memory(used: int, most: int | None) -> doc.Fact:
    label = "Host memory of parked tasks"
    if most is None:
        return said("host_memory", "{}, not limited", size(used), label=label)
    tone, hint = ("warn", _FULL) if used >= most else ("plain", "")
    share, words = used / max(1, most), text("{} of {}", size(used), size(most))
    return said("host_memory", words, label=label, share=share, hint=hint, tone=tone)


def _waits(waits: doc.Waits) -> Iterator[doc.Fact]:
    """How long others have waited lately."""
    for label, one in (("Interactive", waits["interactive"]), ("Batch", waits["batch"])):
        words = "{} granted in the last {}, none had to wait."
        if one["waited"]:
            words = "{} granted in the last {}, {} after waiting {} (median), {} at most."
        lasted = (
            span(waits["window"]),
            one["waited"],
            span(one["median"] or 0),
            span(one["longest"] or 0),
        )
        if one["granted"]:
            yield said("waits", words, one["granted"], *lasted, label=label)


def _verdicts(verdicts: doc.Verdicts | None) -> Iterator[doc.Fact]:
    if verdicts is not None and (verdicts["kept"] or verdicts["missed"]):
        why = [row for row in verdicts["why"] if row["why"] in WHY_LATE]
        known = "; ".join(f"{row['missed']} because {WHY_LATE[row['why']]}" for row in why)
        words = f"{verdicts['kept']} kept and {verdicts['missed']} missed in the last {{}}{{}}."
        more = Text(f" ({known})" if known else "")
        yield said("waits", words, span(verdicts["window"]), more, label="Deadlines and rates")
