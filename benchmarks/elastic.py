"""How long an elastic job takes to grow, to shrink and to go on after a death; CPU and Gloo.

A node manager with three simulated GPUs, one job, and a notebook's request for one of the cards.
Beside it, in the same run: the same job stopped and started again by hand, and the same training
under ``torchrun --nnodes 1:3``, where somebody starts a third agent at once. Prints a table in
Markdown.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.node import RunningNode, until

from jupyter_gpushare import elastic
from jupyter_gpushare.elastic.records import Records
from jupyter_gpushare.protocol.messages import Method

_WITHIN = 120.0


def train() -> None:
    """A small regression, about 20 steps a second."""
    import time

    import torch

    from jupyter_gpushare import elastic

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    net = elastic.keep(model, optimizer)
    x = torch.randn(240, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    for a, b in elastic.batches(data, batch=24, epochs=100_000):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        elastic.report(loss=loss)
        time.sleep(0.05)


#: The same training as people write it for torchrun: it saves after each ten steps.
PROGRAM = """
import os, sys, time
import torch
from torch import distributed

place = sys.argv[1]
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if os.path.exists(place + "/saved"):
    state = torch.load(place + "/saved")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
net = torch.nn.parallel.DistributedDataParallel(model)
x = torch.randn(240, 8)
for step in range(first, 10**9):
    part = x[torch.arange(rank, 24, size)]
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(part), part.sum(1, keepdim=True)).backward()
    optimizer.step()
    if rank == 0:
        if (step + 1) % 10 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, place + "/made")
            os.replace(place + "/made", place + "/saved")
        with open(place + "/said", "a") as said:
            said.write(f"{os.getpid()} {size} {step + 1}\\n")
    time.sleep(0.05)
"""


def with_torchrun(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds from the start of a third agent until three train; completed steps done again."""
    grows, lost = [], []
    with tempfile.TemporaryDirectory() as folder, socket.socket() as found:
        script, said = Path(folder, "train.py"), Path(folder, "said")
        script.write_text(PROGRAM)
        said.touch()
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
        found.close()
        # Without it a third agent's workers wait for ever.
        environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environ |= {"GLOO_SOCKET_IFNAME": "lo", "JUPYTER_GPUSHARE": "off"}

        def agent() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:3"]
            command += ["--nproc-per-node=1", "--max-restarts=1000", "--rdzv-backend=c10d"]
            command += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=measured"]
            command += ["--rdzv-conf=last_call_timeout=2", "--local-addr=127.0.0.1"]
            with open(f"{folder}/output", "ab") as output:
                return subprocess.Popen(
                    [*command, str(script), folder], env=environ, stdout=output, stderr=output
                )

        def lines() -> list[list[int]]:
            return [[int(word) for word in line.split()] for line in said.read_text().splitlines()]

        def at(count: int, after: int) -> Callable[[], bool]:
            return lambda: any(size == count for _, size, _ in lines()[after:])

        agents = [agent()]
        try:
            _until(at(1, 0), "one trains")
            agents.append(agent())
            _until(at(2, 0), "two train")
            for _ in range(rounds):
                before = len(lines())
                began = time.monotonic()
                third = agent()
                agents.append(third)
                _until(at(3, before), "three train")
                grows.append(time.monotonic() - began)
                told = lines()
                first = next(i for i, (_, size, _) in enumerate(told) if i >= before and size == 3)
                lost.append(max(0, told[first - 1][2] - told[first][2] + 1))
                third.terminate()
                third.wait(_WITHIN)
                _until(at(2, len(lines())), "two train again")
        finally:
            for one in reversed(agents):
                one.terminate()
                one.wait(_WITHIN)
    return grows, lost


def _until(look: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    until(look, what, _WITHIN)
    return time.monotonic() - began


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by what was measured."""
    found: dict[str, list[float]] = {
        name: []
        for name in (
            *("shrinks", "card", "grows", "grows lost", "dies", "lost"),
            *("by hand", "by hand lost"),
        )
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JUPYTER_DATA_DIR"] = folder
        os.environ["OMP_NUM_THREADS"] = "1"
        config = "c.Policy.stop_after = 0.2"
        with RunningNode(Path(folder), simulate="3x24GiB", config=config) as node:
            os.environ["JUPYTER_GPUSHARE_SOCKET"] = str(node.socket)
            job = elastic.run(train, max_gpus=3, memory="8GiB", name="measured")

            def size() -> int:
                return len(job.status().ranks)

            def at(count: int) -> Callable[[], bool]:
                return lambda: size() == count and job.status().phase is elastic.Phase.TRAINING

            _until(at(3), "three train")
            for _ in range(rounds):
                began = time.monotonic()
                with node.client() as notebook:
                    lease = notebook.request(memory=24 * 2**30, priority_class="interactive")
                    found["card"].append(time.monotonic() - began)
                    _until(at(2), "two train")
                    found["shrinks"].append(time.monotonic() - began)
                    notebook.call(Method.RELEASE, lease=lease["lease"])
                step = job.status().step
                found["grows"].append(_until(at(3), "three train again"))
                found["grows lost"].append(max(0, step - _begins()))
                events = [e for e in Records("measured").follow().news() if e["event"] == "trains"]
                restarts, step = job.status().restarts, job.status().step
                began = time.monotonic()
                os.kill([e for e in events if e["rank"] == 0][-1]["pid"], signal.SIGKILL)
                _until(lambda j=job, known=restarts: j.status().restarts > known, "it begins anew")
                _until(at(3), "three train after a death")
                found["dies"].append(time.monotonic() - began)
                found["lost"].append(max(0, step - _begins()))
                began = time.monotonic()
                job.stop()
                step = job.status().step
                job = elastic.load("measured")
                _until(at(3), "three train after a stop by hand")
                found["by hand"].append(time.monotonic() - began)
                found["by hand lost"].append(max(0, step - _begins()))
            job.stop()
    found["torchrun"], found["torchrun lost"] = with_torchrun(rounds)
    return found


def _begins() -> int:
    """The step after which those who train now began."""
    events = [e for e in Records("measured").follow().news() if e["event"] == "trains"]
    return int(events[-1]["step"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    found = measure(parser.parse_args().rounds)
    words = {
        "card": "a notebook asks for a GPU, until it has it",
        "shrinks": "the same, until the job trains with one less",
        "grows": "a GPU becomes free, until the job trains with one more",
        "dies": "`kill -9` of worker 0, until all train again",
        "by hand": "for comparison: stop the job, and start it again from its checkpoint",
        "torchrun": "for comparison: start one more agent of `torchrun`, until one more trains",
    }
    steps = {
        "grows": "grows lost",
        "dies": "lost",
        "by hand": "by hand lost",
        "torchrun": "torchrun lost",
    }
    middle = statistics.median(found["grows"])
    print("| | median | longest | growing is 1 | completed steps done again, at most |")
    print("|---|---|---|---|---|")
    for name, text in words.items():
        seconds = statistics.median(found[name])
        lost = f"{max(found[steps[name]]):.0f}" if name in steps else "0"
        print(
            f"| {text} | {seconds:.1f} s | {max(found[name]):.1f} s | {seconds / middle:.1f} |"
            f" {lost} |"
        )
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"\nLoad at the end, over 1, 5 and 15 minutes: {loads}.")


if __name__ == "__main__":
    main()
