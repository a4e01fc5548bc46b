"""One process that takes a GPU through our client API; as :mod:`genv_worker`, but it queues."""

from __future__ import annotations

import importlib
import json
import sys
import time

from jupyter_gpushare.client import lease

#: What the first request would import; genv imports all of its own at the start, too.
for name in ("acquire", "requests.broker", "session.session", "session.task", "session.visible"):
    importlib.import_module(f"jupyter_gpushare.client.{name}")
for name in ("display", "grant", "render", "settings"):
    importlib.import_module(f"jupyter_gpushare.client.words.{name}")
importlib.import_module("jupyter_gpushare.protocol.connection")


def main() -> None:
    """Say ``ready``, wait for a line, work."""
    rounds, hold = int(sys.argv[1]), float(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(rounds):
        asked = time.monotonic()
        with lease(gpus=1) as grant:
            got = time.monotonic()
            say = {"gpu": grant.visible_devices, "asked": asked, "got": got, "tries": 1}
            print(json.dumps({**say, "event": "got"}), flush=True)
            time.sleep(hold)
            gone = time.monotonic()
        print(json.dumps({**say, "gone": gone, "event": "gone"}), flush=True)


main()
