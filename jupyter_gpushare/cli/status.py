"""``jupyter gpushare status``: the GPUs, the leases and the queue, as you may see them."""

from __future__ import annotations

from ..console.node import connect, whole_status
from ..console.verb import Verb


class StatusApp(Verb):
    """The node's GPUs, your quota, the leases and the queue."""

    name = "status"

    def run(self, arguments: list[str]) -> int:
        from ..client.words.render import show_status

        with connect() as node:
            status = whole_status(node)
        return self.say(status, show_status(status).text)
