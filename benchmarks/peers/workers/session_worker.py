"""One person's notebook: so many cells, with time to think after each.

``session_worker.py MODE CELLS BUSY THINK``: with MODE ``session`` the GPU is taken before the
first cell and kept until after the last; with ``cell`` each cell takes one and gives it back. What
is told is each cell's wait, and from when to when it ran.
"""

from __future__ import annotations

import json
import sys
import time

from jupyter_gpushare.client import release, request


def main() -> None:
    """Say ``ready``, wait for a line, work."""
    mode, cells = sys.argv[1], int(sys.argv[2])
    busy, think = float(sys.argv[3]), float(sys.argv[4])
    print("ready", flush=True)
    sys.stdin.readline()
    for cell in range(cells):
        asked = time.monotonic()
        if mode == "cell" or cell == 0:
            gpu = request(gpus=1).visible_devices
        got = time.monotonic()
        time.sleep(busy)
        say = {"gpu": gpu, "asked": asked, "got": got, "gone": time.monotonic()}
        if mode == "cell":
            release()
        print(json.dumps({**say, "event": "gone"}), flush=True)
        time.sleep(think)
    release()


main()
