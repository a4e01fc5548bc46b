"""Whatever breaks or is attacked, those who are known go on and no lease is lost.

The Hub, the node manager, the pages; another user.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hub import OS_USERS, Person, RunningHub, needs_hub
from support.jupyter import wait_for
from support.node import NodeClient, Puppet
from support.thief import thief

from jupyter_gpushare.protocol.errors import RemoteError, RemoteProtocolError
from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub


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
