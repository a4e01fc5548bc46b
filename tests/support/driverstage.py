"""Two people, one GPU with memory on it: a node manager and kernels over the drivers' doubles."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.protocol.messages import Method

from .cuda import GIB, STATE_VARIABLE, CudaWorld, end_helper
from .cuda_fixtures import cuda_stubs, cuda_world
from .kernel import Kernel, shows
from .node import NodeClient, RunningNode, token_file, until

__all__ = ["cuda_stubs", "cuda_world", "shows"]

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.2
c.Policy.max_tasks_per_gpu = 1
c.Policy.idle_timeout = 0.5
c.Policy.notify_before = 0.0
c.Policy.parked_memory = 64 * 1024**3
"""
#: Nothing is parked that the host has no free memory for, and a busy one has little: no result of a
#: test is to hang on what else runs there.
GPU_MEMORY = 4 * GIB
#: What a person's cells do: a context, 1 GiB, and something in it to recognise.
FILL = """
import ctypes, zlib
from cuda.bindings import driver
def must(answer):
    assert not int(answer[0]), answer[0]
    return answer[1] if len(answer) == 2 else None
must(driver.cuInit(0))
must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(0))))
block = must(driver.cuMemAlloc(1 * 2**30))
text = b'alice was here'
must(driver.cuMemcpyHtoD(block, text, len(text)))
def read():
    data = bytearray(len(text))
    place = ctypes.addressof((ctypes.c_char * len(text)).from_buffer(data))
    must(driver.cuMemcpyDtoH(place, block, len(text)))
    return bytes(data)
"""
READ = "print('read:', read())"
#: And a long training, until it has ``enough`` steps; with the weights its losses are printed.
TRAIN = """
import json, os, time
import torch
torch.set_num_threads(1)

def train(enough, note=len, pause=0.01):
    torch.manual_seed(3)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    while not enough(len(losses)):
        loss = net(torch.randn(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        note(losses)
        time.sleep(pause)  # the GPU computes
    weights = sum(one.double().sum().item() for one in net.parameters())
    print(json.dumps([one.hex() for one in (*losses, weights)]))
"""


def computes(client: NodeClient) -> tuple[str, str]:
    """Somebody computes from now on, and takes turns; the lease, and the GPU's UUID."""
    granted = client.request(memory=1400 * 2**20)
    lease = str(granted["lease"])
    client.call(Method.ACTIVITY, lease=lease, state="busy")
    client.call(Method.MEMORY, lease=lease, figures=[], steps=0, can_take_turns=True)
    return lease, str(granted["gpus"][0]["uuid"])


class Stage:
    """One GPU, a node manager, and kernels on demand."""

    def __init__(self, world: CudaWorld, node: RunningNode, root: NodeClient, home: Path) -> None:
        self.world = world
        self.node = node
        self.root = root
        self.home = home
        self.runtime = Path()

    def environ(self, who: str) -> dict[str, str]:
        """What a kernel of theirs has in its environment beside the node manager's socket."""
        doubles = {
            name: value
            for name, value in self.world.environ({}).items()
            if name.startswith(("LD_", "NVML_"))
        }
        return {
            "JUPYTER_GPUSHARE_TOKEN": who,
            "XDG_RUNTIME_DIR": str(self.runtime),
            **doubles,
        }

    @contextmanager
    def kernel(self, who: str) -> Iterator[Kernel]:
        home = self.home / who
        home.mkdir()
        with Kernel(home, self.node.socket, **self.environ(who)) as kernel:
            yield kernel

    def lease(self, who: str) -> dict[str, Any]:
        leases = self.root.call(Method.STATUS)["leases"]
        return next(one for one in leases if one["environment"] == who)

    def used(self, who: str) -> int | None:
        """What was measured of who's lease, in bytes."""
        gpus = self.lease(who)["gpus"]
        return gpus[0]["measured"] if gpus else None

    def until_measured(self, who: str, least: int) -> None:
        """Wait until ``least`` bytes of a person's are known to be there."""
        until(lambda: (self.used(who) or 0) >= least, f"{who}'s memory is measured")

    def until_state(self, who: str, *states: str) -> dict[str, Any]:
        until(lambda: self.lease(who)["state"] in states, f"{who} is {' or '.join(states)}")
        return self.lease(who)


@dataclass(frozen=True)
class Wish:
    """What a test wants otherwise."""

    gpus: int = 1
    config: str = ""


@contextmanager
def staged(world: CudaWorld, folder: Path, wish: Wish) -> Iterator[Stage]:
    """A stage whose node manager keeps its things in ``folder``."""
    for _ in range(wish.gpus):
        world.add_gpu(memory=GPU_MEMORY)
    with (
        tempfile.TemporaryDirectory(prefix="gpushare-") as runtime,
        RunningNode(
            folder,
            simulate="",
            config=CONFIG + wish.config,
            arguments=[token_file(folder, "alice", "bob", "root")],
            environ=world.environ(),
        ) as node,
        node.client("root") as root,
    ):
        stage = Stage(world, node, root, folder)
        stage.runtime = Path(runtime)
        yield stage
        for place in Path(runtime, "jupyter-gpushare").glob("*.sock"):
            end_helper(place)


@pytest.fixture
def stage(cuda_world: CudaWorld, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with staged(cuda_world, tmp_path, getattr(request, "param", Wish())) as made:
        yield made


@pytest.fixture(scope="module")
def lasting_stage(
    cuda_stubs: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """For all tests of a module; they take it by `shared_stage`."""
    folder, wish = tmp_path_factory.mktemp("stage"), getattr(request, "param", Wish())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STATE_VARIABLE, str(folder / "gpus.state"))
        with staged(CudaWorld(cuda_stubs, folder / "gpus.state"), folder, wish) as made:
            yield made


@pytest.fixture
def shared_stage(lasting_stage: Stage, tmp_path: Path) -> Iterator[Stage]:
    """A stage that other tests of the module have, too, with homes of its own. All is free."""
    world, node = lasting_stage.world, lasting_stage.node
    with node.client("root") as root:
        stage = Stage(world, node, root, tmp_path)
        stage.runtime = lasting_stage.runtime
        # A person's lease of the test before would be taken for the one of this test.
        until(lambda: not root.call(Method.STATUS)["leases"], "the test before holds nothing")
        yield stage
    world.as_new()
    with node.client("root") as root:  # the test may have killed the node manager
        until(lambda: not root.call(Method.STATUS)["leases"], "nobody has anything")


def fill(kernel: Kernel) -> None:
    kernel.ok("%gpushare request")
    kernel.ok(FILL)
