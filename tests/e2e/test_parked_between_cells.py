"""What else than a cell may touch a parked kernel's GPU memory: it waits, or is told, never hangs.

The driver blocks every CUDA call of a checkpointed process, and no interrupt ends that.
"""

from __future__ import annotations

import pytest
from support.driverstage import READ, Stage, cuda_stubs, cuda_world, fill, stage
from support.kernel import Kernel
from support.node import until

__all__ = ["cuda_stubs", "cuda_world", "stage"]

pytestmark = pytest.mark.timeout(120)
WHOLE = "read: b'alice was here'"


def parked(stage: Stage, kernel: Kernel) -> None:
    until(lambda: stage.used("alice"), "her memory is measured")
    kernel.ok("%gpushare park")
    assert stage.until_state("alice", "parked")["rung"] == "driver"


def test_a_task_in_the_kernels_loop_keeps_the_gpu(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        alice.ok(
            "import asyncio\nasync def beat():\n    while True:\n        read()\n"
            "        await asyncio.sleep(0.05)\n"
            "task = asyncio.get_running_loop().create_task(beat())"
        )
        until(lambda: stage.used("alice"), "her memory is measured")
        refused = alice.run("%gpushare park")
        assert "task `beat` has not ended" in refused.error()["evalue"]
        assert alice.ok(READ).stream().strip() == WHOLE
        alice.ok("task.cancel()")
        parked(stage, alice)
        assert alice.ok(READ).stream().strip() == WHOLE
