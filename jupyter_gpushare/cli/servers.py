"""``jupyter gpushare servers``: the model servers that you may use, and how."""

from __future__ import annotations

from ..console.node import connect
from ..console.verb import Verb
from ..protocol.messages import Method


class ServersApp(Verb):
    """List the model servers of this host that you may use, asleep or awake: your
    own, and those that are shared with a group of yours. Below the list stands Python that asks
    each of them. With --json their tokens are told, too."""

    name = "servers"

    def run(self, arguments: list[str]) -> int:
        from ..client.words.render import show_servers

        with connect() as node:
            answer = node.call(Method.SERVERS)
        return self.say(answer, show_servers(answer["servers"]).text)
