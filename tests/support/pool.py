"""A pool's authority and its hosts: real node managers with real TLS on this machine."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_gpushare.node.host.membership import Membership, ask
from jupyter_gpushare.pool.pki import Authority
from jupyter_gpushare.protocol.messages import Method
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

    def dial(self, context: ssl.SSLContext, *, source: str = "127.0.0.1") -> socket.socket:
        """A TLS connection that has shaken hands. Raises ``OSError``."""
        plain = socket.create_connection(
            ("127.0.0.1", self.port), timeout=WITHIN, source_address=(source, 0)
        )
        try:
            return context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise

    def from_pool(
        self, authority: Authority, viewer: dict[str, Any] | None = None, **options: Any
    ) -> NodeClient:
        """A connection of the pool's, or of a person for whom it asks."""
        client = NodeClient(connected=self.dial(authority.call_context()), hello=False, **options)
        return hello(client, viewer=viewer)

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
