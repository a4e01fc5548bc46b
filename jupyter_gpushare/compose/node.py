"""What there is to say of the node itself, and of who looks at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from ..protocol import documents as doc
from ..protocol.words import counted, listed
from .leases import WHY_LATE
from .text import Text, name, said, since, size, span, text

_SIMULATED: Final = (
    "These GPUs are simulated: quotas, queue and leases are real, the devices are not. Frameworks "
    "compute on the CPU."
)
_FULL: Final = "All of it is used: a task that needs more cannot be parked and keeps its GPU."


def says(status: doc.StatusHead) -> Iterator[doc.Fact]:
    """The node's own facts, the problems first."""
    node = status["node"]
    if node["problem"]:
        yield said("problem", name(node["problem"], 1000), tone="bad")
    for left_out in status.get("left_out", ()):
        yield said("left_out", name(left_out, 1000), tone="warn")
    if (told := node.get("quotas_as_of")) is not None:
        words = "JupyterHub does not answer. Quotas of its groups are those of {} ago."
        yield said("quotas_as_of", words, since(told), tone="warn")
    simulated = " (simulated)" if node["simulated"] else ""
    words = "GPUs of {}{}, node manager {}, up {}"
    yield said("node", words, node["name"], simulated, node["version"], since(node["started"]))
    if node["simulated"]:
        yield said("simulated", _SIMULATED, tone="info")
    role = ", administrator" if status["admin"] else ""
    yield said("you", f"You are {name(status['environment'])}{role}.")
    if (preset := node.get("preset")) is not None:
        yield said("preset", name(preset["text"], 500), label="Preset")
    if (walls := node.get("walls")) is not None:
        yield from _walls(walls)
    if (more := status.get("more")) is not None:
        rows = {"leases": more["leases"], "waiting requests": more["queue"]}
        for what, number in rows.items():
            if number:
                yield said("others", f"{number} more {what} of others are not shown.", tone="muted")
    if used := node["parked_memory"]:
        yield _host_memory(used, node["parked_memory_limit"])
    yield from (*_waits(status["waits"]), *_verdicts(status.get("promises")))


_DENIED: Final = (
    "A program without a lease finds no GPU: `jupyter gpushare run -- COMMAND`, or `import torch` "
    "in a kernel, gets one."
)
_ONE_EACH: Final = "See that each person has a control group: docs/how-to/walls.md"


def _walls(walls: doc.Walls) -> Iterator[doc.Fact]:
    tell = partial(said, "walls")
    if not walls["stand"]:
        hint = "Look at the helper: `systemctl status jupyter-gpushare-walls`"
        yield tell("Nothing is granted until the walls stand again.", tone="bad", hint=hint)
        return
    memory = ", and the driver limits their memory there" if walls["level"] == "memory" else ""
    words = "The kernel lets processes open only the GPUs that their owner has a lease on{} ({})."
    yield tell(words, Text(memory), counted(walls["groups"], "control group"), tone="good")
    yield tell(_DENIED, tone="good")
    for names in walls.get("shared", ()):
        words = "There is no wall between {}: they are in one control group."
        yield tell(words, _some(names), tone="warn", hint=_ONE_EACH)
    if memory and (several := walls.get("several")):
        words = "There are several control groups of {}: memory is for those that hold a lease."
        yield tell(words, _some(several), tone="good")
    if outside := walls.get("outside"):
        words = "There is no wall around some processes of {}."
        yield tell(words, _some(outside), tone="warn", hint=_ONE_EACH)


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
