"""Containers of one OS user are told apart, and reach the node manager after it restarts.

Namespaces, and the mount of docs/deploy/docker.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.hub import NAMESPACES, Spawning, why_not
from support.jupyter import wait_for
from support.node import NodeClient, RunningNode, open_directory
from support.tinyhub import OWN, TinyHub, served

from jupyter_gpushare.protocol.messages import Method

pytestmark = [
    pytest.mark.skipif(
        bool(why_not(Spawning.NAMESPACES)), reason=str(why_not(Spawning.NAMESPACES))
    ),
]

#: In the container: what can be done to the socket, who is seen, and then a lease until the end.
INSIDE = """
import json, os, signal, subprocess, sys
place, other = sys.argv[1], int(sys.argv[2])
told = {"refused": [], "seen": sorted(int(p) for p in os.listdir("/proc") if p.isdigit())}
for attempt in (
    lambda: os.unlink(place + "/node.sock"),
    lambda: os.rename(place + "/node.sock", place + "/away"),
    lambda: os.symlink("/tmp/x", place + "/planted"),
    lambda: os.chmod(place + "/node.sock", 0),
):
    try:
        attempt()
    except OSError as error:
        told["refused"].append(error.errno)
try:
    os.kill(other, signal.SIGKILL)
    told["killed"] = True
except ProcessLookupError:
    told["killed"] = False
run = [sys.executable, "-m", "jupyter_gpushare.cli", "run", sys.executable, "-c",
       "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); input()"]
program = subprocess.Popen(run, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
told["gpus"] = program.stdout.readline().strip()
print(json.dumps(told), flush=True)
program.wait()
"""
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


class Container:
    """Somebody's container: PID and mount namespaces, and the socket's directory read-only."""

    def __init__(self, node: RunningNode, token: str, other: int) -> None:
        self.process = subprocess.Popen(
            [
                *(*NAMESPACES, "sh", "-c", MOUNT, str(node.socket.parent)),
                *(sys.executable, "-c", INSIDE, str(node.socket.parent), str(other)),
            ],
            env={
                **node.environ,
                "JUPYTER_GPUSHARE_SOCKET": str(node.socket),
                "JUPYTER_GPUSHARE_IDENTITY": "hub",
                "JUPYTERHUB_API_TOKEN": token,
            },
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.told: dict[str, Any] = json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def node() -> Iterator[RunningNode]:
    hub = TinyHub(
        tokens={"token-a": "alice", "token-b": "bob", "token-c": "carol"},
        users={"alice": [], "bob": [], "carol": []},
        admins={"carol"},
    )
    with open_directory() as place, served(hub):
        own = place / "own-token"
        own.write_text(OWN)
        own.chmod(0o600)
        (place / "run").mkdir(mode=0o755)
        arguments = ["--hub", f"--Hub.api_url={hub.url}", f"--Hub.api_token_file={own}"]
        node = RunningNode(
            place,
            arguments=arguments,
            config='c.Quotas.default = {"gpus": 1}\nc.Policy.max_tasks_per_gpu = 1\n',
            shared=True,
        )
        node.socket = place / "run" / "node.sock"
        with node:
            yield node


def leases(node: RunningNode) -> dict[str, list[str]]:
    """GPUs by environment, as an administrator sees it."""
    with NodeClient(node.socket, "token-c") as client:
        rows = client.call(Method.STATUS)["leases"]
    return {row["environment"]: [gpu["uuid"] for gpu in row["gpus"]] for row in rows}


def test_two_containers_of_one_os_user(node: RunningNode) -> None:
    alice = Container(node, "token-a", other=1_000_000)
    # To bob's container, the process that holds alice's lease has no number.
    bob = Container(node, "token-b", other=alice.process.pid)
    try:
        for container in (alice, bob):
            read_only = 30
            assert container.told["refused"][:3] == [read_only] * 3
            assert container.told["refused"][3] == read_only
            assert not container.told["killed"]
            # Its own processes only, numbered from one.
            assert container.told["seen"][0] == 1
            assert len(container.told["seen"]) <= 3
        assert leases(node) == {"alice": [alice.told["gpus"]], "bob": [bob.told["gpus"]]}
        assert alice.told["gpus"] != bob.told["gpus"]
        # When a container ends, all of it is gone, and the kernel says so at once.
        alice.end()
        wait_for(lambda: set(leases(node)) == {"bob"}, what="alice's lease to end")
    finally:
        alice.end()
        bob.end()


def test_a_node_manager_that_starts_again_is_seen_in_the_mount(node: RunningNode) -> None:
    bob = Container(node, "token-b", other=1_000_000)
    try:
        node.kill9()
        node.start()
        # The directory is mounted, not the socket, so the new one is there.
        wait_for(lambda: set(leases(node)) == {"bob"}, what="bob's lease after the restart")
    finally:
        bob.end()
    wait_for(lambda: not leases(node), 60, "his lease to end with the container")
