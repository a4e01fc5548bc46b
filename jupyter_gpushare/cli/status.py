"""``jupyter gpushare status``: the GPUs, the leases and the queue, as you may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.expecting import short_estimate
from ..protocol.holding import gpu_number, remaining_text
from ..protocol.sizes import format_size
from .leases import lease_table, short
from .node import connect, whole_status
from .table import duration, table
from .verb import Verb

if TYPE_CHECKING:
    from ..protocol import documents as doc


class StatusApp(Verb):
    """GPUs, leases and the queue."""

    name = "status"
    description = """The node's GPUs, your quota, the leases and the queue."""

    def run(self, arguments: list[str]) -> int:
        with connect() as node:
            status = whole_status(node)
        return self.say(status, as_text(status))


def as_text(status: doc.Status) -> str:
    """The status document for a terminal."""
    parts = [heading(status), gpu_table(status["gpus"])]
    parts += squatters(status["gpus"])
    parts += memory_and_time(status)
    held = [lease for lease in status["leases"] if lease["position"] is None]
    parts.append(lease_table(held, status["node"]["time"]))
    parts += [f"{text} are not shown." for text in left_out(status)]
    if status["queue"]:
        from ..client.words.render import own_reasons

        parts.append(queue_table(status["queue"]))
        parts += own_reasons(status)
    return "\n\n".join(parts)


def left_out(status: doc.Status) -> list[str]:
    """The line on other people's rows that the viewer's page leaves out."""
    more: doc.More = status.get("more") or {"leases": 0, "queue": 0}
    words = ((more["leases"], "leases of others"), (more["queue"], "waiting requests of others"))
    return [f"{count} more {what}" for count, what in words if count]


def heading(status: doc.Status) -> str:
    """The node, the viewer, the quota, and the problems."""
    from ..client.words.render import budget_warning, host_memory_line, pool_line

    node, quota = status["node"], status["quota"]
    kind = " (simulated GPUs)" if node["simulated"] else ""
    role = ", administrator" if status["admin"] else ""
    left = f", left: {remaining}" if (remaining := remaining_text(quota)) else ""
    each = "" if quota["memory"] is None else f" with {format_size(quota['memory'])} on each"
    allowed = "1 GPU" if quota["gpus"] == 1 else f"{quota['gpus']} GPUs"
    lines = [
        f"{node['name']}{kind}, node manager {node['version']}, up"
        f" {duration(node['time'] - node['started'])}",
        f"You are {status['environment']}{role}. Quota: {allowed}{each}"
        f" ({quota['source']}), {quota['used_gpus']} held{left}.",
    ]
    if lent := pool_line(quota):
        lines[1:] = [
            f"This is host {node['name']} of a pool: its GPUs, leases and queue.",
            f"You are {status['environment']}{role}, and hold {quota['used_gpus']} here. {lent}",
        ]
    if preset := node.get("preset"):
        lines.append(f"Preset: {preset['text']}.")
    if memory := host_memory_line(node):
        lines.append(memory)
    if warning := budget_warning(status):
        lines.append(warning)
    if (told := node.get("quotas_as_of")) is not None:
        age = duration(max(0.0, node["time"] - told))
        lines.append(f"JupyterHub does not answer: quotas of its groups are those of {age} ago.")
    if node["problem"]:
        lines.append(f"PROBLEM: {node['problem']}")
    lines += status.get("left_out", ())
    return "\n".join(lines)


def gpu_table(gpus: list[doc.Gpu]) -> str:
    """One line a GPU: its memory, what is reserved and used, its tasks and health."""
    if not gpus:
        return "No GPUs."
    return table(
        ("GPU", "NAME", "MEMORY", "RESERVED", "FREE", "USED", "BUSY", "TASKS", "HEALTH"),
        [
            (
                gpu_number(gpu),
                gpu["name"],
                format_size(gpu["memory"]),
                format_size(gpu["reserved"]),
                format_size(gpu["free"]),
                None if gpu["used"] is None else format_size(gpu["used"]),
                None if gpu["utilisation"] is None else f"{gpu['utilisation']:.0%}",
                gpu["tasks"],
                health(gpu),
            )
            for gpu in gpus
        ],
    )


def health(gpu: doc.Gpu) -> str:
    """Whether a GPU works, and is in service."""
    said = str(gpu["health"] if gpu["problem"] is None else f"{gpu['health']}: {gpu['problem']}")
    out = gpu.get("out_of_service")
    if out is None:
        return said
    service = f"{out_of_service(out)}: {out['reason']}"
    return service if said == "ok" else f"{said}; {service}"


def out_of_service(out: doc.OutOfService) -> str:
    """``out of service (empty)``, or with how many leases that are still there."""
    left = {0: "empty", 1: "1 lease there"}.get(out["leases"], f"{out['leases']} leases there")
    return f"out of service ({left})"


def squatters(gpus: list[doc.Gpu]) -> list[str]:
    """Processes that use memory they have no right to."""
    lines = []
    for gpu in gpus:
        for found in gpu["squatters"]:
            who = "a process" if found["pid"] is None else f"process {found['pid']}"
            size = "memory" if found["memory"] is None else format_size(found["memory"])
            why = "without a lease" if found["kind"] == "squatter" else "beyond its lease's limit"
            lines.append(f"GPU {gpu_number(gpu)}: {who} uses {size} {why}")
    return ["\n".join(lines)] if lines else []


def memory_and_time(status: doc.Status) -> list[str]:
    """Whose memory is on each GPU, what steps need there, and whose time it is."""
    from ..client.words.render import gpu_lines

    lines = gpu_lines(status)
    for gpu in status["gpus"]:
        number = gpu_number(gpu)
        if gpu["persistent"] or gpu["temporary"]:
            kept, step = format_size(gpu["persistent"]), format_size(gpu["temporary"])
            by_turns = f"; {format_size(gpu['shared'])} used by turns" if gpu["shared"] else ""
            lines.append(
                f"GPU {number}: tasks keep {kept}, the largest step needs {step}{by_turns}"
            )
        if system := gpu.get("system"):
            lines.append(
                f"GPU {number}: the system (a screen, monitoring) uses {format_size(system)}"
            )
        if gpu["lifted"]:
            lines.append(
                f"GPU {gpu_number(gpu)}: limits are lifted by {format_size(gpu['lifted'])}"
            )
    return ["\n".join(lines)] if lines else []


def queue_table(queue: list[doc.Waiting]) -> str:
    """The waiting requests in the order of service."""
    return table(
        ("QUEUE", "LEASE", "WHO", "CLASS", "GPUS", "MEMORY EACH", "WAITING", "TAKES"),
        [
            (
                row["position"],
                row["lease"] and short(row["lease"]),
                (row["environment"] or "someone else") + (" (you)" if row["mine"] else ""),
                row["priority_class"],
                row["gpus"],
                "whole GPU" if row["memory"] is None else format_size(row["memory"]),
                duration(row["waiting"]),
                short_estimate(row) or None,
            )
            for row in queue
        ],
    )
