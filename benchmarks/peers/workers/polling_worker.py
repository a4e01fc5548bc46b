"""One script of the kind "pick an idle GPU": asks NVML, sets CUDA_VISIBLE_DEVICES, begins to work.

``polling_worker.py PICK STARTUP HOLD``: PICK is ``first`` or ``random`` among the GPUs without a
process and (nearly) without used memory; STARTUP is what lies between the pick and the first byte
on the GPU: importing a framework and starting CUDA. Nothing idle: it looks again after RETRY
seconds.
"""

from __future__ import annotations

import json
import random
import sys
import time

import pynvml

RETRY = 0.1
IDLE_MEMORY = 100 * 2**20


def idle() -> list[int]:
    """GPUs that nobody seems to use."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            continue
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        if memory.used <= IDLE_MEMORY:
            found.append(index)
    return found


def main() -> None:
    """Say ``ready``, wait for a line, work."""
    pick, startup, hold = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    print("ready", flush=True)
    sys.stdin.readline()
    asked, tries = time.monotonic(), 0
    pynvml.nvmlInit()
    while True:
        tries += 1
        found = idle()
        if found:
            break
        time.sleep(RETRY)
    gpu = found[0] if pick == "first" else random.choice(found)
    got = time.monotonic()
    say = {"gpu": str(gpu), "asked": asked, "got": got, "tries": tries}
    print(json.dumps({**say, "event": "got"}), flush=True)
    time.sleep(startup)
    print(json.dumps({**say, "event": "uses"}), flush=True)
    time.sleep(hold)
    print(json.dumps({**say, "gone": time.monotonic(), "event": "gone"}), flush=True)


main()
