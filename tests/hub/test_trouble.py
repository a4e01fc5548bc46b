"""Whatever breaks or is attacked, those who are known go on and no lease is lost.

The Hub, the node manager, a rude neighbour.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.hub import OS_USERS, Person, RunningHub, Spawning, free_ports, why_not
from support.jupyter import wait_for
from support.node import NodeClient, Puppet
from support.thief import thief

from jupyter_gpushare.protocol.errors import RemoteError, RemoteProtocolError
from jupyter_gpushare.protocol.messages import Method

pytestmark = [
    pytest.mark.skipif(bool(why_not(Spawning.ONE_USER)), reason=str(why_not(Spawning.ONE_USER))),
]


@pytest.fixture(scope="module")
def hub() -> Iterator[RunningHub]:
    """Everybody is one OS user; the node manager is not the Hub's."""
    with RunningHub.make(external=True, node_arguments=["--Hub.believed=1"]) as running:
        yield running


@pytest.fixture(scope="module")
def people(hub: RunningHub) -> dict[str, Person]:
    return {name: hub.person(name) for name in OS_USERS}


def held(hub: RunningHub, carol: Person) -> dict[str, str | None]:
    """Environments by the leases that they hold, as an administrator sees them."""
    with NodeClient(hub.socket, carol.token) as client:
        leases = client.call(Method.STATUS)["leases"]
    return {lease["id"]: lease["environment"] for lease in leases}


def take_back_all(hub: RunningHub, carol: Person) -> None:
    """Revoke what is left, so that the next test has all GPUs."""
    with NodeClient(hub.socket, carol.token) as client:
        for lease in held(hub, carol):
            client.call(Method.LEASE_REVOKE, lease=lease, reason="the test is over")


def let_in(hub: RunningHub, token: str) -> str | None:
    """Whom the node manager takes the token for."""
    try:
        with NodeClient(hub.socket, token) as client:
            return str(client.hello["environment"])
    except (RemoteError, RemoteProtocolError, OSError):
        return None


def test_without_the_hub_those_who_are_known_go_on(
    hub: RunningHub, people: dict[str, Person]
) -> None:
    alice, bob, carol = (people[name] for name in ("alice", "bob", "carol"))
    alice.start_server()
    alice.status()
    kernel = alice.start_kernel()
    kernel.run("from jupyter_gpushare.client import api; api.request(); x = 1")
    assert let_in(hub, alice.token) == "alice"
    assert let_in(hub, carol.token) == "carol"
    before = held(hub, carol)
    assert set(before.values()) == {"alice"}

    hub.kill()
    # Her notebook does not notice, and a new task of hers gets a GPU: she is known.
    assert kernel.run("print(x + 1)").strip() == "2"
    asked = kernel.run(
        "import subprocess, sys\n"
        "run = ['jupyter', 'gpushare', 'run', sys.executable, '-c', 'print(7)']\n"
        "print(subprocess.run(run, capture_output=True, text=True))"
    )
    assert "returncode=0" in asked
    assert "7" in asked
    # Who was never seen is nobody while nobody can be asked, and hears why.
    with pytest.raises(RemoteError, match="JupyterHub cannot be asked"):
        NodeClient(hub.socket, bob.token)
    assert held(hub, carol) == before
    # A node manager that starts meanwhile knows her too, and carol as anybody.
    assert hub.node is not None
    hub.node.terminate()
    hub.node.wait()
    hub.start_node()
    assert let_in(hub, alice.token) == "alice"
    assert let_in(hub, bob.token) is None
    assert set(held(hub, carol).values()) == {None}
    assert kernel.run("print(x + 1)").strip() == "2"

    hub.start()
    wait_for(lambda: let_in(hub, bob.token) == "bob", 30, "bob to be known")
    assert held(hub, carol) == before
    assert kernel.run("print(x + 2)").strip() == "3"
    alice.stop_server()
    wait_for(lambda: not held(hub, carol), what="all leases to end with the server")


def test_a_node_manager_killed_under_load_loses_no_lease(
    hub: RunningHub, people: dict[str, Person]
) -> None:
    alice, bob, carol = (people[name] for name in ("alice", "bob", "carol"))
    stop = threading.Event()
    worked = {"alice": 0, "bob": 0}

    def churn(person: Person) -> None:
        """Ask and give back until the end, whatever happens to the node manager."""
        while not stop.is_set():
            with (
                contextlib.suppress(RemoteError, RemoteProtocolError, OSError),
                NodeClient(hub.socket, person.token) as client,
            ):
                lease = client.request(wait=False)["lease"]
                client.call(Method.HEARTBEAT, lease=lease)
                client.call(Method.RELEASE, lease=lease)
                worked[person.name] += 1

    with contextlib.ExitStack() as stack:
        kept = {}
        for person in (alice, bob):
            puppet = stack.enter_context(Puppet())
            answer = puppet.client(hub.socket, person.token).request(request_id="kept")
            kept[answer["lease"]] = (person, puppet, answer)
        pool = stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(stop.set)
        for person in (alice, bob, alice, bob):
            pool.submit(churn, person)
        for _ in range(3):
            before = dict(worked)
            wait_for(
                lambda before=before: all(worked[name] > before[name] + 5 for name in worked),
                what="some work",
            )
            hub.node_process().kill()
            assert hub.node is not None
            hub.node.wait()
            hub.start_node()
            known = held(hub, carol)
            for lease, (person, puppet, answer) in kept.items():
                assert known[lease] == person.name
                # The same lease, for the same process, with the same secret and GPUs.
                again = puppet.client(hub.socket, person.token)
                back = again.call(Method.ATTACH, lease=lease, secret=answer["secret"])
                # With what else of hers she shares a GPU changes with the load.
                assert [{**gpu, "shared_with": []} for gpu in back["gpus"]] == [
                    {**gpu, "shared_with": []} for gpu in answer["gpus"]
                ]
        stop.set()
        pool.shutdown()
    wait_for(lambda: not kept.keys() & held(hub, carol).keys(), what="the processes' leases to end")
    # What was granted just when it was killed is this process's, which lives on.
    take_back_all(hub, carol)


QUOTAS = {"default": {"gpus": 1, "memory": "7GiB"}, "users": {"a-precious-name": {"gpus": 2}}}


@pytest.fixture(scope="module")
def managed() -> Iterator[RunningHub]:
    """The Hub runs the node manager and the pages."""
    with RunningHub.make(pages=True, quotas=QUOTAS, per_server=True) as running:
        yield running


def test_the_hubs_own_node_manager_comes_back_and_loses_no_lease(managed: RunningHub) -> None:
    hub = managed
    alice, carol = hub.person("alice"), hub.person("carol")
    with Puppet() as puppet:
        client = puppet.client(hub.socket, alice.token)
        lease = client.request()["lease"]
        keeper = hub.node_process().parent()
        for _ in range(3):
            old = hub.node_process()
            old.kill()
            wait_for(lambda: let_in(hub, alice.token), 60, f"it is back:\n{hub.tail()}")
            assert hub.node_process().pid != old.pid
            # Not the Hub has started it, which looks every 30 s only.
            assert hub.node_process().parent() == keeper
            assert held(hub, carol) == {lease: "alice"}
    wait_for(lambda: not held(hub, carol), what="the lease to end")


def test_a_parked_kernels_next_cell_gets_its_gpu_though_the_node_manager_is_killed(
    managed: RunningHub,
) -> None:
    hub = managed
    alice, carol = hub.person("alice"), hub.person("carol")
    alice.start_server()
    alice.status()
    kernel = alice.start_kernel()
    kernel.run("%gpushare request\n%gpushare park")
    before = held(hub, carol)
    keeper = hub.node_process().parent()
    hub.node_process().kill()
    assert "GPU-" in kernel.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert hub.node_process().parent() == keeper, "the Hub, which is slow, was not needed"
    assert held(hub, carol) == before
    kernel.shutdown()


def test_each_named_server_may_have_a_quota_of_its_own(managed: RunningHub) -> None:
    hub = managed
    alice = hub.person("alice")
    alice.start_server()
    alice.start_server("gpu")
    second = hub.client(f"{hub.url}/user/alice/gpu/", alice.token)
    assert alice.status()["environment"] == "alice"
    status = wait_for(
        lambda: (answer := second.get("gpushare/api/status")).status_code == 200 and answer.json(),
        what="the second server's status",
    )
    assert status["environment"] == "alice/gpu"
    # Each has the quota of her group.
    assert [part["quota"]["gpus"] for part in (status, alice.status())] == [1, 1]
    # Who sees them all by one page sees whose quota is whose.
    with NodeClient(hub.socket, token=alice.token) as page:
        (row,) = page.call(Method.STATUS)["servers"]
    assert (row["environment"], row["gpus"], row["used_gpus"]) == ("alice/gpu", 1, 0)
    hub.api.delete("users/alice/servers/gpu")
    alice.stop_server()
    wait_for(lambda: not hub.api.get("users/alice").json().get("servers"), what="both to end")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_what_everybody_may_read_of_a_node_manager_says_nothing_of_quotas(
    managed: RunningHub,
) -> None:
    node = managed.node_process()
    other = pwd.getpwnam(OS_USERS["bob"])
    drop = ("setpriv", f"--reuid={other.pw_uid}", f"--regid={other.pw_gid}", "--clear-groups")
    for process in (node.pid, node.ppid()):
        for name, readable in (("cmdline", True), ("environ", False)):
            seen = subprocess.run(
                [*drop, "cat", f"/proc/{process}/{name}"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (seen.returncode == 0) is readable
            assert "7GiB" not in seen.stdout
            assert "precious" not in seen.stdout
    # They are in force all the same.
    with NodeClient(managed.socket, managed.person("carol").token) as client:
        assert "a-precious-name" in str(client.call(Method.QUOTA_LIST))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_nobody_else_gets_the_pages_port_whoever_is_killed(
    managed: RunningHub, tmp_path: Path
) -> None:
    hub = managed
    alice = hub.person("alice")
    hub.clients.append(browser := alice.browser())
    port = int(str(hub.pages_url).rpartition(":")[2])

    def visit() -> int:
        return browser.get("/services/gpushare/").status_code

    assert visit() == 200
    with thief(port, tmp_path / "thief") as robber:
        _, service = hub.pages_processes()
        service.kill()
        wait_for(lambda: visit() == 200, 30, "the pages")
        assert "mine" not in robber.said()
        # The Hub is killed. Its proxy goes on, and sends visitors to where the pages were.
        keeper, service = hub.pages_processes()
        node = hub.node_process()
        hub.kill()
        wait_for(lambda: not service.is_running(), what="the pages to end with the Hub")
        wait_for(lambda: not node.is_running(), what="the node manager to end with the Hub")
        robber.try_again()
        assert visit() == 503
        hub.start()
        wait_for(lambda: let_in(hub, alice.token) == "alice", 60, "the next node manager")
        wait_for(lambda: not keeper.is_running(), 20, "the old keeper's end")
        # The keeper is killed: the Hub looks after it only now and then.
        keeper, service = hub.pages_processes()
        keeper.kill()
        wait_for(lambda: not service.is_running(), what="the pages to end with the keeper")
        robber.try_again()
        assert visit() == 503
        assert set(robber.said()) == {"nothing"}


def test_a_hub_does_not_start_where_another_user_has_its_pages_port(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    (port,) = free_ports(1)
    with thief(port, tmp_path / "thief") as robber:
        wait_for(robber.said, what="the thief")
        with (
            pytest.raises(AssertionError, match=f"JupyterHub ended(.|\n)*127.0.0.1:{port}"),
            RunningHub.make(url=f"http://127.0.0.1:{port}"),
        ):
            pass
        assert set(robber.said()) == {"mine"}


# -- a rude neighbour ----------------------------------------------------------------------------

#: Runs in a process of its own, as the same OS user: opens many connections and keeps them.
FLOOD = """
import json, socket, sys, time
path, token, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
hello = {"jsonrpc": "2.0", "id": 1, "method": "hello", "params": {"protocol": 1,
         "client": {"name": "flood", "version": "0"}}}
if token:
    hello["params"]["token"] = token
kept = []
print("started", flush=True)
while True:
    try:
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(1)
        one.connect(path)
        if token:
            one.sendall(json.dumps(hello).encode() + b"\\n")
        kept.append(one)
    except OSError:
        pass
    if len(kept) >= count:
        for one in kept[: count // 2]:
            one.close()
        del kept[: count // 2]
        print("round", flush=True)
"""


@pytest.mark.parametrize("shown", ["nothing", "nonsense", "his own token"])
def test_thousands_of_connections_of_one_keep_nobody_out(
    hub: RunningHub, people: dict[str, Person], shown: str
) -> None:
    alice, bob = people["alice"], people["bob"]
    assert let_in(hub, alice.token) == "alice"
    token = {"nothing": "", "nonsense": "x" * 32, "his own token": bob.token}[shown]
    node = hub.node_process()
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(hub.socket), token, "1500"],
        stdout=subprocess.PIPE,
        text=True,
    ) as flood:
        try:
            assert flood.stdout is not None
            assert flood.stdout.readline() == "started\n"
            assert flood.stdout.readline() == "round\n"
            # While he has thousands open and opens thousands more, she gets her GPU each time.
            # How often in a minute is the machine's affair.
            served = 0
            deadline = time.monotonic() + 60
            while served < 2:
                assert time.monotonic() < deadline, f"she was served {served} times only"
                with (
                    contextlib.suppress(OSError, RemoteProtocolError),
                    NodeClient(hub.socket, alice.token) as client,
                ):
                    lease = client.request(wait=False)["lease"]
                    client.call(Method.RELEASE, lease=lease)
                    served += 1
            assert flood.poll() is None
        finally:
            flood.kill()
    assert node.is_running()
    wait_for(lambda: node.num_fds() < 200, 30, "his connections to be gone")
    # Of hers one may be left whose connection was cut before she gave it back.
    take_back_all(hub, people["carol"])


def test_lines_that_are_too_long_or_no_json_end_one_connection_only(
    hub: RunningHub, people: dict[str, Person]
) -> None:
    alice, bob = people["alice"], people["bob"]
    with NodeClient(hub.socket, alice.token) as hers:
        memory = hub.node_process().memory_info().rss
        for line in (b"x" * 2**20, b'{"a":' * 100_000, b"\xff" * 70_000 + b"\n", b"[" * 60_000):
            with socket.socket(socket.AF_UNIX) as rude:
                rude.settimeout(10)
                rude.connect(str(hub.socket))
                with contextlib.suppress(OSError):
                    rude.sendall(line)
                    rude.shutdown(socket.SHUT_WR)
                    while rude.recv(65536):
                        pass
            assert hers.call(Method.STATUS)["environment"] == "alice"
        with NodeClient(hub.socket, bob.token) as his:
            huge: dict[str, Any] = {"name": "n" * 5000, "kind": "process"}
            with pytest.raises(RemoteError):
                his.call(Method.REQUEST, task=huge, gpus=10**30)
        assert hub.node_process().memory_info().rss < memory + 50 * 2**20


def test_requests_of_one_do_not_use_up_what_others_may_ask(
    hub: RunningHub, people: dict[str, Person]
) -> None:
    alice, bob, carol = (people[name] for name in ("alice", "bob", "carol"))
    with contextlib.ExitStack() as stack:
        # The node is full, so that everything he asks waits.
        for person in (carol, carol):
            stack.enter_context(Puppet()).client(hub.socket, person.token).request(gpus=2)
        his = stack.enter_context(NodeClient(hub.socket, bob.token))
        ids = [his.ask(request_id=f"r{number}") for number in range(200)]
        hers = stack.enter_context(NodeClient(hub.socket, alice.token))
        waiting = hers.ask(request_id="hers")
        wait_for(lambda: sum(map(his.answered, ids)) >= 200 - 64, what="what is refused him")
        assert not hers.answered(waiting)
        refused = 0
        for call in ids:
            if his.answered(call):
                with pytest.raises(RemoteError, match="waiting"):
                    his.wait(call)
                refused += 1
        assert refused >= 200 - 64
        # Those that wait are this process's, which lives on.
        take_back_all(hub, carol)
    wait_for(lambda: not held(hub, carol), what="all to be gone")


def test_a_socket_that_was_planted_or_linked_is_not_used(hub: RunningHub) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    place = hub.home / "planted"
    place.mkdir(mode=0o755)
    elsewhere = place / "elsewhere.txt"
    elsewhere.write_text("precious")
    link = place / "node.sock"
    link.symlink_to(elsewhere)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "jupyter_gpushare.cli", "node", "--shared"),
            *("--simulate=1x8GiB", f"--socket={link}", f"--ledger={place}/ledger.sqlite"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert "is no socket" in run.stderr
    assert elsewhere.read_text() == "precious"
    assert link.is_symlink()
