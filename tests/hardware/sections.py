"""What is measured on a GPU, one function a section. ``python sections.py NAME ORDERS`` does one.

A section notes what it finds as it goes. It raises :class:`Skipped` where it
cannot be done, :class:`Wrong` where what must hold does not; whatever else it
raises is reported as it is.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from hardware.bench import (  # noqa: E402 - found by the lines above
    GIB,
    Bench,
    Nvml,
    Orders,
    Skipped,
    Wrong,
    park,
    resume,
    told,
)
from hardware.idle import elastic_job, sweeps  # noqa: E402
from hardware.product import notebooks, quota, two_compute  # noqa: E402
from hardware.served import servers  # noqa: E402
from hardware.targets import (  # noqa: E402
    Target,
    adamw_state,
    digest_of,
    pinned_rates,
    tensors_of,
    train,
)
from hardware.tight import out_of_memory_in_a_cell, turns_by_lock  # noqa: E402
from hardware.walled import walls  # noqa: E402

from jupyter_gpushare.client.memory.driver import deadline_for, helper_environ  # noqa: E402
from jupyter_gpushare.protocol.checkpoint import Result  # noqa: E402

#: What may be left on the GPU of a process that is parked.
RESIDUE = 64 * 2**20
#: The part of the pinned-copy rate that storage parking shall reach.
STORAGE_AIM = 0.7
#: Seconds that a lock may take to be the gate of short cells, too, and for which we lock.
LOCK_AIM = 1.0
LOCKED_FOR = 0.5


def versions(bench: Bench) -> None:
    """What this is all measured with."""
    packages = {}
    for name in ("torch", "jax", "cupy-cuda13x", "cupy-cuda12x", "nvidia-ml-py", "cuda-bindings"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    bench.note("packages", packages)
    bench.note("python", sys.version.split()[0])
    bench.note("kernel", platform.release())
    bench.note("user", os.getuid())
    bench.note("cores", os.cpu_count())
    memory = Path("/proc/meminfo").read_text().split("\n")[0].split()
    bench.note("host_memory", int(memory[1]) * 1024)
    for name in ("/proc/sys/kernel/yama/ptrace_scope", "/sys/fs/cgroup/memory.max"):
        if os.path.exists(name):
            bench.note(name, Path(name).read_text().strip())
    bench.note("gpu", Nvml().facts())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jupyter_gpushare.node.checkpoint", "--probe"],
        capture_output=True,
        env=helper_environ(os.environ),
        timeout=60,
        check=False,
    )
    bench.note("checkpoint", json.loads(done.stdout)["ability"])


def storage(bench: Bench) -> None:
    """Storage parking of torch (rung 3), beside the rate of a plain pinned copy."""
    import torch

    allocator = _allocator(bench, torch)
    from jupyter_gpushare.client.adapters.parkers.base import ParkRefused
    from jupyter_gpushare.client.adapters.parkers.torch import TorchParker

    rates = pinned_rates(torch, bench.device, min(bench.orders.unit, GIB))
    bench.note("pinned_copy_bytes_per_second", rates)
    nvml = Nvml()
    for size in bench.orders.sizes:
        if not bench.has_time(10 + 2 * size):
            bench.append("left_out", size)
            continue
        wanted = size * bench.orders.unit
        parker = TorchParker(torch, allocator, keep=wanted + 2 * GIB, others=tuple)
        before = nvml.used()
        with _users_code(allocator):
            parameters, optimizer = adamw_state(torch, bench.device, wanted)
            old_loss = (parameters[0] * parameters[0].detach()).sum()
        tensors = tensors_of(parameters, optimizer)
        digest = digest_of(torch, tensors)
        del tensors
        for repeat in range(bench.orders.repeats):
            began = time.monotonic()
            parked = parker.park()
            away = time.monotonic() - began
            left = nvml.used() - before
            began = time.monotonic()
            parker.resume()
            back = time.monotonic() - began
            bench.append(
                "rounds",
                {
                    "gib": size,
                    "repeat": repeat,
                    "bytes": parked,
                    "park_seconds": away,
                    "resume_seconds": back,
                    "park_of_pinned_rate": parked / away / rates["to_host"],
                    "resume_of_pinned_rate": parked / back / rates["to_gpu"],
                    # The process's own context stays: that is what only the driver can take.
                    "left_on_gpu": left,
                },
            )
            if digest_of(torch, tensors_of(parameters, optimizer)) != digest:
                raise Wrong(f"the checksums of {size} GiB differ after parking")
        old_loss.backward()
        optimizer.zero_grad(set_to_none=True)
        train(torch, parameters, optimizer)
        del parameters, optimizer, old_loss, parker
    if not bench.orders.rehearse:
        graph = torch.cuda.CUDAGraph()
        still = torch.zeros(1024, device="cuda")
        with torch.cuda.graph(graph):
            still.add_(1)
        try:
            TorchParker(torch, allocator, others=tuple).park()
        except ParkRefused as error:
            bench.note("with_a_graph", str(error))
        else:
            raise Wrong("memory that a CUDA graph uses was parked")
    rounds = [one for one in bench.notes.get("rounds", []) if one["repeat"] > 0]
    if rounds:
        worst = min(min(r["park_of_pinned_rate"], r["resume_of_pinned_rate"]) for r in rounds)
        bench.note("aim", {"wanted": STORAGE_AIM, "worst": worst, "met": worst >= STORAGE_AIM})


def driver(bench: Bench) -> None:
    """The driver's checkpoint (rung 4) of a torch program with a CUDA graph."""
    for size in bench.orders.sizes:
        _checkpoints(bench, bench.torch_target, size)


def jax_cupy(bench: Bench) -> None:
    """JAX and CuPy in one process, parked by the driver."""
    _checkpoints(bench, "bindings" if bench.orders.rehearse else "jax_cupy", 2)


def _checkpoints(bench: Bench, kind: str, size: int) -> None:
    """Some rounds of a target with so many GiB."""
    wanted, nvml = size * bench.orders.unit, Nvml()
    if not bench.has_time(20 + 4 * size):
        bench.append("left_out", size)
        return
    with bench.filled(kind, wanted) as one:
        copied = nvml.used() - one.empty
        for repeat in range(bench.orders.repeats):
            if not bench.has_time(10 + 2 * size):
                bench.append("left_out", f"{size} repeat {repeat}")
                break
            away = park(one.driver, wanted)
            left, listed = nvml.used() - one.empty, nvml.of(one.target.pid)
            back = resume(one.driver, wanted)
            bench.append(
                "rounds",
                {
                    "gib": size,
                    "repeat": repeat,
                    "bytes": copied,
                    "park": away,
                    "resume": back,
                    "park_bytes_per_second": copied / away["seconds"],
                    "resume_bytes_per_second": copied / back["seconds"],
                    "left_on_gpu": left,
                    "listed_while_parked": listed,
                },
            )
            if left > RESIDUE:
                raise Wrong(f"{left} bytes are left on the GPU after parking")
            one.is_whole()
        if kind == "torch":
            bench.append("step_after", one.target.call("step"))


def locks(bench: Bench) -> None:
    """Locking a torch program with its memory in place: how long it and the unlock take.

    The program is locked while it is asked for its digest, which must wait, and be the same.
    """
    nvml = Nvml()
    with bench.filled(bench.torch_target, 8 * bench.orders.unit) as one:
        full = nvml.used()
        for repeat in range(5 * bench.orders.repeats):
            ours, theirs = socket.socketpair()
            with ours, theirs, ThreadPoolExecutor(1) as pool:
                ours.settimeout(30.0)
                lock = pool.submit(one.driver.lock, LOCKED_FOR + 5.0, theirs, "locked")
                if not ours.recv(100):
                    raise Wrong(f"lock {repeat}: {told(lock.result())}")
                used, began = nvml.used(), time.monotonic()
                end = threading.Timer(LOCKED_FOR, ours.send, (b"unlock",))
                end.start()
                one.is_whole()
                waited = time.monotonic() - began
                outcome = lock.result()
            bench.append("rounds", {**outcome.seconds, "a_call_waited": waited})
            if outcome.result is not Result.DONE:
                raise Wrong(f"unlock {repeat}: {told(outcome)}")
            if used != full:
                raise Wrong(f"{used} bytes while locked, {full} before")
            if waited < LOCKED_FOR:
                raise Wrong(f"a call took {waited} s while the process was locked")
        for phase in ("lock", "unlock"):
            seconds = [one[phase] for one in bench.notes["rounds"]]
            most = max(seconds)
            bench.note(phase, {"median": statistics.median(seconds), "most": most})
        worst = bench.notes["lock"]["most"]
        bench.note("aim", {"wanted": LOCK_AIM, "worst": worst, "met": worst <= LOCK_AIM})


def grant(bench: Bench) -> None:
    """A lease is taken before CUDA starts, and CUDA then sees its GPU only."""
    from support.scripted_node import SECRET, ScriptedNode, Visitor

    from jupyter_gpushare.protocol.messages import Method

    nvml = Nvml()
    gpu = {"uuid": nvml.uuid, "index": 0, "name": "GPU", "memory": 8 * GIB, "capacity": 80 * GIB}

    def script(visitor: Visitor) -> None:
        visitor.welcome(1.0)
        call = visitor.expect(Method.REQUEST)
        visitor.answer(call, {"lease": "lease-1", "secret": SECRET, "gpus": [gpu], "state": "held"})
        visitor.live()

    with ScriptedNode(script) as node:
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_GPUSHARE")},
            "JUPYTER_GPUSHARE_SOCKET": os.fspath(node.socket),
            "JUPYTER_GPUSHARE_ACQUIRE": "import" if bench.orders.rehearse else "first-use",
            "DEVICE": bench.device,
            "JUPYTER_GPUSHARE": "on",
        }
        seen = _in_python(_GRANT, environ)
        asked = len(node.calls(Method.REQUEST))
    bench.note("seen", seen)
    if seen["visible"] != nvml.uuid or asked != 1:
        raise Wrong(f"asked {asked} times; {seen}")
    if not bench.orders.rehearse and (seen["gpu_open_after_import"] or not seen["gpu_open_at_end"]):
        raise Wrong(f"CUDA started at another moment than at its first use: {seen}")


_GRANT = """
import json, os
import jupyter_gpushare._boot
jupyter_gpushare._boot.install()

def gpu_open():
    names = (f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd"))
    return any(os.readlink(n).startswith("/dev/nvidia-uvm") for n in names if os.path.islink(n))

import torch
after_import = gpu_open()
x = torch.ones(16, device=os.environ["DEVICE"])
print(json.dumps({
    "gpu_open_after_import": after_import,
    "gpu_open_at_end": gpu_open(),
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "sum": float(x.sum()),
}))
"""


def out_of_memory(bench: Bench) -> None:
    """Another process takes what was freed. It may end first, and then all is well.

    A restore that meets it is the hazard: the process is not to be saved.
    """
    wanted = 8 * bench.orders.unit
    with bench.helper() as drive, Target("bindings") as target:
        target.call("start")
        target.call("build", wanted)
        digest, checkpoints = target.call("digest"), drive(target)
        for stays in (False, True):
            park(checkpoints, wanted)
            with Target("bindings") as other:
                free, _ = other.call("start")
                other.call("allocate", free - bench.orders.unit)
                if stays:
                    first = checkpoints.resume(None, deadline_for(wanted))
                    bench.note("restore_without_room", told(first))
                    if first.result is Result.DONE:
                        raise Wrong("it was restored into a GPU that had no room")
            if not stays:
                bench.note("restore_when_it_has_ended", resume(checkpoints, wanted))
                if target.call("digest") != digest:
                    raise Wrong("it is not what it was before another process was there")
        second = checkpoints.resume(None, deadline_for(wanted))
        bench.note("restore_with_room_again", told(second))
        if second.result is Result.DONE:
            bench.note("recovered", target.call("digest") == digest)
            bench.end(target, checkpoints)


# -- helpers ------------------------------------------------------------------------------------


def _allocator(bench: Bench, torch: Any) -> Any:
    if bench.orders.rehearse:
        from support.torch_cpu import CpuAllocator

        gc.collect()
        gc.freeze()  # what there is already need not be walked through each time
        return CpuAllocator()
    from jupyter_gpushare.client.adapters.parkers.allocator import CudaAllocator

    torch.cuda.init()
    return CudaAllocator(torch)


def _users_code(allocator: Any) -> Any:
    import contextlib

    return allocator.user() if hasattr(allocator, "user") else contextlib.nullcontext()


def _in_python(code: str, environ: dict[str, str]) -> Any:
    """The JSON that a program prints last. Its import of a framework is a wish for a GPU."""
    from support.program import program

    done = subprocess.run(
        [sys.executable, program(code)],
        env={**os.environ, **environ, "PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if done.returncode:
        raise Wrong(f"exit {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


#: The sections, the most telling first and the most dangerous last, with the seconds of each.
SECTIONS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "versions": (versions, 60),
    "walls": (walls, 60),
    "notebooks": (notebooks, 120),
    "servers": (servers, 280),
    "two_compute": (two_compute, 150),
    "turns_by_lock": (turns_by_lock, 130),
    "out_of_memory_in_a_cell": (out_of_memory_in_a_cell, 60),
    "quota": (quota, 60),
    "elastic": (elastic_job, 200),
    "sweeps": (sweeps, 120),
    "storage": (storage, 120),
    "driver": (driver, 190),
    "locks": (locks, 60),
    "jax_cupy": (jax_cupy, 70),
    "grant": (grant, 50),
    "out_of_memory": (out_of_memory, 60),
}


def main(arguments: list[str]) -> int:
    """Do one section; its end goes to the result file."""
    name, orders = arguments
    bench = Bench(Orders(**json.loads(orders)))
    try:
        SECTIONS[name][0](bench)
    except Skipped as error:
        bench.note("skipped", str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the section's result
        traceback.print_exc()
        bench.note("failed", f"{type(error).__name__}: {error}")
    else:
        bench.note("done", True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
