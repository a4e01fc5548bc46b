"""A damaged ledger costs nobody the work: leases are had back, and nobody is killed meanwhile."""

from __future__ import annotations

import base64
import signal
import threading
from pathlib import Path
from typing import Any

from support.node import GIB, Puppet, RunningNode, until
from support.nvml import NvmlWorld

from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

PEOPLE = ("alice", "bob", "carol", "root")
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.heartbeat_interval = 0.2\n"
)
#: Longer than a test, and no longer than a few looks.
LONG = CONFIG + "c.Policy.restart_grace = 120.0\nc.Policy.heartbeat_timeout = 60.0\n"
SHORT = CONFIG + "c.Policy.restart_grace = 1.0\nc.Policy.heartbeat_timeout = 1.0\n"
KILLS = 'c.Policy.audit_action = "kill"\nc.Policy.audit_grace = 0.2\n'


def node_with(directory: Path, config: str = LONG, **more: Any) -> RunningNode:
    return RunningNode(directory, config=config, people=PEOPLE, **more)


def damage(node: RunningNode) -> None:
    """Stop it, spoil its ledger, start it again."""
    node.terminate()
    node.ledger.write_bytes(b"this was a ledger " * 1000)
    node.start()


def status_of(node: RunningNode) -> dict[str, Any]:
    document: dict[str, Any] = node.client("root").call(Method.STATUS)
    return document


def shown(granted: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a task presents of the lease that it was granted."""
    return {name: granted[name] for name in ("lease", "secret", "voucher")} | changes


def altered(voucher: str, change: str, to: str) -> str:
    mac, _, text = voucher.partition(".")
    body = base64.urlsafe_b64decode(text).decode()
    assert change in body
    return f"{mac}.{base64.urlsafe_b64encode(body.replace(change, to).encode()).decode()}"


def test_work_goes_on_and_only_who_has_no_lease_is_killed(
    tmp_path: Path, nvml_world: NvmlWorld
) -> None:
    first, second = (nvml_world.add_gpu(memory=24 * GIB, reserved=0) for _ in range(2))
    environ = nvml_world.environ()
    with (
        node_with(tmp_path, LONG + KILLS, simulate="", environ=environ) as node,
        Puppet() as a,
        Puppet() as another,
        Puppet() as thief,
    ):
        granted = a.client(node.socket, "alice").request()
        (gpu,) = granted["gpus"]
        nvml_world.add_process(gpu["uuid"], a.pid, 20 * GIB)
        free = second if gpu["uuid"] == first else first
        damage(node)
        nvml_world.add_process(free, thief.pid, 2 * GIB)

        # Nobody is killed, nothing is granted, and an administrator reads why.
        assert "was set aside as" in node.story()
        since = until(lambda: squatters(node) == {a.pid, thief.pid} and now(node), "both are seen")
        until(lambda: now(node) - since > 1.0, "the audit has looked often")
        assert (a.process.poll(), thief.process.poll()) == (None, None)
        assert "The ledger is new" in status_of(node)["node"]["problem"]
        bob = another.client(node.socket, "bob")
        bob.ask()
        queued = bob.wait_notice(Notice.QUEUED)
        assert "ledger" in queued["message"]
        bob.call(Method.RELEASE, lease=queued["lease"])

        # Not who has another's voucher, nor another process of the same person, nor a forger.
        alice, voucher = a.client(node.socket, "alice"), granted["voucher"]
        for stranger in (bob, another.client(node.socket, "alice")):
            assert "no such lease" in stranger.refused(Method.ATTACH, **shown(granted)).message
        for wrong in (
            {"voucher": altered(voucher, "alice", "alicf")},
            {"voucher": altered(voucher, gpu["uuid"], free)},
            *({"voucher": None}, {"voucher": "x"}, {"secret": "0" * 64}),
        ):
            refused = alice.refused(Method.ATTACH, **shown(granted, **wrong))
            assert refused.reason is Reason.UNKNOWN_LEASE
        again = alice.call(Method.ATTACH, **shown(granted))
        for part in ("lease", "secret", "gpus"):
            assert again[part] == granted[part]
        (back,) = [one for one in status_of(node)["leases"] if one["id"] == granted["lease"]]
        assert (back["environment"], back["phase"], back["name"]) == ("alice", "held", "test")

        # Only now the time for it passes quickly.
        node.terminate()
        node.config.write_text(SHORT + KILLS)
        node.start()
        assert thief.process.wait(60) == -signal.SIGKILL
        nvml_world.remove_process(free, thief.pid)
        until(lambda: unleased(node, free) == 0, "what it had is free")
        assert another.client(node.socket, "bob").request()["gpus"][0]["uuid"] == free
        assert a.process.poll() is None
        assert (unleased(node, gpu["uuid"]), squatters(node)) == (0, set())


def squatters(node: RunningNode) -> set[int]:
    gpus = status_of(node)["gpus"]
    return {one["pid"] for gpu in gpus for one in gpu["squatters"] if one["kind"] == "squatter"}


def unleased(node: RunningNode, uuid: str) -> int:
    return sum(gpu["unleased"] for gpu in status_of(node)["gpus"] if gpu["uuid"] == uuid)


def now(node: RunningNode) -> float:
    return float(status_of(node)["node"]["time"])


def test_the_client_has_its_lease_back_by_itself(tmp_path: Path) -> None:
    with node_with(tmp_path, simulate="1x24GiB") as node:
        lost = threading.Event()
        session = Session(str(node.socket), lambda: "alice", 5.0, on_lost=lambda *_: lost.set())
        session.open()
        try:
            task = {"name": "train.py", "kind": "process"}
            granted = session.request(
                {"request_id": "r", "task": task}, lambda notice: None, lambda: None, 10.0
            )
            damage(node)

            (back,) = until(lambda: status_of(node)["leases"], "the lease is back")
            assert (back["id"], back["phase"]) == (granted["lease"], "held")
            assert not lost.is_set()
            assert session.call(Method.HEARTBEAT, lease=granted["lease"])["state"] == "held"
        finally:
            session.close()
