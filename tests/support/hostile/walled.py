"""People who use GPUs on the driver's doubles, and two who take all the memory that they can."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.cuda import GIB, CudaWorld
from support.node import WITHIN, RunningNode, open_directory, until
from support.walls import WalledHost, walled_host

from . import people, scene

#: Two who take all: one never has a lease, the other one has and has none in turns.
WITHOUT, WITH = 54003, 54004
GPUS, EACH = ("GPU-first", "GPU-second"), 24 * GIB
#: The most that a lease may have of a GPU.
ALLOWED = people.LEASE + GIB // 2
CONFIG = """
c.NodeManagerApp.measure_interval = 0.2
c.Policy.max_tasks_per_gpu = 100
c.Policy.over_limit_tolerance = "512MiB"
"""


@contextmanager
def gpus(stubs: Path) -> Iterator[tuple[WalledHost, CudaWorld]]:
    """A host on which walls can stand, with GPUs whose files CUDA opens."""
    with open_directory() as place:
        world = CudaWorld(stubs, place / "gpus.state")
        for gpu in GPUS:
            world.add_gpu(gpu=gpu, memory=EACH, reserved=0)
        with walled_host(GPUS, world.environ()) as host:
            for minor, gpu in enumerate(GPUS):
                world.set_file(gpu, host.root / f"dev/nvidia{minor}")
            yield host, world


def play(
    host: WalledHost, world: CudaWorld, crowd: int, each: int, patience: float, *, walls: bool
) -> dict[str, Any]:
    """So many people make so many requests each, and each request waits for ``patience`` seconds.

    What became of them and of the two who take all, with walls or without; ``most`` is what one had
    of a GPU.
    """
    host.ask(do="on" if walls else "off")
    config = CONFIG + (f"c.NodeManagerApp.walls = {str(host.socket)!r}" if walls else "")
    honest = range(54010, 54010 + crowd)
    groups = {uid: host.top / host.group(uid) for uid in (WITHOUT, WITH, *honest)}
    most = {WITHOUT: 0, WITH: 0}
    for uid in most:  # as systemd does where a person may make groups
        for file in (groups[uid], groups[uid] / "cgroup.procs"):
            os.chown(file, uid, uid)

    def held() -> int:
        """Bytes that the two have of all GPUs now."""
        now = {uid: Counter[str]() for uid in most}
        for uid, gpus in now.items():
            for file in groups[uid].rglob("cgroup.procs"):
                for pid in file.read_text().split():
                    gpus.update(world.held_by(int(pid)))
            most[uid] = max(most[uid], *gpus.values(), 0)
        return sum(gpus.total() for gpus in now.values())

    def start(who: str, uid: int, seconds: float, **environ: str) -> Any:
        return scene.start(node, who, uid, seconds, GROUP=str(groups[uid]), **environ)

    with (
        open_directory() as place,
        RunningNode(
            place, simulate="", config=config, environ=world.environ(), shared=True
        ) as node,
    ):
        gpus = str(len(GPUS))
        hostile = [start("takes all", WITHOUT, 0, COUNT=gpus)]
        hostile.append(start("takes all", WITH, 3, COUNT=gpus, LEASES="yes"))
        enough = ALLOWED * 3 // 4 if walls else EACH * len(GPUS) - people.LEASE
        until(lambda: held() > enough, "they have what they can get")
        working = [start("scripts", uid, patience, COUNT=str(each)) for uid in honest]
        while any(one.poll() is None for one in working):
            held()
            time.sleep(0.1)  # between two looks: to look takes processor time from those
        ends = Counter[str]()
        for one in working:
            ends.update(scene.result(one, WITHIN))
        taken = [Counter[str](), Counter[str]()]
        for count, one in zip(taken, hostile, strict=True):
            lines = one.communicate(timeout=WITHIN)[0].splitlines()
            assert len(lines) == 4, "all its processes lived, and tell"
            for line in lines:
                count.update(json.loads(line))
    return {
        "requests": crowd * each,
        "patience": patience,
        "ends": dict(ends),
        "without a lease": {**taken[0], "most": most[WITHOUT]},
        "with a lease": {**taken[1], "most": most[WITH]},
    }
