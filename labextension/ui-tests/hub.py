"""A real JupyterHub with its pages about GPUs, for the tests in a browser.

Prints one JSON line when all of it answers, then obeys the JSON lines on its standard input with
one JSON line for each: ``{"do": NAME, "who": PERSON, …}`` (see ``Stage``). Stops everything when
its input ends. The GPUs are simulated; Hub, proxy, servers, kernels and node manager are real.
To look around by hand: ``python hub.py``, and log in as alice, bob or carol with any password.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.hub import CLASS, Person, RunningHub
from support.jupyter import Kernel, wait_for
from support.node import NodeClient, Puppet, forget_quotas

from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method


class Stage:
    """What a test may have happen; each method is one thing to do."""

    def __init__(self, hub: RunningHub) -> None:
        self.hub = hub
        self.people: dict[str, Person] = {}
        self.kernels: dict[str, Kernel] = {}
        self.puppets: list[Puppet] = []

    def person(self, who: str) -> Person:
        if who not in self.people:
            self.people[who] = self.hub.person(who)
        return self.people[who]

    def kernel(self, who: str) -> None:
        """A notebook of theirs on their server, which holds a GPU."""
        person = self.person(who)
        person.start_server()
        person.status()
        notebook = {"path": "train.ipynb", "name": "train.ipynb", "type": "notebook"}
        answer = person.api.post("api/sessions", json={**notebook, "kernel": {"name": "python3"}})
        assert answer.status_code == 201, answer.text
        kernel = Kernel(person, answer.json()["kernel"]["id"])  # type: ignore[arg-type]
        kernel.run("%gpushare request")
        self.kernels[who] = kernel

    def ask(self, who: str, name: str, gpus: int = 1, until_held: bool = False) -> None:
        """Another process of theirs asks; it may have to wait, and this ``until_held`` with it."""
        puppet = Puppet()
        self.puppets.append(puppet)
        client = puppet.client(self.hub.socket, self.person(who).token)
        call = client.ask(name=name, gpus=gpus, request_id=name)
        if until_held:
            client.wait(call)

    def calm(self) -> None:
        """End all that was started, and forget what an administrator set."""
        for puppet in self.puppets:
            puppet.close()
        self.puppets.clear()
        for who, kernel in self.kernels.items():
            self.person(who).api.delete(f"api/kernels/{kernel.id}")
        self.kernels.clear()
        with NodeClient(self.hub.socket, self.person("carol").token) as client:
            for lease in client.call(Method.STATUS)["leases"]:
                with suppress(RemoteError):  # it ended by itself
                    client.call(Method.LEASE_REVOKE, lease=lease["id"], reason="the test is over")
            forget_quotas(client)
            # What they held is free only when it is measured so.
            wait_for(lambda: not client.call(Method.STATUS)["leases"], what="all GPUs to be free")

    def kill_node(self) -> None:
        """``kill -9``."""
        assert self.hub.node is not None
        self.hub.node.kill()
        self.hub.node.wait()

    def start_node(self) -> None:
        self.hub.start_node()


def main() -> None:
    """Serve until the input ends."""
    # Simulated work would fill the pages with other numbers at each run.
    # Who only asks here gives no signs of life.
    alive = ["--Policy.heartbeat_timeout=600"]
    with RunningHub.make(pages=True, external=True, more=CLASS, node_arguments=alive) as hub:
        stage = Stage(hub)
        print(json.dumps({"url": hub.url}), flush=True)
        for line in sys.stdin:
            wish: dict[str, Any] = json.loads(line)
            try:
                getattr(stage, wish.pop("do"))(**wish)
                print(json.dumps({"ok": True}), flush=True)
            except Exception as error:  # noqa: BLE001 - the test hears of it
                print(json.dumps({"ok": False, "error": repr(error)}), flush=True)


if __name__ == "__main__":
    main()
