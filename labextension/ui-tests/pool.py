"""A real JupyterHub with a pool of two hosts, for the tests in a browser.

Like ``hub.py``: prints one JSON line when all of it answers, then obeys the JSON lines on its
standard input. Where no hosts can be made it says why, as ``{"impossible": WHY}``, and ends.
To look around by hand: ``python pool.py``, and log in as alice, bob or carol with any password.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.node import NodeClient, Puppet
from support.poolhub import NODE, PoolHub, why_no_pool

#: As in servers.py: the tests speak to JupyterLab's commands, and it opens no news.
LAB = """
c.LabApp.expose_app_in_browser = True
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
"""


class Stage:
    """What a test may have happen; each method is one thing to do."""

    def __init__(self, scene: PoolHub) -> None:
        self.scene = scene
        self.puppets: list[Puppet] = []

    def server(self, who: str, kind: str) -> None:
        """Their server, started on the host that has such GPUs; they have the kernel for any."""
        self.scene.any_host_kernel(who)
        home = self.scene.hub.home / "homes" / who
        with (home / ".jupyter" / "jupyter_server_config.py").open("a") as config:
            config.write(LAB)
        self.scene.started(self.scene.hub.person(who), gpus=1, gpu_kind=kind)

    def notebook(self, who: str, name: str, cells: list[str]) -> None:
        """A notebook with these cells in the folder that their server shows."""
        made = [
            {"cell_type": "code", "id": f"c{n}", "source": cell, "metadata": {}, "outputs": []}
            | {"execution_count": None}
            for n, cell in enumerate(cells)
        ]
        spec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        content = {
            **{"cells": made, "nbformat": 4, "nbformat_minor": 5},
            "metadata": {"kernelspec": spec},
        }
        answer = self.scene.hub.person(who).api.put(
            f"api/contents/{name}", json={"type": "notebook", "content": content}
        )
        assert answer.status_code in (200, 201), answer.text

    def take(self, who: str, host: str, name: str) -> None:
        """A program of theirs on the host gets a GPU there."""
        puppet = Puppet()
        self.puppets.append(puppet)
        token = self.scene.hub.person(who).token
        client: NodeClient = puppet.client(self.scene.hosts[host].outside(NODE), token)
        client.request(name=name, gpus=1)

    def verb(self, words: list[str]) -> None:
        """A verb of ``jupyter gpushare pool``."""
        self.scene.verb(*words)

    def close(self) -> None:
        for puppet in self.puppets:
            puppet.close()


def main() -> None:
    """Serve until the input ends."""
    if why := why_no_pool():
        print(json.dumps({"impossible": why}), flush=True)
        return
    with PoolHub.make() as scene:
        stage = Stage(scene)
        print(json.dumps({"url": scene.hub.url}), flush=True)
        for line in sys.stdin:
            wish: dict[str, Any] = json.loads(line)
            try:
                getattr(stage, wish.pop("do"))(**wish)
                print(json.dumps({"ok": True}), flush=True)
            except Exception as error:  # noqa: BLE001 - the test hears of it
                print(json.dumps({"ok": False, "error": repr(error)}), flush=True)
        stage.close()


if __name__ == "__main__":
    main()
