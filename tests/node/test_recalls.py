"""A task is asked for what it can give; one over its limit is warned, one that hangs stopped."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, Puppet, RemoteError, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on
from support.policy_moving import Slow, asked_to_move

from jupyter_gpushare.node.wire.notices import recall_notice
from jupyter_gpushare.policy.words.recalls import Give
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Quotas.default = {"gpus": 1, "memory": "20GiB"}\n'
)
LIFTS = "c.Policy.burst_memory = 0.9\nc.Policy.burst_headroom = '10GiB'\n"
IDLE = "c.Policy.idle_timeout = 0.1\nc.Policy.notify_before = 0.0\n"


def test_an_idle_task_gives_its_memory_and_who_was_away_is_asked_again(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    here = node_on(nvml_world, tmp_path, CONFIG + IDLE, "alice", "bob")
    with here as (running, (gpu,)), Puppet() as a, Puppet() as b:
        alice = a.client(running.socket, "alice")
        bob = b.client(running.socket, "bob")
        granted = alice.request(kernel_id="k")
        lease = granted["lease"]
        nvml_world.add_process(gpu, a.pid, GIB)
        alice.call(Method.ACTIVITY, lease=lease, state="idle")
        waiting = bob.ask()
        asked = alice.wait_notice(Notice.RECALL)
        assert (asked["lease"], asked["give"], asked["why"]) == (lease, "tensors", "contended")
        assert (asked["gate"], [one["uuid"] for one in asked["gpus"]]) == (False, [gpu])
        assert "others wait" in asked["message"]
        back = a.client(running.socket, "alice")
        back.call(Method.ATTACH, lease=lease, secret=granted["secret"])
        assert back.wait_notice(Notice.RECALL)["give"] == "tensors"
        nvml_world.set_memory(gpu, a.pid, 0)
        told = back.call(Method.GAVE, lease=lease, give="tensors", rung="driver", memory=GIB)
        assert told["state"] == "parked"
        assert "voucher" in told, "it says that the lease is parked"
        bob.wait(waiting)


# -- lifted limits ---------------------------------------------------------------------------------


def told(client: NodeClient) -> tuple[str, int]:
    """The next limit that rises, in whole GiB, and its lease."""
    notice = client.wait_notice(Notice.LIMIT)
    (gpu,) = notice["gpus"]
    return str(notice["lease"]), round(gpu["memory"] / GIB)


def asked(client: NodeClient) -> tuple[str, int]:
    """The same of the next limit that falls."""
    notice = client.wait_notice(Notice.RECALL)
    (gpu,) = notice["gpus"]
    return str(notice["lease"]), round(gpu["may_stay"] / GIB)


def answer(client: NodeClient, lease: str, gib: int, uuid: str) -> None:
    gpus = [{"uuid": uuid, "memory": gib * GIB}]
    client.call(Method.GAVE, lease=lease, give="lift", limits=gpus)


def test_a_lease_is_lifted_and_comes_back_when_somebody_waits(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    here = node_on(nvml_world, tmp_path, CONFIG + LIFTS, "alice", "bob", gib=100)
    with here as (running, (gpu,)), Puppet() as a, Puppet() as b:
        alice, bob = a.client(running.socket, "alice"), b.client(running.socket, "bob")
        granted = alice.request()
        lease = granted["lease"]
        assert told(alice) == (lease, 90)
        answer(alice, lease, 90, gpu)
        nvml_world.add_process(gpu, a.pid, 85 * GIB)  # no room for bob, however often measured
        (row,) = alice.call(Method.STATUS)["gpus"]
        assert (row["reserved"], row["lifted"]) == (90 * GIB, 70 * GIB)
        (shown,) = alice.call(Method.STATUS)["leases"]
        assert shown["live_limits"] is True
        assert (shown["gpus"][0]["memory"], shown["gpus"][0]["limit"]) == (20 * GIB, 90 * GIB)
        assert Notice.LIMIT not in {seen.notice for seen in alice.notices}, "its answer is no news"

        # It was away: what it may use is told again.
        back = a.client(running.socket, "alice")
        back.call(Method.ATTACH, lease=lease, secret=granted["secret"])
        assert told(back) == (lease, 90)

        waiting = bob.ask()
        assert asked(alice) == (lease, 70)
        answer(alice, lease, 70, gpu)
        bob.wait_notice(Notice.QUEUED)
        assert not bob.answered(waiting), "her word is not enough"
        nvml_world.set_memory(gpu, a.pid, 65 * GIB)
        assert bob.wait(waiting)["gpus"][0]["memory"] == 20 * GIB
        texts = [event["text"] for event in alice.call(Method.HISTORY)["events"]]
        assert "may use 70 GiB of GPU 0" in texts


# -- at work ---------------------------------------------------------------------------------------


def test_a_task_that_computes_is_asked_at_its_gate() -> None:
    host = Slow()
    alice, _carol = asked_to_move(host)
    state = host.world.state
    asked, lease = state.memory_recall(alice.lease), state.leases[alice.lease]
    (part,) = lease.allocations
    told = recall_notice(Give.PROCESS, asked, state, lease, {(alice.lease, part.gpu): 7 * GIB})
    assert (told["give"], told["why"], told["gate"]) == ("process", "moved", True)
    assert told["gpus"] == [{"uuid": part.gpu, "may_stay": 0, "used": None}], "simulated"
    assert "can compute sooner on another GPU" in told["message"]


ONE_TASK = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.0\nc.Policy.idle_timeout = 0.3\n"
)


def one_gpu(directory: Path, more: str = "", simulate: str = "1x24GiB") -> RunningNode:
    people = ("alice", "bob", "root")
    return RunningNode(directory, simulate=simulate, config=ONE_TASK + more, people=people)


def idle(client: NodeClient, lease: str) -> None:
    client.call(Method.ACTIVITY, lease=lease, state="idle")


def row(client: NodeClient, lease: str) -> dict[str, Any]:
    return next(one for one in client.call(Method.STATUS)["leases"] if one["id"] == lease)


def test_an_idle_gpu_goes_to_who_waits_and_comes_back(tmp_path: Path) -> None:
    with (
        one_gpu(tmp_path, "c.Policy.notify_before = 0.2\n") as running,
        running.client("alice") as alice,
        running.client("bob") as bob,
    ):
        lease = alice.request(kernel_id="k")["lease"]
        idle(alice, lease)
        waiting = bob.ask()
        warned = alice.wait_notice(Notice.PARK_WARNING)
        assert (warned["lease"], "others wait" in warned["message"]) == (lease, True)
        asked = alice.wait_notice(Notice.RECALL)
        assert asked["lease"] == lease
        assert asked["why"] == "contended"
        assert "others wait" in asked["message"]
        assert not bob.answered(waiting), "she was only asked"
        assert alice.call(Method.PARKED, lease=lease)["state"] == "parked"
        bobs = bob.wait(waiting)["lease"]
        told = row(alice, lease)
        assert (told["state"], told["phase"], told["gpus"]) == ("parked", "parked", [])
        assert alice.call(Method.HEARTBEAT, lease=lease)["state"] == "parked"

        refused = alice.refused(Method.RESUME, lease=lease, wait=False)
        assert refused.reason is Reason.NO_RESOURCES
        left = alice.send(Method.RESUME, lease=lease)
        queued = alice.wait_notice(Notice.QUEUED)
        assert (queued["lease"], queued["position"]) == (lease, 1)
        alice.call(Method.PARKED, lease=lease)  # Ctrl-C
        with pytest.raises(RemoteError, match="stays parked"):
            alice.wait(left)
        assert row(alice, lease)["position"] is None
        again = alice.send(Method.RESUME, lease=lease)
        alice.wait_notice(Notice.QUEUED)
        bob.call(Method.RELEASE, lease=bobs)
        granted = alice.wait(again)
        assert (granted["lease"], granted["state"]) == (lease, "held")
        assert len(granted["gpus"]) == 1
        texts = [event["text"] for event in alice.call(Method.HISTORY)["events"]]
        assert "gave its GPUs back and is parked" in texts
        assert "asked for its GPUs again" in texts
        # What she was parked for is no time held.
        usage = alice.call(Method.USAGE)["rows"]
        assert usage[0]["leases"] == 1


def test_who_keeps_a_gpu_says_why_to_its_own_people(tmp_path: Path) -> None:
    with (
        one_gpu(tmp_path) as running,
        running.client("alice") as alice,
        running.client("bob") as bob,
    ):
        lease = alice.request(kernel_id="k")["lease"]
        idle(alice, lease)
        bob.ask()
        alice.wait_notice(Notice.RECALL)
        alice.call(Method.KEPT, lease=lease, reason="CUDA was started.")
        assert row(alice, lease)["kept"] == "CUDA was started."
        (hers,) = (one for one in bob.call(Method.STATUS)["leases"] if not one["mine"])
        assert hers["kept"] is None, "not others' business"


def test_a_parked_lease_survives_a_restart_with_its_place(tmp_path: Path) -> None:
    with one_gpu(tmp_path, "c.Policy.park_when = 'always'\n") as running:
        with running.client("alice") as alice, running.client("bob") as bob:
            granted = alice.request(kernel_id="k")
            lease = granted["lease"]
            idle(alice, lease)
            assert alice.wait_notice(Notice.RECALL)["why"] == "idle"
            alice.call(Method.PARKED, lease=lease)
            bobs = bob.request()["lease"]
            alice.send(Method.RESUME, lease=lease)
            alice.wait_notice(Notice.QUEUED)
            running.kill9()
            running.start()
        with running.client("alice") as alice, running.client("bob") as bob:
            back = alice.call(Method.ATTACH, lease=lease, secret=granted["secret"])
            assert (back["state"], back["gpus"]) == ("parked", [])
            assert row(alice, lease)["position"] == 1
            waiting = alice.send(Method.RESUME, lease=lease)
            bob.call(Method.RELEASE, lease=bobs)
            assert alice.wait(waiting)["state"] == "held"


# -- over a limit, and without a sign of life ------------------------------------------------------

STAGES = (
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
    with node_on(nvml_world, tmp_path, STAGES) as (node, (gpu,)), Puppet() as a:
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
