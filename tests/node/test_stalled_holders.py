"""A process that hangs with memory for which people wait is interrupted, and no other one."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from support.node import GIB, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on

from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.NodeManagerApp.measure_interval = 0.5\nc.Policy.max_tasks_per_gpu = 1\n"
    "c.Policy.heartbeat_interval = 0.1\nc.Policy.heartbeat_timeout = 5.0\n"
    "c.Policy.stalled_interrupt = 60.0\nc.Policy.stalled_end = 2.0\n"
)
ASKS = "from jupyter_gpushare.client import request\nprint(request().lease, flush=True)\n"
#: A library that never comes back and keeps Python from running anything else.
HANGS = ASKS + "input()\nimport ctypes\nctypes.PyDLL(None).sleep(600)\n"
#: The same, but it computes: nobody can tell that it never ends.
COMPUTES = ASKS + "input()\nimport re\nre.match('(a|a)+b', 'a' * 60)\n"
#: It keeps the GPU, so that nobody else gets that one after it.
WAITS = ASKS + "input()\n"


def test_one_that_hangs_is_interrupted_for_who_waits_and_one_that_computes_is_not(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    people = ("alice", "bob", "carol", "dave", "root")
    with (
        node_on(nvml_world, tmp_path, CONFIG, *people, gpus=2) as (node, gpus),
        node.client("root") as admin,
        ExitStack() as ends,
    ):

        def start(who: str, code: str) -> subprocess.Popen[str]:
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = ends.enter_context(node.program(who, "-c", code, **pipes))
            ends.callback(process.kill)
            return process

        def rows() -> dict[str, dict[str, object]]:
            return {row["id"]: row for row in admin.call(Method.STATUS)["leases"]}

        hangs, computes = start("alice", HANGS), start("carol", COMPUTES)
        names = {process.stdout.readline().strip(): process for process in (hangs, computes)}
        for name, process in names.items():
            (gpu,) = rows()[name]["gpus"]
            assert gpu["uuid"] in gpus
            nvml_world.add_process(gpu["uuid"], process.pid, 4 * GIB)
        until(
            lambda: all(part["measured"] for row in rows().values() for part in row["gpus"]),
            "measured",
        )
        for process in names.values():
            process.stdin.write("\n")
            process.stdin.flush()
        until(lambda: all(row["state"] == "stalled" for row in rows().values()), "both are silent")
        stuck = next(name for name, process in names.items() if process is hangs)
        assert rows()[stuck]["stall"] == {"next": "interrupt", "after": 2.0, "at": None}
        for who in ("bob", "dave"):
            start(who, WAITS)
        _out, said = hangs.communicate(timeout=60)
        assert "KeyboardInterrupt" in said

        def got() -> int:
            others = (row for name, row in rows().items() if name not in names)
            return sum(row["state"] != "queued" for row in others)

        until(got, "somebody got the GPU")
        events = admin.call(Method.HISTORY, limit=100)["events"]
        acted = [event for event in events if event["kind"] == "StallActed"]
        assert [event["lease"] for event in acted] == [stuck]
        assert "was interrupted: it gave no sign of life" in acted[0]["text"]
        assert computes.poll() is None
        assert got() == 1, "the other GPU is in use"
