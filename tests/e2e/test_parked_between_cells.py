"""What else than a cell touches a parked kernel's GPU memory waits or is told, and never hangs.

The driver blocks every CUDA call of a checkpointed process, and no interrupt ends that.
"""

from __future__ import annotations

from support.cuda import GIB, Call, Cuda
from support.driverstage import READ, Stage, cuda_stubs, cuda_world, fill, stage
from support.kernel import WITHIN, Kernel
from support.node import until

__all__ = ["cuda_stubs", "cuda_world", "stage"]

WHOLE = "read: b'alice was here'"
SHOWN = "class Shown:\n    def __repr__(self):\n        return f'has {read()}'\nshown = Shown()"


def parked(stage: Stage, kernel: Kernel) -> None:
    stage.until_measured("alice", 4 * GIB)
    kernel.ok("%gpushare park")
    assert stage.until_state("alice", "parked")["rung"] == "driver"


def send(kernel: Kernel, line: str, **data: str) -> None:
    content = {"comm_id": line, "data": data}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", content))


def test_help_on_a_variable_says_where_its_memory_is(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        alice.ok(SHOWN)

        def help_on(name: str) -> str:
            reply = alice.client.inspect(name, reply=True, timeout=WITHIN)
            return str(reply["content"]["data"]["text/plain"])

        assert "alice was here" in help_on("shown")
        parked(stage, alice)
        assert "in host memory" in help_on("shown")
        assert "Return the number of items" in help_on("len"), "a function's value is nowhere"
        assert stage.lease("alice")["state"] == "parked"
        alice.ok(READ)
        assert "alice was here" in help_on("shown")


def test_what_a_page_asks_of_widgets_takes_no_gpu_and_a_callback_does(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        made = alice.ok(
            "from comm import create_comm\nheard = []\nline = create_comm(target_name='x')\n"
            "line.on_msg(lambda message: heard.append(message['content']['data']))\n"
            "print(line.comm_id)"
        )
        line = made.stream().strip()
        parked(stage, alice)
        send(alice, line, method="request_state")
        assert "parked" in alice.ok("%gpushare status").plain()
        assert stage.lease("alice")["state"] == "parked"
        send(alice, line, method="update")
        until(lambda: stage.lease("alice")["rung"] is None, "it has its memory again")
        heard = "[{'method': 'request_state'}, {'method': 'update'}]"
        assert alice.ok("print(heard)").stream().strip() == heard


def test_a_callback_that_cannot_have_its_memory_back_is_not_called(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        made = alice.ok(
            "from comm import create_comm\nheard = []\nline = create_comm(target_name='x')\n"
            "line.on_msg(lambda message: heard.append(read()))\nprint(line.comm_id)"
        )
        parked(stage, alice)
        stage.world.fault(Call.RESTORE, Cuda.UNKNOWN)
        send(alice, made.stream().strip(), method="update")
        assert "resuming" in alice.ok("%gpushare status").plain()
        stage.world.heal()
        assert alice.ok(f"{READ}; print(heard)").stream() == f"{WHOLE}\n[]\n"


def test_parking_by_hand_needs_a_cell_of_its_own(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        refused = alice.run(f"%gpushare park\n{READ}")
        assert "a cell of its own" in refused.stream("stderr")
        assert refused.stream() == "", "and the rest of it is not run"
        assert alice.ok(READ).stream().strip() == WHOLE
        assert stage.lease("alice")["rung"] is None


def test_a_task_in_the_kernels_loop_keeps_the_gpu(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        alice.ok(
            "import asyncio\nasync def beat():\n    while True:\n        read()\n"
            "        await asyncio.sleep(0.05)\n"
            "task = asyncio.get_running_loop().create_task(beat())"
        )
        stage.until_measured("alice", 4 * GIB)
        refused = alice.run("%gpushare park")
        assert "task `beat` has not ended" in refused.error()["evalue"]
        assert alice.ok(READ).stream().strip() == WHOLE
        alice.ok("task.cancel()")
        parked(stage, alice)
        assert alice.ok(READ).stream().strip() == WHOLE
