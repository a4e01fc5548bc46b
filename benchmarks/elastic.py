"""How long an elastic job takes to grow, to shrink and to go on after a death; CPU and Gloo.

A node manager with three simulated GPUs, one job, and a notebook's request for one of the cards.
Beside it: the same job stopped and started again by hand. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
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


def _until(look: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    until(look, what, _WITHIN)
    return time.monotonic() - began


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by what was measured."""
    found: dict[str, list[float]] = {
        name: [] for name in ("shrinks", "card", "grows", "dies", "by hand", "lost")
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
                found["grows"].append(_until(at(3), "three train again"))
                events = [e for e in Records("measured").follow().news() if e["event"] == "trains"]
                restarts, step = job.status().restarts, job.status().step
                began = time.monotonic()
                os.kill([e for e in events if e["rank"] == 0][-1]["pid"], signal.SIGKILL)
                _until(lambda j=job, known=restarts: j.status().restarts > known, "it begins anew")
                _until(at(3), "three train after a death")
                found["dies"].append(time.monotonic() - began)
                events = [e for e in Records("measured").follow().news() if e["event"] == "trains"]
                found["lost"].append(max(0, step - events[-1]["step"]))
                began = time.monotonic()
                job.stop()
                job = elastic.load("measured")
                _until(at(3), "three train after a stop by hand")
                found["by hand"].append(time.monotonic() - began)
            job.stop()
    return found


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
    }
    print("| | median | longest |\n|---|---|---|")
    for name, text in words.items():
        print(f"| {text} | {statistics.median(found[name]):.1f} s | {max(found[name]):.1f} s |")
    print(
        f"| completed steps that were done again after a `kill -9` | "
        f"{statistics.median(found['lost']):.0f} | {max(found['lost']):.0f} |"
    )


if __name__ == "__main__":
    main()
