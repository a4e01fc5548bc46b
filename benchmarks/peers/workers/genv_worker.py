"""One process that takes a GPU through genv's SDK. Runs in the peers' own environment.

``genv_worker.py ROUNDS HOLD``: takes and gives back one GPU, so many times. genv has no queue: when
nothing is free its SDK raises, and the caller tries again, here after RETRY seconds. Times are of
the monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import sys
import time

import genv.sdk

RETRY = 0.1


def main() -> None:
    """Say ``ready``, wait for a line, work."""
    rounds, hold = int(sys.argv[1]), float(sys.argv[2])
    config = genv.sdk.Env.Config(gpus=1)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(rounds):
        asked, tries = time.monotonic(), 0
        while True:
            tries += 1
            environment = genv.sdk.activate(config=config)
            try:
                environment.__enter__()
            except (RuntimeError, ValueError) as error:
                if "No available devices" not in str(error):
                    raise
                time.sleep(RETRY)
                continue
            break
        got = time.monotonic()
        (gpu,) = genv.sdk.attached()
        say = {"gpu": str(gpu), "asked": asked, "got": got, "tries": tries}
        print(json.dumps({**say, "event": "got"}), flush=True)
        time.sleep(hold)
        gone = time.monotonic()
        environment.__exit__(None, None, None)
        print(json.dumps({**say, "gone": gone, "event": "gone"}), flush=True)


main()
