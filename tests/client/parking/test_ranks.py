"""Ranks of torch.distributed stop after the same step, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.program import program

from jupyter_gpushare.client.memory import ranks
from jupyter_gpushare.client.memory.ranks import Group, RankGate, Together

STEPS = 300


@dataclass
class Crew:
    """Ranks as threads; a barrier in each step stands for what they do together."""

    size: int = 3
    timeout: float = 60.0
    wanted: Callable[[], bool] = lambda: True
    stops: list[list[int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    pauses: list[int] = field(default_factory=list)
    togethers: list[Together] = field(default_factory=list)

    def __post_init__(self) -> None:
        store = torch.distributed.HashStore()
        self.barrier = threading.Barrier(self.size)
        self.stops = [[] for _ in range(self.size)]
        self.steps = [0] * self.size
        for rank in range(self.size):
            together = Together(
                Group(store, rank, self.size, self.timeout),
                wanted=lambda: self.wanted(),
                pause=self.pause,
                drop=lambda rank=rank: self.stops[rank].append(self.steps[rank]),
                say=self.said.append,
            )
            self.togethers.append(together)

    def pause(self, seconds: float) -> None:
        assert 0 < seconds <= self.timeout / 2
        self.stops[0].append(self.steps[0])
        self.pauses.append(len({tuple(one) for one in self.stops}))

    def run(self, rank: int, steps: int, *, each: float = 0.0) -> None:
        for _ in range(steps):
            self.barrier.wait(60)
            self.steps[rank] += 1
            self.togethers[rank].step_ends()
            if each:
                time.sleep(each)

    def train(self, steps: int = STEPS, **how: Any) -> None:
        threads = [
            threading.Thread(target=self.run, args=(rank, steps), kwargs=how)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)  # 20,000 steps, on whatever machine
            assert not thread.is_alive()


@pytest.mark.parametrize(("steps", "each"), [(20_000, 0.0), (300, 0.002)])
def test_all_stop_after_the_same_step_again_and_again(steps: int, each: float) -> None:
    crew = Crew()
    crew.train(steps, each=each)
    assert len(crew.pauses) >= 2
    assert crew.stops[0] == crew.stops[1] == crew.stops[2]
    assert set(crew.pauses) == {1}, "all had stopped when rank 0 asked for its turn"
    assert not crew.said


def test_nobody_stops_while_nobody_wants_the_turn() -> None:
    crew = Crew(wanted=lambda: False)
    crew.train()
    assert crew.stops == [[], [], []]


def test_a_wish_that_is_over_when_the_step_comes_stops_nobody() -> None:
    crew, asked = Crew(size=2), [0]

    def wanted() -> bool:
        asked[0] += 1
        return asked[0] % 2 == 1  # when the step is named, not when it ends

    crew.wanted = wanted
    crew.train(each=0.002)
    assert asked[0] >= 4
    assert crew.stops == [[], []]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Two ranks that look at each step; their patience is half a second."""
    monkeypatch.setattr(ranks, "LOOK", 0.0)
    return Crew(size=2, timeout=1.0)


def steps(together: Together, count: int) -> float:
    """Seconds that so many steps take which do nothing else."""
    began = time.monotonic()
    for _ in range(count):
        together.step_ends()
    return time.monotonic() - began


def test_who_hears_too_late_drops_the_step_and_the_next_one_is_further_ahead(pair: Crew) -> None:
    """As ranks whose host is ahead of their GPU: they have counted the named step already."""
    leader, other = pair.togethers
    steps(other, 6)
    steps(leader, 2)  # names step 4
    steps(other, 1)  # has ended 7
    steps(leader, 2)  # drops it
    steps(leader, 1)  # has ended 5, and names step 9
    steps(other, 1)  # has ended 8, and agrees
    steps(leader, 3)
    assert not pair.pauses
    waits = threading.Thread(target=steps, args=(other, 1))
    waits.start()
    steps(leader, 1)
    waits.join(60)
    assert not waits.is_alive()
    assert [len(stops) for stops in pair.stops] == [1, 1]
    assert not pair.said


def test_a_rank_that_does_not_come_holds_rank_0_up_for_half_the_timeout(pair: Crew) -> None:
    leader, other = pair.togethers
    steps(leader, 2)  # names step 4
    steps(other, 2)  # agrees, and ends no step more for a while
    assert 0.4 < steps(leader, 2) < 10
    assert not pair.pauses, "the turn is not given back: not all have stopped"
    assert "gives no turn back any more" in pair.said[0]
    assert steps(other, 2) < 0.4, "rank 0 has gone on, and said so"
    assert steps(leader, STEPS) < 0.4
    assert len(pair.said) == 1


def test_rank_0_that_does_not_come_holds_the_others_up_for_half_the_timeout(pair: Crew) -> None:
    leader, other = pair.togethers
    steps(leader, 2)
    steps(other, 2)
    assert 0.4 < steps(other, 2) < 10
    assert "gives no turn back any more" in pair.said[0]
    assert steps(other, STEPS) < 0.4


def test_a_rank_with_another_lease_leads_nobody() -> None:
    """Nor does one whose partners have not said yet which lease they have joined."""
    default = _Named()
    for partner, leads in ((None, False), ("M", False), ("L", True)):
        store = torch.distributed.HashStore()
        turns: Any = SimpleNamespace(leads=False, alone=False, announce=lambda: None)
        c10d = SimpleNamespace(
            _get_default_group=lambda: default, _get_default_store=lambda it=store: it
        )
        distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: 0,
            get_world_size=lambda: 2,
            get_backend=lambda: "gloo",
            distributed_c10d=c10d,
        )
        if partner is not None:
            store.set("jupyter_gpushare/0/here/1", partner)
        gate = RankGate(
            SimpleNamespace(distributed=distributed),
            turns,
            alone=lambda: None,
            lease=lambda: "L",
            drop=lambda: None,
            capturing=lambda: False,
            say=print,
        )
        gate.step_ends()
        assert turns.leads is leads


class _Named:
    group_name = "0"


#: What `torchrun` starts: a training with DistributedDataParallel, undisturbed and then with gates.
TRAINING = """
import json, os, random, sys, time
sys.path[:0] = PLACES
from datetime import timedelta
import torch
import torch.distributed as dist
from types import SimpleNamespace
from torch.nn.parallel import DistributedDataParallel
from support.torch_cpu import CpuAllocator
from jupyter_gpushare.client.memory.ranks import RankGate
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=300))
rank = dist.get_rank()
chance = random.Random(3)

class Turns:
    # Of rank 0: the turn is wanted now and then, and given again after a while.
    leads, alone, until, pauses = False, False, 0.0, 0
    is_closed = property(lambda self: time.monotonic() >= self.until)
    def announce(self):
        pass
    def gate(self, at_most):
        assert 0 < at_most <= 150
        note()
        time.sleep(chance.uniform(0.0, 0.05))
        self.until = time.monotonic() + chance.uniform(0.0, 0.2)

stops, steps = [], 0
def note():
    stops.append(steps)

meter = StepMeter(torch, CpuAllocator(counts=False))
said = []
gate = RankGate(torch, Turns(), alone=lambda: None, lease=lambda: "L", drop=note,
                capturing=meter.capturing, say=said.append)
meter.install()

def train():
    global steps
    torch.manual_seed(7)
    net = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data, curve = torch.Generator().manual_seed(100 + rank), []
    for steps in range(1, 301):
        loss = net(torch.randn(8, 16, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve, [one.detach().tolist() for one in net.parameters()]

undisturbed = train()
meter.gate = gate.step_ends
same = train() == undisturbed
meter.gate = None
print(json.dumps([same, stops, said]))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # on a busy machine gloo's own threads abort one exit in ten, with our gates or without
"""


@pytest.mark.timeout(600)
def test_torchrun_ranks_compute_what_they_would_undisturbed() -> None:
    """Two processes with the store and the variables that they have of `torchrun`."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {n: v for n, v in os.environ.items() if "GPUSHARE" not in n}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    places = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]
    command = [sys.executable, program(TRAINING.replace("PLACES", repr(places)))]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(command, env={**environ, "RANK": rank, "LOCAL_RANK": rank}, **pipes)
        for rank in "01"
    ]
    told = [rank.communicate(timeout=560) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    (same, stops, said), other = (json.loads(out.splitlines()[-1]) for out, _said in told)
    assert same, "the results differ"
    assert [same, stops, said] == other
    assert len(stops) >= 2
    assert not said
