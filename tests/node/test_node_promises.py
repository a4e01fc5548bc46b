"""The real node manager keeps the promises through real deaths and on a real disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.disk import fill, tiny_disk
from support.node import (
    GIB,
    NodeClient,
    Puppet,
    RemoteError,
    RunningNode,
    needs_root,
    open_directory,
    until,
)
from support.nvml import NvmlWorld
from support.policy_world import plain_config

from jupyter_gpushare.node.ledger.codec import event_to_json
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import commands
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = "c.Policy.max_tasks_per_gpu = 1\nc.NodeManagerApp.debug_checks = True\n"
FAST = CONFIG + (
    "c.Policy.heartbeat_interval = 0.2\nc.Policy.heartbeat_timeout = 1.0\n"
    "c.Policy.restart_grace = 1.0\nc.NodeManagerApp.measure_interval = 0.2\n"
)
MEASURED = CONFIG + "c.NodeManagerApp.measure_interval = 0.2\n"  # nobody has to hurry
KILLS = 'c.Policy.audit_action = "kill"\nc.Policy.audit_grace = 0.5\n'
PEOPLE = ("alice", "bob", "carol")


def people_file(directory: Path) -> str:
    """A token file for three people and an administrator; the argument that names it."""
    tokens = directory / "tokens.json"
    tokens.touch(0o600)
    entries: list[dict[str, Any]] = [{"token": p, "environment": p} for p in PEOPLE]
    entries.append({"token": "root", "environment": "root", "admin": True})
    tokens.write_text(json.dumps({"tokens": entries}))
    return f"--token-file={tokens}"


@contextlib.contextmanager
def node_for_people(directory: Path, config: str = CONFIG, **more: Any) -> Iterator[RunningNode]:
    arguments = [people_file(directory), *more.pop("arguments", ())]
    simulate = more.pop("simulate", "1x24GiB")
    with RunningNode(
        directory, simulate=simulate, config=config, arguments=arguments, **more
    ) as node:
        yield node


def status_of(node: RunningNode) -> dict[str, Any]:
    with node.client("root") as admin:
        document: dict[str, Any] = admin.call(Method.STATUS)
        return document


def held_by(node: RunningNode) -> dict[str, str]:
    """Who holds what: lease id to environment."""
    leases = status_of(node)["leases"]
    return {lease["id"]: lease["environment"] for lease in leases if lease["phase"] == "held"}


def test_kill_9_and_start_again_loses_nothing(tmp_path):
    with node_for_people(tmp_path) as node, Puppet() as a, Puppet() as b, Puppet() as c:
        alice = a.client(node.socket, "alice")
        grant = alice.request(request_id="mine")
        waiting = []
        for puppet, who, ask in ((b, "bob", "batch"), (c, "carol", "interactive")):
            client = puppet.client(node.socket, who)
            call = client.ask(request_id="later", priority_class=ask)
            waiting.append(client.wait_notice(Notice.QUEUED))
            assert not client.answered(call)
        order = [entry["lease"] for entry in status_of(node)["queue"]]
        assert order == [waiting[1]["lease"], waiting[0]["lease"]]
        node.restart()
        assert held_by(node) == {grant["lease"]: "alice"}
        assert [entry["lease"] for entry in status_of(node)["queue"]] == order

        alice = a.client(node.socket, "alice")
        again = alice.call(Method.ATTACH, lease=grant["lease"], secret=grant["secret"])
        assert again["gpus"] == grant["gpus"]
        assert alice.request(request_id="mine") == grant, "a retry gets the same lease"
        carol = c.client(node.socket, "carol")
        call = carol.ask(request_id="later")
        assert carol.wait_notice(Notice.QUEUED)["lease"] == waiting[1]["lease"]
        alice.call(Method.RELEASE, lease=grant["lease"])
        assert carol.wait(call)["lease"] == waiting[1]["lease"]


def test_a_killed_holder_makes_room(tmp_path):
    with node_for_people(tmp_path) as node, Puppet() as a, Puppet() as b:
        a.client(node.socket, "alice").request()
        bob = b.client(node.socket, "bob")
        call = bob.ask()
        bob.wait_notice(Notice.QUEUED)
        a.kill9()
        assert bob.wait(call)["gpus"]


def test_a_stopped_holder_without_memory_loses_its_lease(tmp_path):
    with node_for_people(tmp_path, FAST) as node, Puppet() as a, Puppet() as b:
        alice = a.client(node.socket, "alice")
        lease = alice.request()["lease"]
        a.process.send_signal(signal.SIGSTOP)
        bob = b.client(node.socket, "bob")
        call = bob.ask()
        queued = bob.wait_notice(Notice.QUEUED)["lease"]
        while not bob.answered(call):
            with contextlib.suppress(RemoteError):
                bob.call(Method.HEARTBEAT, lease=queued)
            bob.pump(0.1)
        assert bob.wait(call)["lease"] == queued
        assert alice.wait_notice(Notice.REVOKED)["reason"] == "heartbeat_lost"
        with pytest.raises(RemoteError) as refused:
            alice.call(Method.HEARTBEAT, lease=lease)
        assert refused.value.reason is Reason.UNKNOWN_LEASE


@contextlib.contextmanager
def driver_node(world: NvmlWorld, directory: Path, config: str = FAST) -> Iterator[RunningNode]:
    with node_for_people(directory, config, simulate="", environ=world.environ()) as node:
        yield node


def test_a_stalled_holder_keeps_its_memory_until_it_dies(tmp_path, nvml_world):
    gpu = nvml_world.add_gpu(memory=24 * GIB)
    with driver_node(nvml_world, tmp_path) as node, Puppet() as a, Puppet() as b:
        lease = a.client(node.socket, "alice").request()["lease"]
        nvml_world.add_process(gpu, a.pid, 20 * GIB)
        bob = b.client(node.socket, "bob")
        call = bob.ask()
        queued = bob.wait_notice(Notice.QUEUED)["lease"]

        def stalled() -> bool:
            bob.call(Method.HEARTBEAT, lease=queued)
            return {x["id"]: x["state"] for x in status_of(node)["leases"]}[lease] == "stalled"

        until(stalled, "alice is stalled")
        for _ in range(20):  # several measurements later
            bob.call(Method.HEARTBEAT, lease=queued)
            bob.pump(0.05)
        assert not bob.answered(call)
        (shown,) = [x for x in status_of(node)["leases"] if x["id"] == lease]
        assert shown["gpus"][0]["measured"] == 20 * GIB
        a.kill9()
        assert bob.wait(call)["lease"] == queued


@pytest.mark.parametrize(
    ("action", "number"), [("interrupt", signal.SIGINT), ("kill", signal.SIGKILL)]
)
def test_a_stalled_holder_is_interrupted_or_killed_where_so_configured(
    tmp_path, nvml_world, action, number
):
    gpu = nvml_world.add_gpu(memory=24 * GIB)
    config = f"{FAST}c.Policy.stalled_action = {action!r}\n"
    with driver_node(nvml_world, tmp_path, config) as node, Puppet() as a:
        a.client(node.socket, "alice").request()
        nvml_world.add_process(gpu, a.pid, 20 * GIB)
        assert a.process.wait(30) == -number
        until(lambda: not held_by(node), "the GPU is back")


def test_a_released_lease_drains_until_the_memory_is_gone(tmp_path, nvml_world):
    gpu = nvml_world.add_gpu(memory=24 * GIB)
    with driver_node(nvml_world, tmp_path, CONFIG) as node, Puppet() as a, Puppet() as b:
        alice = a.client(node.socket, "alice")
        lease = alice.request()["lease"]
        nvml_world.add_process(gpu, a.pid, 2 * GIB)
        alice.call(Method.RELEASE, lease=lease)
        bob = b.client(node.socket, "bob")
        call = bob.ask()
        bob.wait_notice(Notice.QUEUED)
        (shown,) = [x for x in status_of(node)["leases"] if x["id"] == lease]
        assert shown["state"] == "draining"
        assert not bob.answered(call)
        nvml_world.remove_process(gpu, a.pid)
        assert bob.wait(call)["gpus"]


def test_squatters_are_counted_shown_and_dealt_with(tmp_path, nvml_world):
    gpu = nvml_world.add_gpu(memory=24 * GIB, reserved=0)
    config = MEASURED + 'c.Quotas.default = {"gpus": 1, "memory": "16GiB"}\n'
    with driver_node(nvml_world, tmp_path, config) as node, Puppet() as thief, Puppet() as b:
        nvml_world.add_process(gpu, thief.pid, 12 * GIB)

        def shown() -> dict[str, Any] | None:
            (seen,) = status_of(node)["gpus"]
            return seen if seen["squatters"] else None

        seen = until(shown, "the squatter is shown")
        assert seen["squatters"] == [{"pid": thief.pid, "memory": 12 * GIB, "kind": "squatter"}]
        assert seen["unleased"] == 12 * GIB
        assert seen["free"] == 12 * GIB
        bob = b.client(node.socket, "bob")
        bob.ask(request_id="his")
        queued = bob.wait_notice(Notice.QUEUED)
        # Nothing is done to it before all that was seen.
        node.terminate()
        node.config.write_text(config + KILLS)
        node.start()
        bob = b.client(node.socket, "bob")
        assert bob.wait(bob.ask(request_id="his"))["lease"] == queued["lease"]
        assert thief.process.wait(30) == -signal.SIGKILL
        with node.client("root") as admin:
            kinds = [e["kind"] for e in admin.call(Method.HISTORY, limit=100)["events"]]
        assert {"ProcessFlagged", "FlagActed", "FlagCleared"} <= set(kinds)


def test_a_program_of_the_hosts_own_is_left_alone_and_the_rest_is_the_whole(tmp_path, nvml_world):
    gpu = nvml_world.add_gpu(memory=24 * GIB, reserved=0)
    own = f"{os.getuid()}:{sys.executable}"
    config = f"{MEASURED}{KILLS}c.NodeManagerApp.system_programs = [{own!r}]\n"
    with driver_node(nvml_world, tmp_path, config) as node, Puppet() as monitor, Puppet() as b:
        nvml_world.add_process(gpu, monitor.pid, GIB)

        def shown() -> dict[str, Any] | None:
            (seen,) = status_of(node)["gpus"]
            return seen if seen["system"] else None

        seen = until(shown, "the program's memory is shown")
        assert (seen["system"], seen["unleased"], seen["squatters"]) == (GIB, GIB, [])
        (granted,) = b.client(node.socket, "bob").request()["gpus"]
        assert granted["memory"] == 23 * GIB
        assert monitor.process.poll() is None


def test_more_than_the_lease_allows_is_found_and_counted(tmp_path, nvml_world):
    gpu = nvml_world.add_gpu(memory=24 * GIB, reserved=0)
    config = MEASURED + 'c.Quotas.default = {"gpus": 1, "memory": "8GiB"}\n'
    with driver_node(nvml_world, tmp_path, config) as node, Puppet() as a:
        alice = a.client(node.socket, "alice")
        alice.request()
        nvml_world.add_process(gpu, a.pid, 12 * GIB)

        def over() -> bool:
            (shown,) = status_of(node)["leases"]
            return bool(shown["state"] == "over_limit")

        until(over, "alice is over her limit")
        (seen,) = status_of(node)["gpus"]
        assert (seen["reserved"], seen["unleased"], seen["free"]) == (8 * GIB, 4 * GIB, 12 * GIB)


def test_a_lost_gpu_takes_nobody_until_it_is_back(tmp_path, nvml_world):
    bad = nvml_world.add_gpu(memory=24 * GIB)
    good = nvml_world.add_gpu(memory=16 * GIB)
    with driver_node(nvml_world, tmp_path, MEASURED) as node, Puppet() as a, Puppet() as b:
        nvml_world.lose(bad)
        until(lambda: status_of(node)["gpus"][0]["health"] == "lost", "it is shown as lost")
        assert status_of(node)["gpus"][0]["problem"]
        assert a.client(node.socket, "alice").request()["gpus"][0]["uuid"] == good
        bob = b.client(node.socket, "bob")
        call = bob.ask()
        bob.wait_notice(Notice.QUEUED)
        nvml_world.restore(bad)
        assert bob.wait(call)["gpus"][0]["uuid"] == bad


def test_a_driver_that_hangs_does_not_hang_the_node_manager(tmp_path, nvml_world):
    nvml_world.add_gpu(memory=24 * GIB)
    with driver_node(nvml_world, tmp_path, FAST) as node, node.client("alice") as alice:
        nvml_world.set_slow(30_000)
        lease = alice.request()["lease"]
        for _ in range(20):
            assert alice.call(Method.HEARTBEAT, lease=lease)["state"] == "held"
            assert alice.call(Method.STATUS)["gpus"]
            alice.pump(0.05)
        nvml_world.set_slow(0)


OTHERS = [
    (Method.HEARTBEAT, {}),
    (Method.ACTIVITY, {"state": "idle"}),
    (Method.RELEASE, {}),
    (Method.ATTACH, {"secret": "0" * 64}),
    (Method.LEASE_REVOKE, {"reason": "mine"}),
]


@needs_root
def test_another_os_user_sees_and_touches_nothing():
    with (
        open_directory() as directory,
        RunningNode(directory, shared=True, config=CONFIG) as node,
        Puppet(uid=12345) as a,
        Puppet(uid=12346) as b,
    ):
        alice, mallory = a.client(node.socket), b.client(node.socket)
        assert alice.hello["environment"] == "uid-12345"
        assert not alice.hello["admin"]
        grant = alice.request(name="alices secret notebook", kernel_id="alices-kernel")
        seen = json.dumps(mallory.call(Method.STATUS))
        for secret in (grant["lease"], "alices", "12345", grant["secret"]):
            assert not re.search(rf"\b{secret}", seen)  # a time may have such digits inside
        for method, params in OTHERS:
            with pytest.raises(RemoteError) as refused:
                mallory.call(method, lease=grant["lease"], **params)
            assert refused.value.reason in (Reason.UNKNOWN_LEASE, Reason.NOT_ALLOWED)
        # Even the right secret is worth nothing to another user.
        with pytest.raises(RemoteError) as refused:
            mallory.call(Method.ATTACH, lease=grant["lease"], secret=grant["secret"])
        assert refused.value.reason is Reason.UNKNOWN_LEASE
        assert mallory.call(Method.TASK_ENDED, kernel_id="alices-kernel") == {"ended": 0}
        for method, params in (
            (Method.QUOTA_LIST, {}),
            (Method.QUOTA_SET, {"environment": "uid-12346", "gpus": 9}),
            (Method.QUOTA_UNSET, {"environment": "uid-12345"}),
        ):
            with pytest.raises(RemoteError) as refused:
                mallory.call(method, **params)
            assert refused.value.reason is Reason.NOT_ALLOWED
        for method in (Method.HISTORY, Method.USAGE):
            told = json.dumps(mallory.call(method, environment="uid-12345"))
            assert grant["lease"] not in told
        assert alice.call(Method.HEARTBEAT, lease=grant["lease"])["state"] == "held"
        with node.client() as root:
            assert root.hello["admin"]
            answer = root.call(Method.LEASE_REVOKE, lease=grant["lease"], reason="maintenance")
            assert answer["state"] == "ended"
        assert "maintenance" in alice.wait_notice(Notice.REVOKED)["message"]


def test_quotas_of_users_groups_and_admins_follow_live(tmp_path):
    config = CONFIG + (
        'c.Quotas.default = {"gpus": 0}\n'
        'c.Quotas.groups = {"crew": {"gpus": 1, "memory": "8GiB"}}\n'
        'c.Quotas.users = {"carol": {"gpus": 2}}\n'
    )
    with node_for_people(tmp_path, config, simulate="2x24GiB") as node:
        tokens = json.loads((tmp_path / "tokens.json").read_text())
        tokens["tokens"][1]["groups"] = ["crew"]
        (tmp_path / "tokens.json").write_text(json.dumps(tokens))
        with (
            node.client("alice") as alice,
            node.client("bob") as bob,
            node.client("carol") as carol,
            node.client("root") as root,
        ):
            got = [(c.hello["quota"]["gpus"], c.hello["quota"]["source"]) for c in (alice, bob)]
            assert got == [(0, "default"), (1, "group")]
            assert carol.hello["quota"]["gpus"] == 2
            with pytest.raises(RemoteError) as refused:
                alice.request()
            assert refused.value.reason is Reason.ZERO_QUOTA
            root.call(Method.QUOTA_SET, environment="alice", gpus=1, memory=4 * GIB, weight=2.0)
            assert alice.request()["gpus"][0]["memory"] == 4 * GIB
            with pytest.raises(RemoteError) as refused:
                alice.request(memory=5 * GIB)
            assert refused.value.reason is Reason.OVER_QUOTA
            assert "4 GiB" in refused.value.message
            assert refused.value.data["quota_memory"] == 4 * GIB
            node.restart()
            with node.client("alice") as again:
                assert again.hello["quota"]["source"] == "override"


@needs_root
def test_a_full_disk_grants_nothing_and_loses_nothing(tmp_path):
    with tiny_disk(tmp_path / "disk", 2 * 2**20) as disk:
        ledger = disk / "ledger.sqlite"
        with (
            node_for_people(tmp_path, simulate="2x24GiB", ledger=ledger) as node,
            Puppet() as a,
            Puppet() as b,
        ):
            alice = a.client(node.socket, "alice")
            grant = alice.request()
            filler = fill(disk)
            bob = b.client(node.socket, "bob")

            def until_refused() -> None:
                for _ in range(500):  # what the ledger's file still has room for
                    bob.call(Method.RELEASE, lease=bob.request()["lease"])

            with pytest.raises(RemoteError) as refused:
                until_refused()
            assert refused.value.reason is Reason.UNAVAILABLE
            assert "keep their GPUs" in refused.value.message
            assert alice.call(Method.HEARTBEAT, lease=grant["lease"])["state"] == "held"
            assert status_of(node)["node"]["problem"]
            filler.unlink()
            until(lambda: status_of(node)["node"]["problem"] is None, "the disk is well again")
            assert bob.request()["gpus"]
            node.restart()
            assert grant["lease"] in held_by(node)


def test_a_damaged_ledger_is_set_aside_and_said_so(tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"this is no database" * 1000)
    with RunningNode(tmp_path) as node:
        assert node.status()["gpus"]
        aside = list(tmp_path.glob("ledger.sqlite.corrupt-*"))
        assert aside[0].read_bytes().startswith(b"this is no database")
        assert aside[0].name in node.story()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('c.Quotas.default = {"gpus": "many"}', "Quotas.default: gpus: it must be"),
        ('c.Quotas.users = {"a": {"gpus": 1, "memory": "8 bananas"}}', "Quotas.users['a']: memory"),
        ('c.Quotas.groups = {"g": {"cards": 1}}', "unknown cards"),
        ('c.NodeManagerApp.simulate = "2 big ones"', "2 big ones"),
        ("c.Policy.max_tasks_per_gpu = 0", "max_tasks_per_gpu"),
        ('c.NodeManagerApp.token_file = "gone"', "The token file gone cannot be used: No such"),
    ],
)
def test_a_wrong_configuration_ends_with_one_clear_sentence(tmp_path, config, words):
    (tmp_path / "config.py").write_text(config)
    command = [sys.executable, "-m", "jupyter_gpushare.node", f"--config={tmp_path}/config.py"]
    command += [f"--socket={tmp_path}/s", f"--ledger={tmp_path}/l.sqlite"]
    command += [] if "simulate" in config else ["--simulate=1x24GiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_two_node_managers_cannot_share_a_ledger_or_a_socket(tmp_path):
    with RunningNode(tmp_path) as node:
        for argument in (f"--socket={tmp_path}/other", f"--ledger={tmp_path}/other.sqlite"):
            command = [*node.command(), argument]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 1, argument
            assert "Traceback" not in done.stderr
        assert node.status()["gpus"]


def test_generate_config_writes_every_trait(tmp_path):
    path = tmp_path / "made.py"
    command = [sys.executable, "-m", "jupyter_gpushare.node", "--generate-config", "-y"]
    subprocess.run([*command, f"--config={path}"], check=True, timeout=30, capture_output=True)
    text = path.read_text()
    for name in ("Quotas.default", "Policy.stalled_action", "Connections.burst", "token_file"):
        assert name in text


def test_a_live_nodes_commands_replayed_give_the_same_events(tmp_path):
    """Conformance: what the node manager did is what the policy alone says."""
    record = tmp_path / "record.jsonl"
    with (
        node_for_people(
            tmp_path, MEASURED, simulate="2x24GiB", arguments=[f"--record={record}"]
        ) as node,
        contextlib.ExitStack() as stack,
    ):
        puppets = [stack.enter_context(Puppet()) for _ in range(4)]
        clients = [
            puppet.client(node.socket, PEOPLE[number % 3]) for number, puppet in enumerate(puppets)
        ]
        calls = [client.ask(gpus=1 + number % 2) for number, client in enumerate(clients)]
        first = clients[0].wait(calls[0])
        clients[0].call(Method.ACTIVITY, lease=first["lease"], state="idle")
        with contextlib.suppress(RemoteError):
            clients[2].request(gpus=9)
        with node.client("root") as root:
            root.call(Method.QUOTA_SET, environment="bob", gpus=1)
            root.call(Method.LEASE_REVOKE, lease=first["lease"], reason="for the test")
        puppets[1].kill9()
        until(lambda: len(held_by(node)) <= 2, "some came and went")
        node.terminate()
    config = plain_config(max_tasks_per_gpu=1)
    state, steps, kinds = State(), 0, set()
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        told = entry["command"]
        command = msgspec.convert(told, type=getattr(commands, told["kind"]))
        step = core.step(state, command, config)
        events = json.loads(json.dumps([event_to_json(event) for event in step.events]))
        assert events == entry["events"], told
        core.check(step.state)
        state, steps = step.state, steps + 1
        kinds |= {event["kind"] for event in entry["events"]}
    assert steps >= 15
    assert {"LeaseGranted", "LeaseEnded", "QuotaOverridden", "ActivityChanged"} <= kinds


def test_the_metrics_page_tells_the_state(tmp_path):
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with node_for_people(tmp_path, arguments=[f"--metrics-port={port}"]) as node:
        with node.client("alice") as alice, NodeClient(node.socket, "bob") as bob:
            alice.request()
            bob.ask()
            bob.wait_notice(Notice.QUEUED)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                text = page.read().decode()
        assert 'jupyter_gpushare_queue_requests{priority_class="interactive"} 1.0' in text
        assert 'jupyter_gpushare_leases{state="active"} 1.0' in text
        assert "alice" not in text
        assert os.fspath(tmp_path) not in text
