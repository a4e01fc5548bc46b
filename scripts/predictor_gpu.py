"""Measure the starter set's models on this machine's GPU: a line of JSON for each, at once.

    python scripts/predictor_gpu.py --out measured.jsonl    # needs a GPU and torch, nothing else
    python scripts/predictor_gpu.py --join measured.jsonl --out gpu.jsonl    # adds the features

Each model is measured with its own batch and with one 32 times as large, as small models mostly
wait for the launch of their kernels. The order is random with a seed, so a run that ends early has
some of all families.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from predictor_runs import stepper  # noqa: E402 - found by the line above
from predictor_zoo import Case, cases  # noqa: E402

#: How much larger the other batch is.
LARGER = 32
#: Seconds of a group of steps, of which there are three.
SECONDS = 0.04
#: No model of a larger batch takes more of the CPU's memory than so many bytes of input.
MOST_INPUT = 2 * 2**30


def larger(case: Case) -> Case | None:
    """The same case with a batch 32 times as large; ``None`` where the batch has no such axis."""
    batch = case.batch()
    count = batch[0].shape[0] if batch[0].dim() else 0
    size = sum(one.numel() * one.element_size() for one in batch)
    if any(not one.dim() or one.shape[0] != count for one in batch) or size * LARGER > MOST_INPUT:
        return None

    def more() -> tuple[torch.Tensor, ...]:
        return tuple(one.repeat(LARGER, *[1] * (one.dim() - 1)) for one in case.batch())

    return replace(case, name=f"{case.name} x{LARGER}", batch=more)


def wanted() -> list[Case]:
    """All of them, in the order in which they are measured."""
    found = [each for case in cases() for each in (case, larger(case)) if each is not None]
    random.Random(18).shuffle(found)
    return found


def measure(case: Case, device: str) -> dict[str, Any]:
    """Bytes, seconds of an iteration, and hundredths of the time in which a kernel ran."""
    cuda = device == "cuda"

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    model = case.make().to(device)
    batch = tuple(one.to(device) for one in case.batch())
    step = stepper(case, model, batch)
    step()
    step()
    wait()
    told: dict[str, Any] = {}
    if cuda:
        told["memory"] = torch.cuda.max_memory_allocated() - before
        told["reserved"] = torch.cuda.max_memory_reserved()
        free, total = torch.cuda.mem_get_info()
        told["used_of_gpu"] = total - free
    began = time.perf_counter()
    step()
    wait()
    steps = max(3, min(200, int(SECONDS / (time.perf_counter() - began))))
    groups = [_group(step, steps, wait) for _ in range(3)]
    told["seconds"] = statistics.median(groups)
    told["steps"] = steps
    if cuda:
        few = min(steps, 10)
        told["utilisation"] = min(100.0, 100 * _busy(step, few, wait) / told["seconds"])
    return told


def _group(step: Callable[[], None], steps: int, wait: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - began) / steps


def _busy(step: Callable[[], None], steps: int, wait: Callable[[], None]) -> float:
    """Seconds of an iteration in which a kernel or a copy ran on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        wait()
    events = profiler.profiler.kineto_results.events()
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if "CUDA" in str(e.device_type())
    )
    busy = end = 0
    for start, until in spans:  # two may run at once
        busy += max(0, until - max(start, end))
        end = max(end, until)
    return busy / steps / 1e9


def facts() -> dict[str, Any]:
    """What the GPU is, and how fast large products and copies are."""
    props = torch.cuda.get_device_properties(0)
    a = torch.randn(8192, 8192, device="cuda")
    big = torch.randn(256 * 2**20, device="cuda")
    to = torch.empty_like(big)

    def best(work: Callable[[], Any]) -> float:
        work()
        return min(_group(work, 3, torch.cuda.synchronize) for _ in range(3))

    return {
        "gpu": props.name,
        "memory": props.total_memory,
        "capability": props.major + props.minor / 10,
        "processors": props.multi_processor_count,
        "torch": torch.__version__,
        "flops": 2 * 8192**3 / best(lambda: a @ a),
        "bandwidth": 2 * big.nbytes / best(lambda: to.copy_(big)),
    }


def run(seconds: float, out: Path, device: str) -> None:
    until = time.monotonic() + seconds
    torch.manual_seed(0)
    done = failed = 0
    with out.open("w", encoding="utf-8") as file:

        def line(told: dict[str, Any]) -> None:
            file.write(json.dumps(told) + "\n")
            file.flush()

        if device == "cuda":
            line({"facts": facts()})
        for case in wanted():
            if time.monotonic() > until:
                break
            try:
                line({"name": case.name, **measure(case, device)})
                done += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are measured
                line({"name": case.name, "error": f"{type(error).__name__}: {error}"[:300]})
                failed += 1
    print(f"{done} measured, {failed} failed, of {len(wanted())}")


def join(measured: Path, out: Path) -> None:
    """Records: what was measured, and the features, which need no GPU."""
    from jupyter_gpushare.predict.dryrun.torchtrace import trace
    from jupyter_gpushare.predict.dryrun.travel import pack
    from jupyter_gpushare.predict.features import Features
    from jupyter_gpushare.predict.kinds import hardware_of
    from jupyter_gpushare.predict.records import Record

    lines = [json.loads(line) for line in measured.read_text(encoding="utf-8").splitlines()]
    gpu = lines[0]["facts"]
    hardware = hardware_of(gpu["gpu"], gpu["memory"], gpu["capability"])
    told = {line["name"]: line for line in lines[1:] if "error" not in line}
    torch.manual_seed(0)
    with out.open("w", encoding="utf-8") as file:
        for case in wanted():
            if case.name not in told:
                continue
            training = case.optimizer is not None
            batch = case.batch() if training else case.batch()[:-1]
            model = case.make()
            features = trace(
                pack((model, batch, case.loss if training else None, case.optimizer_of(model))),
                training,
            )
            features.update(framework="torch", training=training, iterations=1)
            one = told[case.name]
            record = Record(
                family=case.family,
                name=case.name,
                features=Features.read(features),
                hardware=hardware,
                seconds=one["seconds"],
                memory=one["memory"],
                utilisation=one["utilisation"],
            )
            file.write(record.line() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=110.0, help="at most, for all of them")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--join", type=Path, help="what was measured, to add the features to")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.join:
        join(options.join, options.out)
    else:
        run(options.seconds, options.out, options.device)


if __name__ == "__main__":
    main()
