"""A kernel that has nothing of ours is parked while it is idle, and has its memory when it works.

The kernels are real, in an environment without our client, and so are provisioner, keeper,
checkpoint helper and node manager; the GPU is the doubles of the driver and of NVML.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from support.driverstage import (
    FILL,
    READ,
    Stage,
    Wish,
    cuda_stubs,
    cuda_world,
    lasting_stage,
    shared_stage,
)
from support.kernel import Kernel
from support.node import NodeClient, until
from support.nvml import compile_library
from support.wheels import Environment, make_environment

from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.processes import is_stopped

__all__ = ["cuda_stubs", "cuda_world", "lasting_stage", "shared_stage"]

#: The tests' other people say nothing while they have a GPU.
PATIENT = Wish(config="c.Policy.heartbeat_timeout = 600.0\n")
pytestmark = pytest.mark.parametrize("lasting_stage", [PATIENT], indirect=True, ids=["patient"])
GIB = 2**30
SEES = "import os; print('sees:', os.environ['CUDA_VISIBLE_DEVICES'])"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A Python without our client."""
    environment = make_environment(tmp_path_factory.mktemp("bare") / "env")
    environment.link("ipykernel", "cuda-bindings")
    assert environment.ask("import sys; print([*map(str, sys.meta_path)])").count("gpushare") == 0
    return environment


class Kept(Kernel):
    """Alice's kernel, by our provisioner. ``waits``: it may wait before it starts."""

    def __init__(
        self,
        home: Path,
        stage: Stage,
        argv: list[str],
        *,
        waits: bool = False,
        transport: str = "ipc",
        **config: str,
    ) -> None:
        environ = stage.environ("alice")
        super().__init__(home, stage.node.socket, **environ)
        (place := home / "kernels" / "kept").mkdir(parents=True)
        provisioner = {
            "provisioner_name": "gpushare",
            "config": {"gpu_memory": "3GiB", **config},
        }
        spec = {
            "argv": [*argv, "{connection_file}"],
            "display_name": "kept",
            "language": "any",
            "metadata": {"kernel_provisioner": provisioner},
        }
        (place / "kernel.json").write_text(json.dumps(spec))
        self.id = str(uuid.uuid4())
        self.manager = KernelManager(
            kernel_name="kept",
            transport=transport,
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(home / "kernels")]),
            connection_file=str(home / f"kernel-{self.id}.json"),
        )
        self.is_editors, self._waits = True, waits

    @property
    def root(self) -> int:
        """The kernel's own process, below its keeper's helper."""
        family = psutil.Process(self.pid).children(recursive=True)
        return next(one.pid for one in family if "ipykernel_launcher" in one.cmdline())

    def keeper_dies(self) -> None:
        """As by the system where memory is short."""
        before = self.pid
        os.kill(before, signal.SIGKILL)
        until(lambda: self.manager.is_alive() and self.pid != before, "Jupyter sees it")

    def settle(self) -> None:
        if not self._waits:
            super().settle()


@pytest.fixture
def python(bare: Environment) -> list[str]:
    return [str(bare.python), "-m", "ipykernel_launcher", "-f"]


@contextmanager
def kept(stage: Stage, argv: list[str], **how: Any) -> Iterator[Kept]:
    home = stage.home / "alice"
    home.mkdir()
    with Kept(home, stage, argv, **how) as kernel:
        yield kernel


@contextmanager
def bob_has_it(stage: Stage) -> Iterator[NodeClient]:
    """The GPU is bob's, until he hangs up."""
    with stage.node.client("bob") as bob:
        bob.request(memory=3 * GIB, request_id="bobs")
        try:
            yield bob
        finally:
            with contextlib.suppress(RemoteError):  # the test has
                release(bob)


def release(bob: NodeClient) -> None:
    bob.call(Method.RELEASE, request_id="bobs")


def waits(stage: Stage, kernel: Kept) -> None:
    """Wait until it is in the queue, as the toolbar shows it."""

    def is_there() -> bool:
        status = stage.root.call(Method.STATUS)
        rows = {row["id"]: row["kernel_id"] for row in status["leases"]}
        return kernel.id in [rows.get(row["lease"]) for row in status["queue"]]

    until(is_there, "it waits")


def prints(kernel: Kept, code: str) -> str:
    return kernel.ok(code).stream()


def test_it_is_parked_while_it_is_idle_and_has_its_memory_when_it_works(
    shared_stage: Stage, python: list[str]
) -> None:
    stage = shared_stage
    with kept(stage, python) as kernel:
        kernel.ok(FILL)
        stage.until_measured("alice", GIB)
        row = stage.lease("alice")
        assert (row["kind"], row["kernel_id"]) == ("kernel", kernel.id)
        with bob_has_it(stage):
            stage.until_state("alice", "parked")
            assert prints(kernel, "print(6 * 7)") == "42\n"
            assert stage.lease("alice")["state"] == "parked", "a cell without CUDA takes nothing"
            shown = kernel.start(f"{READ}\nimport time; time.sleep(60)")
            waits(stage, kernel)
            kernel.interrupt()  # the driver does not let it out before its call returns
            kernel.pump(2.0)
            assert not shown.done
            waits(stage, kernel)
        kernel.finish(shown)
        assert shown.reply["status"] == "error"
        assert prints(kernel, READ) == "read: b'alice was here'\n"
        stage.until_state("alice", "idle")
        with bob_has_it(stage) as bob:
            had = stage.until_state("alice", "parked")["id"]
            kernel.manager.restart_kernel(now=True)
            waits(stage, kernel)
            assert had not in [row["id"] for row in stage.root.call(Method.STATUS)["leases"]]
            release(bob)
            Kernel.settle(kernel)
            assert prints(kernel, "print('block' in globals())") == "False\n"
    left = [file.name for file in (stage.runtime / "jupyter-gpushare").iterdir()]
    assert not [name for name in left if kernel.id in name]


def test_an_interrupt_ends_a_cell_that_waits_without_standing_in_the_driver(
    shared_stage: Stage, python: list[str]
) -> None:
    """It has not used CUDA, so that nothing but us keeps it from doing so."""
    stage = shared_stage
    with bob_has_it(stage) as bob, kept(stage, python, lease="first-cell") as kernel:
        shown = kernel.start(f"import time; time.sleep(1)\n{FILL}")
        waits(stage, kernel)
        assert not shown.done
        kernel.interrupt()
        kernel.finish(shown)
        assert shown.error()["ename"] == "KeyboardInterrupt"
        until(lambda: not stage.root.call(Method.STATUS)["queue"], "nobody waits")
        shown = kernel.start(FILL + READ)
        waits(stage, kernel)
        until(lambda: is_stopped(kernel.root), "it cannot use the GPU")
        release(bob)
        assert kernel.finish(shown).stream() == "read: b'alice was here'\n"
        stage.until_state("alice", "idle")


def test_one_that_waits_at_its_start_starts_without_a_gpu_when_it_is_interrupted(
    shared_stage: Stage, python: list[str]
) -> None:
    stage = shared_stage
    with bob_has_it(stage) as bob, kept(stage, python, waits=True) as kernel:
        waits(stage, kernel)
        kernel.interrupt()
        Kernel.settle(kernel)
        assert prints(kernel, SEES) == "sees: \n"
        kernel.manager.restart_kernel(now=True)
        waits(stage, kernel)
        release(bob)
        Kernel.settle(kernel)
        seen = prints(kernel, SEES)
        assert stage.lease("alice")["gpus"][0]["uuid"] in seen


@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_a_keeper_that_is_killed_has_a_successor_and_the_kernel_goes_on(
    shared_stage: Stage, python: list[str], asleep: bool
) -> None:
    stage = shared_stage
    with kept(stage, python) as kernel, contextlib.ExitStack() as has_it:
        kernel.ok(FILL)
        stage.until_measured("alice", GIB)
        if asleep:
            has_it.enter_context(bob_has_it(stage))
            stage.until_state("alice", "parked")
            shown = kernel.start(READ)
            waits(stage, kernel)
        kernel.keeper_dies()
        if not asleep:
            shown = kernel.start(READ)
        else:
            waits(stage, kernel)
            has_it.close()
        assert kernel.finish(shown).stream() == "read: b'alice was here'\n"
        until(lambda: stage.lease("alice")["kind"] == "kernel", "it is kept again")
        assert stage.until_state("alice", "idle")["kernel_id"] == kernel.id
        with bob_has_it(stage):
            stage.until_state("alice", "parked")


def test_a_kernel_that_dies_is_started_again_with_a_lease_of_its_own(
    shared_stage: Stage, python: list[str]
) -> None:
    stage = shared_stage
    with kept(stage, python) as kernel:
        before = stage.lease("alice")["id"]
        kernel.start("import os; os.kill(os.getpid(), 9)")
        until(lambda: not kernel.manager.is_alive(), "Jupyter sees it")
        kernel.manager.restart_kernel(now=True)
        kernel.settle()  # else the answer may come before its channel is heard
        kernel.ok("1")
        row = stage.until_state("alice", "idle")
        assert (row["id"] == before, row["kernel_id"]) == (False, kernel.id)


@pytest.fixture
def r() -> str:
    found = shutil.which("R")
    look = "quit(status = !requireNamespace('IRkernel', quietly = TRUE))"
    if found is None or subprocess.call([found, "--slave", "-e", look]):
        pytest.skip("no R with IRkernel (apt install r-cran-irkernel)")
    return found


def test_a_kernel_of_r_too(shared_stage: Stage, r: str, tmp_path: Path) -> None:
    stage = shared_stage
    compile_library(Path(__file__).with_name("cudauser.c"), tmp_path / "cudauser.so")
    argv = [r, "--slave", "-e", "IRkernel::main()", "--args"]
    with kept(stage, argv, transport="tcp", lease="first-cell") as kernel:
        kernel.ok(
            f"dyn.load('{tmp_path}/cudauser.so')\n"
            "stopifnot(.C('fill', 'alice was here', failed = 0L)$failed == 0)\n"
            "read <- function() .C('checksum', sum = 0L, failed = 0L)$sum"
        )
        stage.until_measured("alice", GIB)
        known = sum(b"alice was here")
        with bob_has_it(stage):
            stage.until_state("alice", "parked")
            assert prints(kernel, "cat(6 * 7)") == "42"
            shown = kernel.start("cat('asleep\\n')\nSys.sleep(120)")
            waits(stage, kernel)
            # Its code runs, and hears it. R ends where it is interrupted before its code runs.
            until(lambda: kernel.pump() or "asleep" in shown.stream(), "its code runs")
            kernel.interrupt()
            kernel.finish(shown)
            until(lambda: not stage.root.call(Method.STATUS)["queue"], "nobody waits")
            shown = kernel.start("cat(read())")
            waits(stage, kernel)
        assert kernel.finish(shown).stream() == str(known)
