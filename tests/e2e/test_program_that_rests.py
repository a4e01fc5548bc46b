"""`run --park`: a program that rests gives its GPU's memory to who waits, and has it when it works.

The program, its keeper, the checkpoint helper and the node manager are real; the GPU is the doubles
of the driver and of NVML. That a program rests is measured over a minute, so this takes two.
"""

from __future__ import annotations

import subprocess

import pytest
from support.cuda import GIB, PROGRAM, Told
from support.driverstage import Stage, Wish, cuda_stubs, cuda_world, stage
from support.livenode import CLI

from jupyter_gpushare.protocol.messages import Method

__all__ = ["cuda_stubs", "cuda_world", "stage"]


@pytest.mark.story("jupyter_gpushare/keeper/", "tests/e2e/test_program_that_rests.py")
@pytest.mark.parametrize(
    "stage", [Wish(config="c.Policy.heartbeat_timeout = 600.0\n")], indirect=True, ids=["patient"]
)
@pytest.mark.timeout(600)
def test_a_program_that_rests_is_parked_and_wakes_when_it_is_spoken_to(stage: Stage) -> None:
    environ = {
        **stage.world.environ(),
        "JUPYTER_GPUSHARE_SOCKET": str(stage.node.socket),
        "JUPYTER_GPUSHARE_TOKEN": "alice",
        "XDG_RUNTIME_DIR": str(stage.runtime),
    }
    keeps = subprocess.Popen(
        [*CLI, "run", "--park", "--memory", "3GiB", "--", *PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    )
    with Told(keeps) as program, stage.node.client("bob") as bob:
        program.call("start")
        address = program.call("allocate", GIB)
        program.call("write", address, "alice was here")
        known = program.call("checksum", address, 14)
        stage.until_measured("alice", GIB)
        asked = bob.ask(memory=3 * GIB)
        lease = bob.wait(asked, within=300.0)["lease"]
        stage.until_state("alice", "parked")
        program.begin("checksum", address, 14)
        assert not program.has_answered(3.0), "its GPU is bob's"
        bob.call(Method.RELEASE, lease=lease)
        assert program.finish(120.0) == known
