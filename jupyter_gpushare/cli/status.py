"""``jupyter gpushare status``: the GPUs, the leases and the queue, as you may see them."""

from __future__ import annotations

import os

from ..console.node import connect, whole_status
from ..console.verb import Verb
from .jobchecks import batch_job


class StatusApp(Verb):
    """The node's GPUs, your quota, the leases and the queue; in a job of a batch system also which
    job it is, and until when."""

    name = "status"

    def run(self, arguments: list[str]) -> int:
        from ..client.words.render import show_status

        with connect() as node:
            status = whole_status(node)
        told = [show_status(status).text]
        for check in batch_job(os.environ):
            told += ["", f"{check.text}. {check.fix}" if check.fix else f"{check.text}."]
        return self.say(status, "\n".join(told))
