"""What takes idle GPUs, on a real one: an elastic job and a sweep give it back to a notebook.

Each function is a section of ``run.py``. There is one GPU, so that an elastic job has one worker:
what is seen is that it trains with NCCL's process group, what giving back costs, and going on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hardware.bench import Bench, Nvml, Wrong
from hardware.product import House, house, request, timed

#: The state of a job is three times its parameters: so many layers of so many by so many.
SMALL, LARGE = (4, 1024), (12, 4096)
CONFIG = "c.NodeManagerApp.debug_checks = True\nc.Policy.stop_after = 0.2\n"
#: What a notebook does on the GPU that it got, and before it gives it back. CUDA stays there.
FILL = """
import torch
x = torch.empty({size}, dtype=torch.uint8, device="cuda")
print(int(x[-1] * 0))
"""
EMPTY = "del x\ntorch.cuda.empty_cache()"


@contextmanager
def asking_as(place: House, who: str) -> Iterator[None]:
    """This process asks the node manager for this person until then."""
    before = dict(os.environ)
    os.environ.pop("JUPYTER_GPUSHARE", None)
    os.environ |= {
        "JUPYTER_GPUSHARE_SOCKET": os.fspath(place.node.socket),
        "JUPYTER_GPUSHARE_TOKEN": who,
        "JUPYTER_DATA_DIR": os.fspath(place.folder / "data"),
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def trained(layers: int, width: int, spare: int = 0) -> Callable[[], Any]:
    """A training without end. ``spare``: bytes that each step uses for a moment, if there are."""

    def train() -> None:
        import time

        import torch

        from jupyter_gpushare import elastic

        torch.manual_seed(0)
        device = elastic.device()
        parts = [torch.nn.Linear(width, width) for _ in range(layers)]
        model = torch.nn.Sequential(*parts).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        net = elastic.keep(model, optimizer)
        data = torch.utils.data.TensorDataset(torch.randn(1024, width))
        size = spare
        for (x,) in elastic.batches(data, batch=64, epochs=10**6):
            optimizer.zero_grad()
            loss = net(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            size = min(spare, size * 2)
            while size > 2**20:
                try:
                    torch.empty(size, dtype=torch.uint8, device=device)
                    break
                except torch.OutOfMemoryError:
                    size = int(size * 0.8)
            elastic.report(
                loss=loss,
                spare=size,
                held=torch.cuda.memory_reserved() if device.type == "cuda" else size,
                device=str(device),
                sums=str(torch.distributed.get_backend()),
                handled_by=torch.distributed.get_backend_config(),
            )
            time.sleep(0.02)  # as loading data would: a step takes some 30 ms

    return train


def elastic_job(bench: Bench) -> None:
    """A notebook gets a job's GPU and gives it back; a worker is killed; memory gives way."""
    with (
        house(bench, f"{CONFIG}c.Policy.burst_return = 10.0\n") as place,
        place.kernel("bob") as bob,
        asking_as(place, "alice"),
    ):
        for shape in (SMALL,) if bench.orders.rehearse else (SMALL, LARGE):
            _given_back(bench, place, bob, shape)
        _gives_way(bench, place, bob)


def _given_back(bench: Bench, place: House, bob: Any, shape: tuple[int, int]) -> None:
    from jupyter_gpushare import elastic

    unit, total = bench.orders.unit, place.status()["gpus"][0]["memory"]
    name, nvml, seconds = f"layers-{shape[0]}", Nvml(), {}
    empty = nvml.used()
    job = elastic.run(trained(*shape), max_gpus=1, memory=20 * unit, name=name)
    try:
        seconds["from elastic.run to a step"] = _steps(place, job)
        worker = _last(name, "trains")
        bench.append("trains", {**worker, "bytes_of_it": nvml.of(worker["pid"])})
        bench.append("step", _last(name, "step"))
        rate, began = job.status().step, time.monotonic()
        time.sleep(2.0)  # the time in which steps are counted
        bench.append("steps_a_second", (job.status().step - rate) / (time.monotonic() - began))
        seconds["bob's request"] = request(bob, total - 4 * unit)
        left = nvml.used() - empty
        step = job.status().step
        place.until(lambda: job.status().phase is elastic.Phase.WAITING, "the job waits")
        saved = job.checkpoint()
        bench.append("given_back", {"left_on_gpu": left, "saved": saved and saved.stat().st_size})
        seconds["bob fills the GPU"] = _fill(bench, bob, total - 8 * unit)
        _give_back(bench, bob)
        seconds["bob has released: the job's next step"] = _steps(place, job)
        again = _last(name, "trains")
        if again["entry"] != "breakpoint" or again["step"] < step:
            raise Wrong(f"at step {step} the job gave the GPU back, and it went on so: {again}")
        step, restarts = job.status().step, job.status().restarts
        os.kill(again["pid"], signal.SIGKILL)
        seconds["kill -9 of the worker: it trains again"] = place.until(
            lambda: (
                job.status().restarts > restarts and _last(name, "trains")["pid"] != again["pid"]
            ),
            "the job goes on after a death",
        )
        lost = step - _last(name, "trains")["step"]
        began = time.monotonic()
        job.stop()
        seconds["stopped and saved"] = time.monotonic() - began
        bench.append(
            "rounds", {"state": saved and saved.stat().st_size, "done_again": lost, **seconds}
        )
    finally:
        _told(bench, job)


def _gives_way(bench: Bench, place: House, bob: Any) -> None:
    """A job with a range of memory and a full cache; a notebook wants more than half the GPU."""
    from jupyter_gpushare import elastic

    unit, total = bench.orders.unit, place.status()["gpus"][0]["memory"]
    most, half, name = total - 8 * unit, int(total * 0.55), "range"
    job = elastic.run(
        trained(*SMALL, spare=int(most * 0.8)),
        max_gpus=1,
        memory=f"{8 * unit >> 20}MiB..{most >> 20}MiB",
        name=name,
    )
    try:
        _steps(place, job)
        before = _last(name, "step")
        bench.append("range_before", {"step": before, "said": place.said_by("leases")})
        took = request(bob, half)
        bench.append("range_while", {"bob_waits": took, "said": place.said_by("leases")})
        filled = _fill(bench, bob, half - 2 * unit)
        bench.append("range_while", {"bob_fills": filled, "step": _last(name, "step")})
        status = job.status()
        if status.phase is not elastic.Phase.TRAINING or status.restarts:
            raise Wrong(f"the job should have gone on with less memory: {status}")
        step = status.step
        place.until(lambda: job.status().step > step + 5, "it trains with less")
        within = _last(name, "step")
        if within["held"] > most - half + 2 * unit and not bench.orders.rehearse:
            raise Wrong(f"the job holds {within['held']} bytes beside bob's {half}")
        _give_back(bench, bob)
        if bench.has_time(50):  # nothing rises on a GPU for half a minute after something fell
            risen: float | None = None
            with suppress(AssertionError):
                risen = place.until(
                    lambda: _last(name, "step")["spare"] > within["spare"] * 1.5, "it has risen"
                )
            bench.append("range_after", {"risen_after": risen, "said": place.said_by("leases")})
        job.stop()
    finally:
        _told(bench, job)


def sweeps(bench: Bench) -> None:
    """Four models one after the other on the one GPU; a notebook asks for it in between."""
    from jupyter_gpushare import sweep
    from jupyter_gpushare.jobs.core import Phase

    device, rates = bench.device, [10.0**-power for power in range(1, 5)]

    def model(lr: float) -> dict[str, Any]:
        import os

        import torch

        from jupyter_gpushare import sweep

        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        x = torch.randn(256, 512, device=device)
        for step in range(1000 if device == "cuda" else 20):
            optimizer.zero_grad()
            loss = (net(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                sweep.report(loss=loss.item())
        return {"loss": loss.item(), "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "")}

    candidates = [{"lr": lr} for lr in rates]
    with (
        house(bench, CONFIG) as place,
        place.kernel("bob") as bob,
        asking_as(place, "alice"),
    ):
        unit, total = bench.orders.unit, place.status()["gpus"][0]["memory"]
        began = time.monotonic()
        running = sweep(model, candidates, memory=8 * unit, every=0.5, name="grid")
        place.until(lambda: running.status().counts[Phase.DONE] >= 1, "a model is done")
        place.until(lambda: running.reports()[1:], "the next one trains")
        took = request(bob, total - 4 * unit)
        bench.note("bob_waits", took)
        bench.note("bob_fills_with_the_import", _fill(bench, bob, total - 8 * unit))
        _give_back(bench, bob)
        if not running.wait(bench.orders.until - time.monotonic() - 10.0):
            raise Wrong(f"the sweep is not over: {running.status()}")
        bench.note("seconds", time.monotonic() - began)
        models = running.models()
        bench.note(
            "models",
            [{"lr": m.candidate, "attempt": m.attempt, "result": m.result} for m in models],
        )
        bench.note("status", str(running.status()))
    if [one.phase for one in models] != [Phase.DONE] * len(rates):
        raise Wrong(f"not all models are done: {running.status()}")
    found = [one.result["loss"] for one in models]
    bench.note("one_after_the_other", alone := [model(**each)["loss"] for each in candidates])
    if _ranking(found) != _ranking(alone):
        raise Wrong(f"the ranking differs: {found} in the sweep, {alone} alone")


def _fill(bench: Bench, kernel: Any, size: int) -> float:
    """Seconds in which a notebook has so many bytes on its GPU."""
    if not bench.orders.rehearse:
        return timed(kernel, FILL.format(size=size))[0]
    from support.driverstage import FILL as STAND_IN

    return timed(kernel, STAND_IN.replace("1 * 2**30", str(size)))[0]


def _give_back(bench: Bench, kernel: Any) -> None:
    timed(kernel, "must(driver.cuMemFree(block))" if bench.orders.rehearse else EMPTY)
    _, said = timed(kernel, "%gpushare release")
    bench.note("released", said)


def _ranking(losses: list[float]) -> list[int]:
    return sorted(range(len(losses)), key=lambda number: losses[number])


def _steps(place: House, job: Any) -> float:
    """Seconds until it has trained some steps more."""
    step = job.status().step
    return place.until(lambda: job.status().step > step + 1, "the job trains")


def _last(name: str, event: str) -> dict[str, Any]:
    """The newest event of this kind in a job's record."""
    from jupyter_gpushare.elastic.records import Follower, Records

    return [one for one in Follower(Records(name)).news() if one["event"] == event][-1]


def _told(bench: Bench, job: Any) -> None:
    """How the job stood, and what its workers printed; and it ends."""
    bench.append("jobs", {"status": str(job.status()), "said": job.status().said})
    if not job.status().is_over:
        job.stop()
    bench.append("printed", job.output.read_text(errors="replace")[-1500:])
