"""Whoever comes in at the node manager's TLS port has the rights that were proved, and no more."""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.leasecalls import CALLS
from support.node import NodeClient, RemoteError, needs_root
from support.pool import Pool, PoolNode, hello

from jupyter_gpushare.node.wire.translate import FROM_ELSEWHERE
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.secured import client_context

ALICE = {"name": "alice", "groups": ["class"]}
ROOT = {"name": "root", "admin": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority.create(folder / "authority", "lab", time.time())


@pytest.fixture(scope="module")
def node(folder: Path, authority: Authority) -> Iterator[PoolNode]:
    with PoolNode(folder, authority, "b", people=("alice", "bob", "root")) as running:
        pool = Pool(running, authority)
        pool.lend(seconds=3600.0, alice=1, bob=1)
        yield running
        pool.client.close()


def refusal(knock: Any) -> str:
    """The sentence with which somebody is not let in, or the TLS alert."""
    with pytest.raises((RemoteError, OSError)) as caught:
        knock().close()
    error = caught.value
    if isinstance(error, RemoteError):
        assert error.reason is Reason.NOT_ALLOWED
    return str(error)


# -- who comes in ------------------------------------------------------------------------------


def test_the_pool_comes_in_and_is_nobody_s_environment(
    node: PoolNode, authority: Authority
) -> None:
    with node.from_pool(authority) as pool:
        assert pool.hello["node"]["name"] == "b"
        assert not pool.hello["admin"]
        assert "csr" in pool.call(Method.POOL_CERTIFY)
        # Lending needs no administrator, but setting quotas does.
        with pytest.raises(RemoteError) as caught:
            pool.call(Method.QUOTA_SET, environment="alice", gpus=2)
        assert caught.value.reason is Reason.NOT_ALLOWED
    with node.client("root") as root:
        known = [row["environment"] for row in root.call(Method.QUOTA_LIST)["quotas"]]
        assert "gpushare:pool" not in known


def test_a_viewer_sees_what_the_person_sees_by_token(node: PoolNode, authority: Authority) -> None:
    with node.client("alice") as alice, node.client("bob") as bob:
        own, other = alice.request(name="mine"), bob.request(name="bobs-notebook")
        with node.from_pool(authority, ALICE) as viewer:
            seen, told = viewer.call(Method.STATUS), alice.call(Method.STATUS)
            assert {one["id"] for one in seen["leases"]} == {one["id"] for one in told["leases"]}
            assert [one["name"] for one in seen["leases"] if one["id"] == own["lease"]]
            assert "bobs-notebook" not in str(seen)
            assert viewer.hello["environment"] == "alice"
            for method, params in (
                (Method.RELEASE, {"lease": other["lease"]}),
                (Method.LEASE_REVOKE, {"lease": other["lease"], "reason": "r"}),
                (Method.QUOTA_SET, {"environment": "alice", "gpus": 9}),
                (Method.POOL_FOLLOW, {"pool": "lab"}),
                (Method.POOL_CERTIFY, {}),
            ):
                with pytest.raises(RemoteError):
                    viewer.call(method, **params)
            assert viewer.call(Method.RELEASE, lease=own["lease"])
        with node.from_pool(authority, ROOT) as admin:
            assert "bobs-notebook" in str(admin.call(Method.STATUS))
            admin.call(Method.LEASE_REVOKE, lease=other["lease"], reason="maintenance")


def test_a_token_counts_over_tls_as_on_the_socket(node: PoolNode, authority: Authority) -> None:
    with node.from_elsewhere(authority, "alice") as alice:
        assert alice.hello["environment"] == "alice"
        assert not alice.hello["admin"]
        alice.call(Method.STATUS)
    assert "not known" in refusal(lambda: node.from_elsewhere(authority, "mallory"))
    assert "only the pool" in refusal(lambda: node.from_elsewhere(authority, None))


TASK = {"name": "n", "kind": "process"}
#: A call's least parameters, if it has any.
LEAST: dict[Method, dict[str, Any]] = {
    **{method: {"lease": "l", **params} for method, params in CALLS.items()},
    Method.REQUEST: {"task": TASK},
    Method.ATTACH: {"lease": "l", "secret": "s"},
    Method.PREDICT: {
        **{"task": TASK, "framework": "torch", "operations": []},
        **{"batch": 1, "iterations": 1, "inputs": 1, "peak": 1},
    },
    Method.TASK_ENDED: {"kernel_id": "k"},
    Method.TASK_RENAMED: {"kernel_id": "k", "name": "n", "path": "n"},
}


@pytest.mark.parametrize("admin", [False, True])
def test_what_a_process_must_ask_for_itself_is_refused(
    node: PoolNode, authority: Authority, admin: bool
) -> None:
    methods = set(Method) - FROM_ELSEWHERE - {Method.HELLO}
    assert {Method.REQUEST, Method.ATTACH, Method.HEARTBEAT, Method.LEDGER_BACKUP} <= methods
    with node.from_pool(authority, {"name": "root" if admin else "alice", "admin": admin}) as one:
        for method in sorted(methods, key=lambda method: method.value):
            with pytest.raises(RemoteError) as caught:
                one.call(method, **LEAST.get(method, {}))
            assert caught.value.reason is Reason.NOT_ALLOWED, method
            assert "processes of this host only" in str(caught.value), method


# -- who does not -------------------------------------------------------------------------------


def test_only_the_pool_s_certificate_names_a_viewer(node: PoolNode, authority: Authority) -> None:
    context = client_context(authority.authorities)

    def knock(connected: socket.socket | None) -> NodeClient:
        client = NodeClient(node.socket, connected=connected, hello=False)
        return hello(client, token="alice", viewer=ROOT)

    assert "Only the pool may say" in refusal(lambda: knock(node.dial(context)))
    assert "Only the pool may say" in refusal(lambda: knock(None))


# -- floods ---------------------------------------------------------------------------------------


def test_slow_handshakes_delay_neither_local_clients_nor_the_pool(
    node: PoolNode, authority: Authority
) -> None:
    held: list[socket.socket] = []
    try:
        for _ in range(300):
            one = socket.create_connection(("127.0.0.1", node.port), 60, ("127.0.0.9", 0))
            one.sendall(b"\x16\x03\x01")  # a record begins, and nothing follows
            held.append(one)
        took = []
        for _ in range(50):
            begun = time.monotonic()
            with node.client("alice") as alice:
                alice.call(Method.STATUS)
            took.append(time.monotonic() - begun)
        begun = time.monotonic()
        with node.from_pool(authority) as pool:
            pool.call(Method.STATUS)
        came_in = time.monotonic() - begun
    finally:
        for one in held:
            one.close()
    assert statistics.median(took) < 0.5
    assert came_in < 30.0


#: Knocks from ever other loopback addresses as fast as it can, and says nothing more.
KNOCKS = """
import collections, contextlib, os, socket, sys
os.setuid(54321)
held, number = collections.deque(maxlen=200), 0
while True:
    number += 1
    wire = socket.socket()
    wire.setblocking(False)
    with contextlib.suppress(OSError):
        wire.bind((f"127.{1 + number // 62500 % 250}.{number // 250 % 250}.{1 + number % 250}", 0))
        with contextlib.suppress(BlockingIOError):
            wire.connect(("127.0.0.1", int(sys.argv[1])))
        held.append(wire)
    if number == 2000:
        print("on", flush=True)
"""


@needs_root
def test_after_a_restart_the_pool_comes_in_beside_strangers_from_many_addresses(
    tmp_path: Path, authority: Authority
) -> None:
    """Each address was a network of its own, and the pool a stranger like them."""
    with PoolNode(tmp_path, authority, "b") as node:
        node.from_pool(authority).close()
        node.restart()
        line = [sys.executable, "-c", KNOCKS, str(node.port)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as stranger:
            try:
                assert stranger.stdout is not None
                assert stranger.stdout.readline() == "on\n"
                for _ in range(5):  # each of them, as the pool tries again only after seconds
                    node.from_pool(authority).close()
            finally:
                stranger.kill()


# -- renewal --------------------------------------------------------------------------------------


def _shown(node: PoolNode, authority: Authority) -> bytes | None:
    with node.dial(authority.call_context()) as wire:
        return wire.getpeercert(binary_form=True)


def test_a_certificate_is_renewed_over_the_link(node: PoolNode, authority: Authority) -> None:
    before = _shown(node, authority)
    key = (node.directory / "pool" / "host.pem").read_bytes()
    with node.from_pool(authority) as pool:
        csr = pool.call(Method.POOL_CERTIFY)["csr"]
        wrong, signed = (authority.sign(csr, name, time.time()) for name in ("c", "b"))
        told = {"certificates": wrong, "authorities": authority.authorities}
        with pytest.raises(RemoteError, match="not for the host b"):
            pool.call(Method.POOL_CERTIFY, **told)
        assert _shown(node, authority) == before
        told["certificates"] = signed
        assert pool.call(Method.POOL_CERTIFY, **told) == {}
        # What was asked for is used up, and the connection goes on.
        with pytest.raises(RemoteError, match="asked for no certificate"):
            pool.call(Method.POOL_CERTIFY, **told)
        pool.call(Method.STATUS)
    assert _shown(node, authority) != before
    assert (node.directory / "pool" / "host.pem").read_bytes() != key
    assert (node.directory / "pool" / "host.pem").stat().st_mode & 0o077 == 0


def test_many_people_open_the_pool_s_pages_at_once(node: PoolNode, authority: Authority) -> None:
    """They come from one address, which is no flood where the pool's certificate was shown."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(node.from_pool(authority))
        for number in range(100):
            viewer = {"name": f"student-{number}"}
            stack.enter_context(node.from_pool(authority, viewer))
