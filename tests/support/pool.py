"""A pool's authority and its hosts: real node managers with real TLS on this machine."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_gpushare.daemon.membership import Membership, ask
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.protocol.messages import Method, Notice
from jupyter_gpushare.protocol.secured import client_context
from support.node import WITHIN, NodeClient, RunningNode, until

CLIENT = {"name": "test", "version": "0"}


def join(authority: Authority, folder: Path, name: str, now: float | None = None) -> Membership:
    """What joining leaves behind in a host's directory."""
    asked = ask()
    told = {
        "pool": authority.pool,
        "name": name,
        "address": "127.0.0.1",
        "certificates": authority.sign(asked.csr, name, time.time() if now is None else now),
        "authorities": authority.authorities,
    }
    return Membership.keep(folder, asked, told)


class PoolNode(RunningNode):
    """A node manager that is the host ``name`` of a pool."""

    def __init__(
        self,
        directory: Path,
        authority: Authority,
        name: str,
        *,
        arguments: Sequence[str] = (),
        **options: Any,
    ) -> None:
        listen = "--NodeManagerApp.pool_listen=127.0.0.1:0"
        super().__init__(directory, arguments=[listen, *arguments], **options)
        self.name = name
        join(authority, directory / "pool", name)

    @property
    def port(self) -> int:
        """Its port for the pool."""
        said = r"reaches this host, \S+, at 127\.0\.0\.1:(\d+)"
        # It may have been started more than once.
        return int(until(lambda: re.findall(said, self.story()), "the pool's port")[-1])

    def dial(self, context: ssl.SSLContext) -> socket.socket:
        """A TLS connection that has shaken hands. Raises ``OSError``."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN)
        # As asyncio has it; else hello waits for the acknowledgement of the handshake.
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise

    def from_pool(self, authority: Authority, viewer: dict[str, Any] | None = None) -> NodeClient:
        """A connection of the pool's, or of a person for whom it asks."""
        wire = self.dial(authority.call_context())
        return hello(NodeClient(connected=wire, hello=False), viewer=viewer)

    def from_elsewhere(self, authority: Authority, token: str | None) -> NodeClient:
        """A connection from another host without a certificate."""
        context = client_context(authority.authorities)
        return hello(NodeClient(connected=self.dial(context), hello=False), token=token)


def hello(client: NodeClient, **said: Any) -> NodeClient:
    """Say hello; closes the connection where that is refused."""
    try:
        client.hello = client.call(Method.HELLO, protocol=1, client=CLIENT, **said)
    except BaseException:
        client.close()
        raise
    return client


class Pool:
    """The pool of a host, as small as it can be."""

    def __init__(self, node: PoolNode, authority: Authority) -> None:
        self.client = node.from_pool(authority)
        self.seen: dict[str, Any] = self.client.call(Method.POOL_FOLLOW, pool=authority.pool)

    def lend(
        self, seconds: float = 60.0, hours: float | None = None, **gpus: Any
    ) -> dict[str, dict[str, int]]:
        budgets = [
            {"environment": name, "quota": {"gpus": 2}, "gpus": given, "gpu_hours": hours}
            for name, given in gpus.items()
        ]
        as_of = {"boot_id": self.seen["boot_id"], "at": self.seen["at"]}
        told = {"as_of": as_of, "seconds": seconds, "budgets": budgets}
        answer = self.client.call(Method.POOL_LEND, **told)
        return {row["environment"]: row for row in answer["environments"]}

    def report(self, where: Any = lambda report: True) -> dict[str, Any]:
        self.seen = self.client.wait_notice(Notice.REPORT, where=where)
        return self.seen

    def fresh(self) -> dict[str, Any]:
        """A report of now: a loan counts from it."""
        self.seen = self.client.call(Method.POOL_FOLLOW, pool="lab")
        return self.seen

    def of(self, who: str) -> dict[str, Any]:
        rows = {row["environment"]: row for row in self.fresh()["environments"]}
        return dict(rows.get(who, {}))
