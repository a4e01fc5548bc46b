"""A node manager, an honest user and an attacker; what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpushare.protocol.messages import Method
from support.node import RunningNode

from . import people

ALICE, MALLORY = 54001, 54002
CONFIG = """
c.Quotas.default = {"gpus": 2}
c.Policy.max_tasks_per_gpu = 100
"""


#: Of one person: several processes at a time. The first is what the others are compared with.
CROWDS = {
    "burn, five times": ("burn",) * 5,
    "all at once": ("leases", "status", "reads of the ledger", "no hello", "watchers"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the honest one and the host saw of one attack. Times in seconds, sizes in bytes."""

    name: str
    p50: float
    p99: float
    #: Of each request until its grant: seconds, and the answers that the attacker got meanwhile.
    between: tuple[tuple[float, int], ...]
    grants: int
    refused: tuple[str, ...]
    memory: int  # by which the node manager grew
    ledger: int  # by which the ledger grew
    log: int  # by which the log grew
    seconds: float


def start(
    node: RunningNode, who: str, uid: int, seconds: float, **environ: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", people.__file__, str(node.socket), str(uid), who]
    command.append(str(seconds))
    pipe, known = subprocess.PIPE, {**node.environ, **environ}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd="/", env=known)


def result(process: subprocess.Popen[str], within: float) -> dict[str, Any]:
    told, _ = process.communicate(timeout=within)
    return json.loads(told)


def memory_of(pid: int) -> int:
    """Resident bytes, the most there ever were: what was given back counts, too."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def ledger_of(node: RunningNode) -> int:
    """Bytes of the ledger that are used; what its log holds is counted as it will be there."""
    with node.client() as admin:
        health = admin.call(Method.LEDGER_CHECK)
    return int(health["bytes"]) - int(health["free"])


def play(node: RunningNode, attack: str | None, seconds: float) -> Seen:
    """The honest one works for ``seconds``, beside ``attack``; ``None``: alone."""
    before = memory_of(node.pid), ledger_of(node), node.log.stat().st_size
    attackers = () if attack is None else CROWDS.get(attack, (attack,))
    others = [start(node, one, MALLORY, seconds + 0.5) for one in attackers]
    seen = result(start(node, "honest", ALICE, seconds), seconds * 3 + 60)
    answers = [
        one for other in others for one in result(other, seconds * 3 + 60).get("answers", ())
    ]
    waits = sorted(end - begun for begun, end in seen["calls"]) or [float("inf")]
    between = tuple(
        (end - begun, sum(count for at, count in answers if begun < at < end))
        for begun, end in seen["calls"]
    )
    return Seen(
        attack or "quiet",
        waits[len(waits) // 2],
        waits[min(len(waits) - 1, len(waits) * 99 // 100)],
        between,
        len(between),
        tuple(seen["refused"]),
        memory_of(node.pid) - before[0],
        ledger_of(node) - before[1],
        node.log.stat().st_size - before[2],
        seconds,
    )
