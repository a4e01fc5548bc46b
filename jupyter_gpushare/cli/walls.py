"""``jupyter gpushare walls``: what the kernel lets people's processes open; on and off."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from ..console.verb import Refused, UsageError, Verb, option
from ..protocol.tables import listing
from ..walls import helper

#: Where the helper of this package's systemd units listens.
PLACE: Final = "/run/jupyter-gpushare-walls/walls.sock"
#: Seconds for its answer.
_PATIENCE: Final = 30.0


class WallsApp(Verb):
    """The walls: which control groups of people can open which GPUs, as the kernel
    enforces it. `off` takes every wall down, also without the helper; `on` has the helper put them
    up again. For root."""

    name = "walls"
    arguments = "[on|off]"
    examples = """
    sudo jupyter gpushare walls
    sudo jupyter gpushare walls off
    """

    socket = option(PLACE, "The helper's socket.")

    def run(self, arguments: list[str]) -> int:
        if len(arguments) > 1 or not {"on", "off"}.issuperset(arguments):
            raise UsageError("walls takes on, off or nothing")
        do = arguments[0] if arguments else "hello"
        if os.getuid() != 0:
            raise Refused("walls are root's: sudo jupyter gpushare walls")
        try:
            told = self._ask(do)
        except OSError as error:
            if do != "off":
                raise Refused(
                    f"the wall helper does not answer at {self.socket} ({error.strerror or error})."
                    " Start it: systemctl start jupyter-gpushare-walls (docs/how-to/walls.md)."
                ) from error
            count = helper.take_down(helper.Host(Path("/")))
            return self.say({"down": count}, f"Walls taken down: {count}. No helper runs.")
        if "error" in told:
            raise Refused(told["error"])
        if not told["on"]:
            return self.say(told, "The walls are off: every program can open every GPU.")
        rows = [
            {
                "control group": group,
                "of": " ".join(names) or "nobody yet",
                "can open": " ".join(gpus) or "none",
            }
            for group, (names, gpus) in sorted(told["walls"].items())
        ]
        words = listing(rows, "No control group of a person yet.")
        return self.say(told, "\n".join([words, *sorted(told["unlimited"].values())]))

    def _ask(self, do: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_PATIENCE)
            line.connect(self.socket)
            line.sendall(json.dumps({"do": do}).encode() + b"\n")
            told: dict[str, Any] = json.loads(line.makefile().readline())
        return told
