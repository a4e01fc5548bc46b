"""Whatever breaks or is attacked, no lease is lost, and nobody else gets visitors or secrets.

The node manager and the pages that a Hub runs; another user.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.hub import OS_USERS, RunningHub, needs_hub
from support.jupyter import wait_for
from support.node import NodeClient, Puppet
from support.thief import thief

from jupyter_gpushare.protocol.messages import Method

pytestmark = needs_hub


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
            wait_for(lambda: hub.knows(alice.token), 60, f"it is back:\n{hub.tail()}")
            assert hub.node_process().pid != old.pid
            # Not the Hub has started it, which looks every 30 s only.
            assert hub.node_process().parent() == keeper
            assert hub.leases(carol.token) == {lease: "alice"}
    wait_for(lambda: not hub.leases(carol.token), what="the lease to end")


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
    assert browser.get("/services/gpushare/").status_code == 200
    browser.follow_redirects = False  # else a login that was lost would be had again
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
        wait_for(lambda: hub.knows(alice.token) == "alice", 60, "the next node manager")
        wait_for(lambda: visit() != 503, 60, "the pages of the next Hub")
        wait_for(lambda: not keeper.is_running(), 20, "the old keeper's end")
        # The keeper is killed: the Hub looks after it only now and then.
        keeper, service = hub.pages_processes()
        keeper.kill()
        wait_for(lambda: not service.is_running(), what="the pages to end with the keeper")
        robber.try_again()
        assert visit() == 503
        assert set(robber.said()) == {"nothing"}


# -- internal_ssl ----------------------------------------------------------------------------------

MORE = """
c.JupyterHub.internal_ssl = True
c.JupyterHub.internal_certs_location = HOME + "/internal-ssl"
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_bind_url.replace("http:", "https:")
c.ConfigurableHTTPProxy.api_url = c.ConfigurableHTTPProxy.api_url.replace("http:", "https:")
"""


@pytest.mark.story(
    *("jupyter_gpushare/hub/setup", "jupyter_gpushare/node/people/hub", "tests/hub/"),
    *("jupyter_gpushare/node/configuration", "jupyter_gpushare/protocol/keeper"),
)
def test_groups_quotas_and_people_come_over_internal_ssl() -> None:
    """The node manager and the pages ask the Hub as they do without."""
    with RunningHub.make(pages=True, more=MORE) as hub:
        # Her group's quota: the node manager has read groups, and knows her by her token.
        with closing(hub.person("alice").browser()) as browser:
            page = browser.get("/services/gpushare/").text
        assert "8 GiB" in page, f"{page}\n{hub.tail()}"
