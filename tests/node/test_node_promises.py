"""The real node manager keeps the promises through real deaths and on a real disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.disk import fill, tiny_disk
from support.node import GIB, Puppet, RemoteError, RunningNode, needs_root, until
from support.nvml_fixtures import node_on
from support.policy_world import plain_config

from jupyter_gpushare.ledger.codec import to_json
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import commands
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = "c.Policy.max_tasks_per_gpu = 1\nc.NodeManagerApp.debug_checks = True\n"
MEASURED = CONFIG + "c.NodeManagerApp.measure_interval = 0.2\n"
KILLS = 'c.Policy.audit_action = "kill"\nc.Policy.audit_grace = 0.5\n'
PEOPLE = ("alice", "bob", "carol")


def node_for_people(directory: Path, config: str = CONFIG, **more: Any) -> RunningNode:
    given = {"simulate": "1x24GiB", "people": (*PEOPLE, "root"), **more}
    return RunningNode(directory, config=config, **given)


def held_by(node: RunningNode) -> dict[str, str]:
    """Who holds what: lease id to environment."""
    return {x["id"]: x["environment"] for x in node.status()["leases"] if x["phase"] == "held"}


def test_a_killed_holder_makes_room(tmp_path):
    with node_for_people(tmp_path) as node, Puppet() as a, Puppet() as b:
        a.client(node.socket, "alice").request()
        bob = b.client(node.socket, "bob")
        call = bob.ask()
        bob.wait_notice(Notice.QUEUED)
        a.kill9()
        assert bob.wait(call)["gpus"]


def test_squatters_are_counted_shown_and_dealt_with(tmp_path, nvml_world):
    config = MEASURED + 'c.Quotas.default = {"gpus": 1, "memory": "16GiB"}\n'
    here = node_on(nvml_world, tmp_path, config, *PEOPLE, "root")
    with here as (node, (gpu,)), Puppet() as thief, Puppet() as b:
        nvml_world.add_process(gpu, thief.pid, 12 * GIB)

        until(lambda: node.status()["gpus"][0]["squatters"], "the squatter is shown")
        (seen,) = node.status()["gpus"]
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
        assert thief.process.wait(60) == -signal.SIGKILL
        with node.client("root") as admin:
            told = {e["what"] for e in admin.call(Method.HISTORY, limit=100)["events"]}
        assert {"unallowed memory use", "acted against a process", "within bounds again"} <= told


def test_a_program_of_the_hosts_own_is_left_alone_and_the_rest_is_the_whole(tmp_path, nvml_world):
    own = f"{os.getuid()}:{sys.executable}"
    config = f"{MEASURED}{KILLS}c.NodeManagerApp.system_programs = [{own!r}]\n"
    here = node_on(nvml_world, tmp_path, config, *PEOPLE, "root")
    with here as (node, (gpu,)), Puppet() as monitor, Puppet() as b:
        nvml_world.add_process(gpu, monitor.pid, GIB)

        until(lambda: node.status()["gpus"][0]["system"], "the program's memory is shown")
        (seen,) = node.status()["gpus"]
        assert (seen["system"], seen["unleased"], seen["squatters"]) == (GIB, GIB, [])
        (granted,) = b.client(node.socket, "bob").request()["gpus"]
        assert granted["memory"] == 23 * GIB
        assert monitor.process.poll() is None


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
            grant = alice.request(kernel_id="k")
            filler = fill(disk)
            bob = b.client(node.socket, "bob")

            with pytest.raises(RemoteError) as refused:  # noqa: PT012
                for _ in range(500):  # what the ledger's file still has room for
                    bob.call(Method.RELEASE, lease=bob.request()["lease"])
            assert refused.value.reason is Reason.UNAVAILABLE
            assert "keep their GPUs" in refused.value.message
            assert alice.call(Method.HEARTBEAT, lease=grant["lease"])["state"] == "held"
            assert node.status()["node"]["problem"]
            for number in range(200):
                state = "idle" if number % 2 else "busy"
                alice.call(Method.ACTIVITY, lease=grant["lease"], state=state)
            told = [line for line in node.story().splitlines() if "is full" in line]
            assert len([line for line in told if "The ledger refused" in line]) == 1, told
            assert len(told) <= 3, "or the log fills the disk again"
            filler.unlink()
            until(lambda: node.status()["node"]["problem"] is None, "the disk is well again")
            assert "The ledger is written again, after it failed" in node.story()
            assert bob.request()["gpus"]
            node.restart()
            assert grant["lease"] in held_by(node)


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
    simulate = "" if "simulate" in config else "1x24GiB"
    said = RunningNode(tmp_path, config=config, simulate=simulate).refuses()
    assert words in said
    assert "Traceback" not in said


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
        events = json.loads(json.dumps([to_json(event) for event in step.events]))
        assert events == entry["events"], told
        core.check(step.state)
        state, steps = step.state, steps + 1
        kinds |= {event["kind"] for event in entry["events"]}
    assert steps >= 15
    assert {"LeaseGranted", "LeaseEnded", "QuotaChanged", "ActivityChanged"} <= kinds
