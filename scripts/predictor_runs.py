"""Measure real training loops on this machine's processor, for the predictors' starter set.

    python scripts/predictor_runs.py    # 25 minutes on two cores; --work DIR goes on where it ended
    python scripts/predictor_card.py    # 5 minutes: trains, and writes docs/predictor-card.md

One and two threads stand for two kinds of GPU. Other work on the machine must not change the
figures, so time is not taken by the wall clock: a step's time is the processor time of the thread
that runs the loop (with OMP_WAIT_POLICY=passive it sleeps and counts nothing while it waits), and
utilisation is the processor time of all threads over that, times the number of threads. Memory is
exact: the peak of what torch's allocator gave out, from the profiler's events.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "jupyter_gpushare/predict/starter.jsonl.gz"
WHERE = ROOT / "docs/predictor-runs.json"
THREADS = (1, 2)
PASSES = 4
#: Processor seconds of a case in a pass, and the fewest and the most steps.
SECONDS, FEWEST, MOST = 0.3, 4, 40


def stepper(case: Any, model: Any, batch: tuple[Any, ...]) -> Callable[[], None]:
    """One iteration of the case's loop."""
    import torch

    optimizer = case.optimizer_of(model)
    if optimizer is None:
        batch = batch[:-1]  # the target is not there
    inputs, target = batch[: len(batch) - (optimizer is not None)], batch[-1]

    def train() -> None:
        case.loss(model(*inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    def infer() -> None:
        with torch.no_grad():
            model(*inputs)

    model.train(optimizer is not None)
    return infer if optimizer is None else train


def peak(case: Any) -> int:
    """The most bytes that torch's allocator had given out during two iterations."""
    return peak_of(lambda: stepper(case, case.make(), case.batch()))


def peak_of(make: Callable[[], Callable[[], Any]]) -> int:
    """The same of a step, which is made with all that it needs."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = make()
        with record_function("the steps"):
            step()
            step()
    events = profiler.profiler.kineto_results.events()
    start = min(e.start_ns() for e in events if e.name() == "the steps")
    alive = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        if event.start_ns() >= start:
            most = max(most, alive)
    return most


def times(case: Any) -> list[tuple[float, float, float]]:
    """For each step, without two at the start: wall, this thread's and all threads' seconds."""
    step = stepper(case, case.make(), case.batch())
    step()
    step()
    rows: list[tuple[float, float, float]] = []
    begun = time.thread_time()
    while len(rows) < FEWEST or (len(rows) < MOST and time.thread_time() - begun < SECONDS):
        wall, own, every = time.perf_counter(), time.thread_time(), time.process_time()
        step()
        rows.append(
            (
                time.perf_counter() - wall,
                time.thread_time() - own,
                time.process_time() - every,
            )
        )
    return rows


def low(values: list[float]) -> float:
    """The first quartile: what another task's use of the caches adds is not the model's."""
    return sorted(values)[len(values) // 4]


def measure(threads: int, backwards: bool, only: str) -> None:
    """One pass; a line for each case on stdout. Runs in a process of its own."""
    import torch
    from predictor_zoo import cases

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    wanted = [case for case in cases() if case.family.startswith(only)]
    for case in reversed(wanted) if backwards else wanted:
        rows = times(case)
        own = low([row[1] for row in rows])
        told = {
            "name": case.name,
            "seconds": own,
            "utilisation": median(min(1.0, row[2] / row[1] / threads) for row in rows),
            "wall": median(row[0] for row in rows),
            "load": os.getloadavg()[0],
        }
        print(json.dumps(told), flush=True)


def facts(threads: int) -> tuple[float, float]:
    """FLOPs and bytes a second of these threads: a large product, a large copy."""
    import torch

    torch.set_num_threads(threads)
    a = torch.randn(1024, 1024)
    big = torch.randn(16 * 2**20)
    to = torch.empty_like(big)

    def best(work: Callable[[], Any]) -> float:
        taken = []
        for _ in range(12):
            own = time.thread_time()
            work()
            taken.append(time.thread_time() - own)
        return min(taken)

    return 2 * 1024**3 / best(lambda: a @ a), 2 * big.nbytes / best(lambda: to.copy_(big))


def child(*arguments: str, work: Path) -> list[Any]:
    """This script again, with threads that sleep while they wait. What a run before has told, in
    the folder ``work``, is not measured again."""
    told = work / f"{'_'.join(arguments).replace('--', '')}.jsonl"
    if not told.exists():
        part = told.with_suffix(".part")
        with part.open("w") as file:
            subprocess.run(
                [sys.executable, __file__, *arguments],
                env={**os.environ, "OMP_WAIT_POLICY": "passive", "JUPYTER_GPUSHARE": "off"},
                stdout=file,
                check=True,
            )
        part.rename(told)
    return [json.loads(line) for line in told.read_text().splitlines()]


def peaks(only: str) -> None:
    """The memory of each case; a line for each on stdout."""
    import torch
    from predictor_zoo import cases

    torch.manual_seed(0)
    for case in cases():
        if case.family.startswith(only):
            print(json.dumps({"name": case.name, "memory": peak(case)}), flush=True)


def features_of(case: Any) -> dict[str, Any]:
    """The document of a case's features: a dry run, which needs no GPU."""
    from jupyter_gpushare.predict.dryrun.torchtrace import trace
    from jupyter_gpushare.predict.dryrun.travel import pack

    model = case.make()
    training = case.optimizer is not None
    batch = case.batch() if training else case.batch()[:-1]
    loss = case.loss if training else None
    told = trace(pack((model, batch, loss, case.optimizer_of(model), None)), training)
    told.update(framework="torch", training=training, iterations=1)
    return dict(told)


def describe(only: str) -> None:
    """The features of each case; a line for each on stdout."""
    import torch
    from predictor_zoo import cases

    torch.manual_seed(0)
    for case in cases():
        if case.family.startswith(only):
            line = {"name": case.name, "family": case.family, "features": features_of(case)}
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=0, help="one pass only, here")
    parser.add_argument("--turn", type=int, default=0, help="an odd pass goes backwards")
    parser.add_argument("--describe", action="store_true", help="features only, here")
    parser.add_argument("--peaks", action="store_true", help="memory only, here")
    parser.add_argument("--work", type=Path, help="folder of what was measured before")
    parser.add_argument("--facts", action="store_true", help="speeds of the threads only, here")
    parser.add_argument("--only", default="", help="families whose names begin so")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.facts:
        print(json.dumps(facts(options.threads)))
    elif options.describe:
        describe(options.only)
    elif options.peaks:
        peaks(options.only)
    elif options.threads:
        measure(options.threads, bool(options.turn % 2), options.only)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            work = options.work or Path(temporary)
            work.mkdir(parents=True, exist_ok=True)
            everything(options.only, options.out, work)


def everything(only: str, out: Path, work: Path) -> None:
    """All passes, and the file."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from machine import machine

    from jupyter_gpushare.predict.features import Features, Hardware
    from jupyter_gpushare.predict.records import Record, shipped

    families = f"--only={only}"
    of_case = {line["name"]: line for line in child("--describe", families, work=work)}
    memory = {line["name"]: line["memory"] for line in child("--peaks", families, work=work)}
    print(f"{len(of_case)} cases", file=sys.stderr)
    # What scripts/predictor_gpu.py has measured stays.
    lines = [one.line() for one in shipped() if one.hardware.capability > 0]
    loads: list[float] = []
    spreads: list[float] = []
    for threads in THREADS:
        flops, bandwidth = child("--facts", f"--threads={threads}", work=work)[0]
        hardware = Hardware(
            name=f"CPU, {threads} thread{'s' * (threads > 1)}",
            capability=0.0,
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            cores=threads,
            flops=flops,
            bandwidth=bandwidth,
        )
        passes = [
            child(f"--threads={threads}", families, f"--turn={turn}", work=work)
            for turn in range(PASSES)
        ]
        found: dict[str, list[dict[str, Any]]] = {}
        for told in (told for turn in passes for told in turn):
            found.setdefault(told["name"], []).append(told)
        for name, rows in found.items():
            seconds = [row["seconds"] for row in rows]
            record = Record(
                family=of_case[name]["family"],
                name=name,
                features=Features.read(of_case[name]["features"]),
                hardware=hardware,
                seconds=min(seconds),
                memory=memory[name],
                utilisation=100 * median(row["utilisation"] for row in rows),
            )
            lines.append(record.line())
            lowest, second, *_ = sorted(seconds)
            spread = second / lowest - 1
            spreads.append(spread)
            loads.extend(row["load"] for row in rows)
            print(
                f"{name} {threads}: {min(seconds) * 1e3:.2f} ms, spread {spread:.0%}, "
                f"{record.utilisation:.0f} %, load {rows[0]['load']:.1f}",
                file=sys.stderr,
            )
    told = {
        "runs": len(lines),
        "load average": median(loads),
        "times of two passes differ by (median)": median(spreads),
    }
    gpus = json.loads(WHERE.read_text(encoding="utf-8")).get("gpus", [])
    told["gpus"] = gpus
    WHERE.write_text(json.dumps({**machine(), **told}, indent=2) + "\n", encoding="utf-8")
    text = "".join(f"{line}\n" for line in lines)
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
