"""Code of a parked kernel, however it begins, has its memory back first or is not run.

A kernel whose memory the driver has would hang in its first CUDA call, for good. So whatever
reaches it brings the memory back first, or is not run. Kernels are checkpointed for others, and
come back whole: real ones and the real cuda-bindings; the driver and NVML are our own doubles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cuda import GIB, Call, Cuda
from support.driverstage import FILL, READ, Stage, cuda_stubs, fill, lasting_stage, shared_stage
from support.kernel import WITHIN, Kernel, Shown, runs_long, shows
from support.node import until

from jupyter_gpushare.protocol.messages import Method

__all__ = ["cuda_stubs", "lasting_stage", "shared_stage"]


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    return shared_stage


SAID = "read: b'alice was here'"


def parked(stage: Stage, kernel: Kernel) -> None:
    """All that it has is with the driver afterwards."""
    stage.until_measured("alice", GIB)
    kernel.ok("%gpushare park")
    assert stage.until_state("alice", "parked")["rung"] == "driver"


def park(stage: Stage, kernel: Kernel) -> None:
    fill(kernel)
    parked(stage, kernel)


def error(shown: Shown) -> str:
    return f"{shown.reply.get('ename')}: {shown.reply.get('evalue')}"


def comm(kernel: Kernel, kind: str, **content: Any) -> None:
    """A message of a widget's."""
    message = kernel.client.session.msg(kind, {"comm_id": "w", "data": {}, **content})
    kernel.client.shell_channel.send(message)


def test_a_cell_that_only_begins_with_our_magic_is_a_cell(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        refused = alice.run(f"%gpushare park\n{READ}")
        assert "a cell of its own" in refused.stream("stderr")
        assert refused.stream() == "", "and the rest of it is not run"
        parked(stage, alice)
        alice.ok("# twice\n%gpushare status\n\n%gpushare quota")
        stage.until_state("alice", "parked")
        shown = alice.ok(f"%gpushare status\n{READ}")
        assert shown.stream().strip() == SAID
        parked(stage, alice)
        shown = alice.ok(f"%%gpushare\n{READ}")
        assert shown.stream().splitlines()[-1] == SAID


def test_what_runs_silently_is_refused_and_not_left_hanging(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        park(stage, alice)
        assert "InputRejected" in error(alice.run(READ, silent=True))
        assert "parked" in alice.ok("%gpushare status").plain()
        assert "InputRejected" in error(alice.run(READ, silent=True)), "our own cell opens no door"
        assert alice.ok(READ).stream().strip() == SAID
        reply = alice.run(READ, silent=True).reply
        assert reply["status"] == "ok"


#: Until this process was asked for its GPU, and does nothing about it (any more).
UNTIL_ASKED = """
import threading, time
from jupyter_gpushare.client.memory.parking import Parking
asked, asked_back = threading.Event(), Parking.asked_back
def hears(self, recall):
    asked_back(self, recall)
    asked.set()
Parking.asked_back = hears
def until_asked():
    assert asked.wait(60)
    while any(thread.name == "gpushare-recalls" for thread in threading.enumerate()):
        time.sleep(0.01)
"""


def test_a_widgets_code_is_not_parked_while_it_runs(stage: Stage, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        alice.ok(
            f"{UNTIL_ASKED}\nseen = []\ndef work(_message):\n"
            f"    until_asked()\n    seen.append(read())\n    open({str(ran)!r}, 'w').close()\n"
            "def opened(comm, _message):\n    comm.on_msg(work)\n"
            "get_ipython().kernel.comm_manager.register_target('w', opened)"
        )
        comm(alice, "comm_open", target_name="w")
        comm(alice, "comm_msg")
        states: list[int] = []
        wants = bob.start("%gpushare request")

        def looked() -> bool:
            state = stage.world.state_of(alice.pid)
            if ran.exists():
                return True  # afterwards she may be parked
            states.append(state)
            return False

        until(looked, "the widget's code has run")
        assert set(states) == {0}, "it ran undisturbed"
        assert alice.ok("print(seen)").stream().strip() == "[b'alice was here']"
        bob.finish(wants)


def test_a_cell_in_a_subshell_waits_as_the_first_one_does(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        subshell = alice.new_subshell()
        park(stage, alice)
        bob.ok("%gpushare request")
        busy = runs_long(bob)
        stage.until_state("bob", "active")
        first = alice.start(READ)
        until(lambda: stage.root.call(Method.STATUS)["queue"], "the first one waits")
        has = "import os; print('has', os.environ['CUDA_VISIBLE_DEVICES'])"
        second = alice.start(f"{has}; {READ}", subshell=subshell)
        until(lambda: (alice.pump(), second.of("execute_input"))[1], "the second one has come")
        third = alice.start("%gpushare status", subshell=subshell)
        assert not second.stream(), "it waits, too"
        bob.interrupt()
        bob.finish(busy)
        assert alice.finish(first).stream().strip() == SAID
        had, said = alice.finish(second).stream().splitlines()
        assert had.startswith("has GPU-"), "it did not begin without"
        assert said == SAID
        alice.finish(third)


def test_an_interrupt_while_memory_comes_back_stops_the_cell_and_nothing_else(
    stage: Stage,
) -> None:
    with stage.kernel("alice") as alice:
        park(stage, alice)
        stage.world.hang(Call.RESTORE)
        cell = alice.start("ran = True")
        shows(alice, cell, "Restoring")
        alice.interrupt()
        stage.world.heal()
        alice.finish(cell)
        assert "was not run" in cell.error()["evalue"]
        assert "in host memory" not in cell.error()["evalue"], "it is on the GPU again"
        until(lambda: stage.lease("alice")["rung"] is None, "the node manager knows")
        assert alice.ok(READ).stream().strip() == SAID
        assert alice.ok("print('ran' in globals())").stream().strip() == "False"


def test_a_cell_that_waits_for_a_parking_says_so(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        stage.until_measured("alice", GIB)
        stage.world.hang(Call.CHECKPOINT)
        wants = bob.start("%gpushare request")
        stage.until_state("alice", "parking")
        cell = alice.start(READ)
        shows(alice, cell, "Parking GPU memory")
        assert stage.lease("alice")["state"] == "parking", "while it goes on"
        stage.world.heal()
        bob.finish(wants)
        bob.ok("%gpushare release")
        assert alice.finish(cell).stream().strip() == SAID
        said = cell.stream("stderr")
        assert said.count("Parking GPU memory") == 1
        assert said.index("Parking GPU memory") < said.index("Restoring")


def gone(stage: Stage, who: str) -> bool:
    status = stage.root.call(Method.STATUS)
    return all(one["environment"] != who for one in status["leases"])


@pytest.mark.parametrize("now", [False, True], ids=["asked", "killed"])
def test_a_kernel_that_ends_while_it_parks_leaves_nothing(stage: Stage, now: bool) -> None:
    with stage.kernel("alice") as alice, stage.node.client("bob") as bob:
        fill(alice)
        stage.until_measured("alice", GIB)
        stage.world.slow(Call.CHECKPOINT, 3000)
        wants = bob.ask()
        stage.until_state("alice", "parking")
        alice.manager.shutdown_kernel(now=now)
        until(lambda: gone(stage, "alice"), "her lease is gone")
        assert stage.root.call(Method.STATUS)["node"]["parked_memory"] == 0
        bob.call(Method.RELEASE, lease=bob.wait(wants)["lease"])
        until(
            lambda: not stage.root.call(Method.STATUS)["gpus"][0]["used"], "nothing of it is left"
        )


def test_a_kernel_that_is_restarted_while_it_waits_to_resume_starts_anew(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        park(stage, alice)
        bob.ok("%gpushare request")
        busy = runs_long(bob)
        stage.until_state("bob", "active")
        alice.start(READ)
        until(lambda: stage.root.call(Method.STATUS)["queue"], "she waits")
        alice.manager.restart_kernel(now=False)
        until(lambda: gone(stage, "alice"), "her lease is gone")
        assert not stage.root.call(Method.STATUS)["queue"], "nor does she wait"
        alice.client.wait_for_ready(timeout=60)
        assert alice.ok("print('read' in globals())").stream().strip() == "False"
        bob.interrupt()
        bob.finish(busy)


def test_a_child_that_is_forked_by_a_cell_shares_the_lease_and_gives_nothing_back(
    stage: Stage,
) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        alice.ok(
            "import multiprocessing, os, threading\n"
            "from jupyter_gpushare.client.acquire import broker\n"
            "def child(queue):\n"
            "    known = broker().grant is not None, broker().state.value\n"
            "    queue.put((*known, broker().release()))\n"
            "fork = multiprocessing.get_context('fork')\n"
            "queue = fork.Queue()\n"
            "held, let_go = threading.Event(), threading.Event()\n"
            "def keep():\n"
            "    with broker().own.lock, broker().line._lock, broker().line.session._lock:\n"
            "        held.set(); let_go.wait()\n"
            "keeper = threading.Thread(target=keep); keeper.start(); held.wait()\n"
            "worker = fork.Process(target=child, args=(queue,)); worker.start()\n"
            "answer = queue.get(timeout=60); worker.join(60); let_go.set(); keeper.join()"
        )
        assert alice.ok("print(answer, worker.exitcode)").stream().strip() == (
            "(True, 'joined', 'joined') 0"
        )
        assert stage.lease("alice")["state"] in ("active", "idle")
        assert alice.ok(READ).stream().strip() == SAID


# -- between two cells ---------------------------------------------------------------------------

SHOWN = "class Shown:\n    def __repr__(self):\n        return f'has {read()}'\nshown = Shown()"


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


def test_what_cannot_be_restored_bars_cells_and_callbacks_and_is_tried_again(stage: Stage) -> None:
    with stage.kernel("alice") as alice:
        fill(alice)
        made = alice.ok(
            "from comm import create_comm\nheard = []\nline = create_comm(target_name='x')\n"
            "line.on_msg(lambda message: heard.append(message['content']['data']['method']))\n"
            "print(line.comm_id)"
        )
        line = made.stream().strip()
        parked(stage, alice)
        comm(alice, "comm_msg", comm_id=line, data={"method": "request_state"})
        assert "parked" in alice.ok("%gpushare status").plain()
        assert stage.lease("alice")["state"] == "parked", "what a page asks of widgets takes no GPU"
        stage.world.fault(Call.RESTORE, Cuda.UNKNOWN)
        comm(alice, "comm_msg", comm_id=line, data={"method": "in vain"})
        barred = alice.run("ran = True")
        assert error(barred).startswith("InputRejected")
        assert "was not run" in error(barred)
        assert "Your variables are kept" in error(barred)
        assert stage.lease("alice")["state"] == "resuming", "its GPU is held for it"
        said = alice.run("%gpushare release")
        assert "in host memory" in error(said), "nothing is dropped by mistake"
        stage.world.heal()
        assert "again" in alice.ok("%gpushare resume").plain()
        parked(stage, alice)
        comm(alice, "comm_msg", comm_id=line, data={"method": "update"})
        until(lambda: stage.lease("alice")["rung"] is None, "it has its memory again")
        shown = alice.ok(f"{READ}; print(heard, 'ran' in globals())").stream()
        assert shown == f"{SAID}\n['request_state', 'update'] False\n"


# -- parked for others -----------------------------------------------------------------------------


def bob_wants(stage: Stage, kernel: Kernel) -> Shown:
    """Only what is measured of alice's is known to be there when she is asked for it."""
    stage.until_measured("alice", GIB)
    return kernel.start("%gpushare request")


def test_a_kernel_with_memory_on_the_gpu_gives_all_of_it_back_and_goes_on(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        wants = bob_wants(stage, bob)
        parked = stage.until_state("alice", "parked")
        bob.finish(wants)
        assert stage.world.state_of(alice.pid) == 2, "checkpointed"
        assert parked["rung"] == "driver"
        assert parked["parked_memory"] >= GIB
        assert stage.root.call(Method.STATUS)["node"]["parked_memory"] == parked["parked_memory"]
        stage.until_state("bob", "active", "idle")
        bob.ok(FILL.replace("1 * 2**30", "2 * 2**30"))  # it is really there
        cell = alice.start(READ)
        stage.until_state("bob", "parked")  # idle, and alice waits: her turn
        shows(alice, cell, "Restored")
        alice.finish(cell)
        assert cell.stream().strip() == "read: b'alice was here'"
        until(lambda: stage.lease("alice")["rung"] is None, "the node manager knows")
        stage.until_measured("alice", GIB)
        other = bob.start(READ)
        assert bob.finish(other).stream().strip() == "read: b'alice was here'"


def test_leaving_the_queue_keeps_what_is_parked_and_bars_the_cell(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        bob.finish(bob_wants(stage, bob))
        parked = stage.until_state("alice", "parked")
        busy = runs_long(bob)
        stage.until_state("bob", "active")
        asks = alice.start("%gpushare request")
        shows(alice, asks, "Waiting for GPUs: number 1 in line")
        alice.interrupt()
        assert "stays parked" in "".join(alice.finish(asks).error()["traceback"])
        other = alice.run("%gpushare request --memory 1GiB")
        assert "in host memory" in other.error()["evalue"]
        cell = alice.start("ran = True")
        until(lambda: stage.root.call(Method.STATUS)["queue"], "alice waits")
        alice.interrupt()
        assert "You left the queue" in alice.finish(cell).error()["evalue"]
        assert stage.until_state("alice", "parked")["id"] == parked["id"]
        assert "parked" in alice.ok("%gpushare status").plain(), "our own words always work"
        bob.interrupt()
        bob.finish(busy)
        again = alice.start("%gpushare request")
        shows(alice, again, "Restored")
        assert "now holds" in alice.finish(again).plain()
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"
        assert alice.ok("print('ran' in globals())").stream().strip() == "False"


def test_who_cannot_give_keeps_its_gpu_and_says_why(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        stage.world.fault(Call.CHECKPOINT, Cuda.UNKNOWN)
        wants = bob_wants(stage, bob)

        def keeps() -> bool:
            # It is asked again and again, and tries each time.
            lease = stage.lease("alice")
            return bool(lease["kept"]) and lease["state"] == "idle"

        until(keeps, "a reason")
        assert stage.lease("bob")["state"] == "queued"
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"
        bob.interrupt()
        bob.finish(wants)
        stage.world.heal()
        stage.world.fault(Call.LOCK, Cuda.NOT_PERMITTED)
        assert alice.run("%gpushare park").error()["ename"] == "CannotGive"
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"


def test_stopping_a_cell_while_it_is_parked_stops_only_the_cell(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.kernel("bob") as bob:
        fill(alice)
        stage.world.hang(Call.CHECKPOINT)
        wants = bob_wants(stage, bob)
        stage.until_state("alice", "parking")
        cell = alice.start("ran = True")
        shows(alice, cell, "Parking GPU memory")  # it waits, and hears interrupts
        alice.interrupt()
        stage.world.heal()
        alice.finish(cell)
        assert "was not run" in cell.error()["evalue"]
        bob.finish(wants)
        assert alice.ok(READ).stream().strip() == "read: b'alice was here'"


def test_after_a_release_cuda_keeps_some_memory_and_others_get_the_rest(stage: Stage) -> None:
    with stage.kernel("alice") as alice, stage.node.client("bob") as bob:
        fill(alice)
        stage.until_measured("alice", GIB)
        alice.ok("must(driver.cuMemFree(block))")
        alice.run("%gpushare release")
        granted = bob.request(memory=2 * GIB)
        left = stage.lease("alice")
        assert left["state"] == "draining"
        assert 0 < left["gpus"][0]["memory"] < GIB
        assert "reserve" not in left
        bob.call(Method.RELEASE, lease=granted["lease"])

        def gpu() -> dict[str, int]:
            return stage.root.call(Method.STATUS)["gpus"][0]

        until(lambda: not gpu()["tasks"], "nobody's task is there")
        assert 0 < gpu()["reserved"] < GIB, "sweeps and elastic jobs may have the rest"
