"""A keeper that is killed leaves its program as it was, and a successor goes on with it.

The keepers, the program, the checkpoint helper and the node manager are processes; the GPU is the
doubles of the driver and of NVML.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cuda import GIB, PROGRAM, Told
from support.driverstage import Stage, Wish, cuda_stubs, cuda_world, stage
from support.keeps import Kept
from support.node import until

from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.keeper.keeper import Rest
from jupyter_gpushare.protocol.messages import Method

__all__ = ["cuda_stubs", "cuda_world", "stage"]
KEEPS = [sys.executable, "-P", str(Path(__file__).parents[1] / "support" / "keeps.py")]
PATIENT = Wish(config="c.Policy.heartbeat_timeout = 600.0\n")


@pytest.mark.parametrize("stage", [PATIENT], indirect=True, ids=["patient"])
@pytest.mark.parametrize("asleep", [False, True])
def test_a_successor_finds_the_program_awake_or_asleep(stage: Stage, asleep: bool) -> None:
    environ = {
        **stage.world.environ(),
        "JUPYTER_GPUSHARE_SOCKET": str(stage.node.socket),
        "JUPYTER_GPUSHARE_TOKEN": "alice",
        "XDG_RUNTIME_DIR": str(stage.runtime),
    }
    first = subprocess.Popen(
        [*KEEPS, "it", *PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with Told(first) as program, stage.node.client("bob") as bob:
        program.call("start")
        address = program.call("allocate", GIB)
        program.call("write", address, "alice was here")
        known = program.call("checksum", address, 14)
        stage.until_measured("alice", GIB)
        lease = stage.lease("alice")["id"]
        if asleep:
            bobs = bob.request(memory=3 * GIB)["lease"]
            stage.until_state("alice", "parked")
        with pytest.raises(GpuShareError, match="keeps it already"):
            Kept(environ, "it", PROGRAM)
        first.kill()
        first.wait(60.0)
        second = Kept(environ, "it", PROGRAM)
        try:
            second.take_over()
            assert second.keeper.rest is (Rest.ASLEEP if asleep else Rest.AWAKE)
            if not asleep:  # it gives, as the first one would have done
                second.keeper.set_busy(False)
                bobs = bob.request(memory=3 * GIB)["lease"]
                until(lambda: second.keeper.rest is Rest.ASLEEP, "it sleeps")
            bob.call(Method.RELEASE, lease=bobs)
            second.keeper.wake(timeout=60.0)
            assert program.call("checksum", address, 14) == known
            assert stage.lease("alice")["id"] == lease
        finally:
            second.tree.stop()
            second.holding.close()
            second.notes.close()
