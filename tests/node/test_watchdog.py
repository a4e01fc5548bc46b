"""A task over its limit is warned, trimmed and parked; one that hangs is interrupted, no other."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Quotas.default = {"gpus": 1, "memory": "8GiB"}\n'
    "c.Policy.over_limit_trim = 0.5\nc.Policy.over_limit_park = 1.0\n"
    "c.Policy.over_limit_last = 1.5\nc.Policy.audit_grace = 0.1\n"
)


def shown(client: NodeClient) -> dict[str, Any] | None:
    return client.call(Method.STATUS)["leases"][0]["over_limit"]


def test_the_stages_are_told_shown_and_kept_and_a_busy_task_is_left_alone(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    with node_on(nvml_world, tmp_path, CONFIG) as (node, (gpu,)), Puppet() as a:
        client = a.client(node.socket)
        lease = client.request(kernel_id="k")["lease"]
        nvml_world.add_process(gpu, a.pid, 12 * GIB)
        warned = client.wait_notice(Notice.OVER_LIMIT)
        assert (warned["lease"], warned["stage"], warned["gpu"]) == (lease, "warned", gpu)
        assert (warned["used"], warned["limit"]) == (12 * GIB, 8 * GIB)
        assert "uses 12 GiB of GPU 0, 4 GiB more than its limit of 8 GiB" in warned["message"]
        assert client.wait_notice(Notice.RECALL)["give"] == "cache"
        last = until(lambda: (s := shown(client)) and s["stage"] == "last" and s, "the last stage")
        assert (last["used"], last["limit"], last["next"]) == (12 * GIB, 8 * GIB, None)
        assert not [n for n in client.notices if n.notice is Notice.RECALL], "it computes"
        assert a.process.poll() is None, "the default does no harm"
        texts = [event["text"] for event in client.call(Method.HISTORY)["events"]]
        assert sum("may use 8 GiB: " in text for text in texts) == 4
        client.call(Method.ACTIVITY, lease=lease, state="idle")
        # It is idle, and asked when it has been quiet for a while.
        assert client.wait_notice(Notice.RECALL)["why"] == "over_limit"
        nvml_world.set_memory(gpu, a.pid, 8 * GIB)
        until(lambda: shown(client) is None, "it is within its limit")


STALLS = (
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
        node_on(nvml_world, tmp_path, STALLS, *people, gpus=2) as (node, gpus),
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
