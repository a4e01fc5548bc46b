"""torchrun's ranks, which have joined one lease, take turns with another task: by the real wire."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.node import GIB, NodeClient, Puppet, RunningNode, token_file, until

from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method, Notice

pytestmark = pytest.mark.timeout(300)
WITHIN = 120.0  # seconds; importing torch takes long on a busy machine

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.Policy.share_mode = 'time'\nc.Policy.quantum = 0.2\n"
    # Bob is a plain client: he gives no sign of life while torch is imported.
    "c.Policy.heartbeat_timeout = 300.0\n"
    'c.Policy.turn_bound = 60.0\nc.Quotas.default = {"gpus": 1, "memory": "20GiB"}\n'
)

RANK = """
import os, sys, time
environ = {name: os.environ.pop(name) for name in tuple(os.environ) if "GPUSHARE" in name}
import torch
import torch.distributed as dist
from types import SimpleNamespace
from torch.nn.parallel import DistributedDataParallel
from support.torch_cpu import CpuAllocator
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter
from jupyter_gpushare.client.asking.broker import Broker

torch.set_num_threads(1)
dist.init_process_group("gloo")
broker = Broker(environ)
broker.ensure("import torch")
meter = StepMeter(torch, CpuAllocator(counts=False))
meter.install()
adapter = SimpleNamespace(meter=meter, cuda_started=lambda torch: False)
broker._frameworks.add("torch", adapter, torch)
broker._getting.connect_gates()
net = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(net.parameters())
log = open(os.path.join(sys.argv[1], f"rank-{dist.get_rank()}"), "a", buffering=1)
while True:
    net(torch.ones(2, 8)).sum().backward()
    time.sleep(0.01)
    optimizer.step()
    log.write(f"{time.monotonic()}\\n")
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    arguments = [token_file(tmp_path, "alice", "bob")]
    with RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, arguments=arguments) as running:
        yield running


def ends(place: Path) -> list[list[float]]:
    """When each rank ended its steps."""
    files = [place / f"rank-{rank}" for rank in range(2)]
    return [
        [float(line) for line in file.read_text().splitlines() if line] if file.exists() else []
        for file in files
    ]


def test_ranks_stop_together_while_somebody_else_has_the_turn(
    node: RunningNode, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RANK)
    tests = Path(__file__).parents[1]
    with (
        Puppet() as a,
        Puppet() as b,
        a.client(node.socket, "alice") as alice,
        b.client(node.socket, "bob") as bob,
    ):
        granted = alice.request(memory=8 * GIB)
        his = bob.request(memory=8 * GIB)["lease"]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (tests, tests.parent))),
            "JUPYTER_GPUSHARE_SOCKET": str(node.socket),
            "JUPYTER_GPUSHARE_TOKEN": "alice",
            names.LEASE: granted["lease"],
            names.SECRET: granted["secret"],
        }
        command = (
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(tmp_path / "train.py"), str(tmp_path)),
        )
        with subprocess.Popen(command, env=environ) as training:
            try:
                until(lambda: all(len(one) > 5 for one in ends(tmp_path)), "they train", WITHIN)
                bob.call(Method.MEMORY, lease=his, figures=[], steps=0, can_take_turns=True)
                for _ in range(3):
                    has_turn(bob, his)
                    before = ends(tmp_path)
                    assert len(before[0]) == len(before[1]), "not after the same step"
                    began = time.monotonic()
                    until(lambda at=began: time.monotonic() >= at + 0.5, "bob computes")
                    assert ends(tmp_path) == before, "somebody computes beside bob"
                    bob.call(Method.TURN_DONE, lease=his)
                    go_on = len(before[0]) + 5
                    until(lambda n=go_on: len(ends(tmp_path)[1]) >= n, "they go on", WITHIN)
                assert training.poll() is None
            finally:
                training.terminate()


def has_turn(bob: NodeClient, lease: str) -> None:
    bob.call(Method.TURN_ASK, lease=lease)
    bob.wait_notice(Notice.TURN, WITHIN, lambda told: told["quantum"] is not None)
