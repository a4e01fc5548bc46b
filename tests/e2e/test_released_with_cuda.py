"""After `%gpushare release` CUDA keeps some memory, and the rest of the GPU is for others."""

from __future__ import annotations

from support.cuda import GIB
from support.driverstage import FILL, Stage, cuda_stubs, cuda_world, stage
from support.node import until

from jupyter_gpushare.protocol.messages import Method

__all__ = ["cuda_stubs", "cuda_world", "stage"]


def test_others_get_the_rest_while_the_kernel_goes_on(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.node.client("bob") as bob:
        for cell in ("%gpushare request", FILL):
            assert alice.run(cell).reply["status"] == "ok"
        stage.until_measured("alice", 4 * GIB)
        assert alice.run("must(driver.cuMemFree(block))").reply["status"] == "ok"
        alice.run("%gpushare release")
        granted = bob.request(memory=8 * GIB)
        left = stage.lease("alice")
        assert left["state"] == "draining"
        assert 0 < left["gpus"][0]["memory"] < GIB
        assert "reserve" not in left
        bob.call(Method.RELEASE, lease=granted["lease"])
        until(lambda: not gpu(stage)["tasks"], "nobody's task is there")
        assert 0 < gpu(stage)["reserved"] < GIB, "sweeps and elastic jobs may have the rest"


def gpu(stage: Stage) -> dict[str, int]:
    found: dict[str, int] = stage.root.call(Method.STATUS)["gpus"][0]
    return found
