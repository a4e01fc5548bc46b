"""Whether a wall keeps CUDA from a GPU, and the driver limits a control group's memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hardware.bench import Bench, Nvml, Skipped, Wrong
from hardware.targets import Target

from jupyter_gpushare.walls import helper

if TYPE_CHECKING:
    from support.cuda import CudaWorld
    from support.walls import WalledHost

#: The first driver that limits the memory of a control group.
LIMITS_MEMORY = 615
#: Two users who need not exist, each with a control group.
ANN, BOB = 60001, 60002
MIB = 2**20
#: What the kernel says at a wall.
DENIED = "Operation not permitted"
#: The driver's files that are no GPU's; they stay open to everybody.
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def walls(bench: Bench) -> None:
    """First what is missing here, then devices in any case, then memory where the driver can."""
    from support.walls import WHY_NOT, walled_host

    with tempfile.TemporaryDirectory() as scratch:
        pretend = _two_gpus(Path(scratch)) if bench.orders.rehearse else {}
        told = Nvml().facts()["driver"]
        if is_older := int(told.partition(".")[0]) < LIMITS_MEMORY:
            bench.note("lacks", f"driver {told} is older than {LIMITS_MEMORY}")
        if WHY_NOT:
            raise Skipped(WHY_NOT)
        with walled_host(list(pretend) or None) as host:
            for minor, (uuid, world) in enumerate(pretend.items()):
                world.set_file(uuid, host.root / f"dev/nvidia{minor}")
            bench.note("level", level := host.ask(do="hello")["level"])
            _devices(bench, host)
            if level == "memory":
                _memory(bench, host)
            elif not is_older:
                raise Wrong(f"driver {told} limits no memory; is MIG on?")


def _two_gpus(scratch: Path) -> dict[str, CudaWorld]:
    """For a rehearsal: with one GPU nothing shows that another one stays closed."""
    from support.cuda import CudaWorld

    stubs = Path(os.environ["LD_LIBRARY_PATH"].split(":")[0])
    world = CudaWorld(stubs, scratch / "gpus.state")
    world.set_context(MIB // 2)
    uuids = [world.add_gpu(memory=141 * MIB, reserved=MIB) for _ in range(2)]
    os.environ.update(world.environ())
    return dict.fromkeys(uuids, world)


def _devices(bench: Bench, host: WalledHost) -> None:
    gpus = helper.Host(host.root).gpus()
    first, *others = gpus
    group = host.top / host.group(ANN)
    host.set(ANN)
    _check(bench, host, "without_a_lease", opened=[])
    with Target("bindings", group) as target:
        bench.note("contexts_without_a_lease", target.call("gpus"))
        bench.note("cuda_without_a_lease", _error(target, "start"))
        if target.call("gpus"):
            raise Wrong("a process without a lease makes a CUDA context")
    began = time.monotonic()
    host.set(ANN, first)
    bench.note("open_seconds", time.monotonic() - began)
    _check(bench, host, "with_a_lease", opened=gpus[first])
    with Target("bindings", group) as target:
        bench.note("contexts_with_a_lease", target.call("gpus"))
        if target.call("gpus") != 1:
            raise Wrong(f"with a lease on one of {1 + len(others)} GPUs: {bench.notes}")
        target.call("start")
        host.set(ANN)
        _check(bench, host, "after_the_lease", opened=[])
        # What is open stays open: for the measurements to find, not for a wall.
        bench.note("allocation_after_the_lease", _error(target, "allocate", MIB) or "done")


def _check(bench: Bench, host: WalledHost, when: str, opened: Iterable[str]) -> None:
    """Raises :class:`Wrong` unless the wall lets one open these GPUs' files and all that are none.

    Who may open a file without a wall is the host's business.
    """
    of_gpus = {name for files in helper.Host(host.root).gpus().values() for name in files}
    there = [name for name in CONTROL if (host.root / "dev" / name).exists()]
    seen = {name: host.opens(ANN, str(host.root / "dev" / name)) for name in [*of_gpus, *there]}
    bench.note(when, {name: why or "open" for name, why in seen.items()})
    if {name for name, why in seen.items() if why != DENIED} != {*opened, *there}:
        raise Wrong(f"{when}: {bench.notes[when]}")


def _memory(bench: Bench, host: WalledHost) -> None:
    uuid, unit = next(iter(helper.Host(host.root).gpus())), bench.orders.unit
    limits, group = helper.Memory(helper.Host(host.root), [uuid], {}), host.top / host.group(ANN)
    host.set(ANN, uuid, soft=4 * unit, hard=5 * unit)
    host.set(BOB, uuid, soft=0, hard=20 * unit)
    with (
        Target("bindings", group) as one,
        Target("bindings", host.top / host.group(BOB)) as other,
    ):
        bench.note("free_and_total_behind_the_wall", one.call("start"))
        other.call("start")
        bench.note("context", limits.used(group, uuid))
        bench.note("context_as_listed", Nvml().of(one.pid))
        one.call("allocate", 3 * unit)
        bench.note("with_3", limits.used(group, uuid))
        bench.note("beyond_the_limit", error := _error(one, "allocate", 3 * unit))
        if error is None or "OUT_OF_MEMORY" not in error:
            raise Wrong(f"3 more of 5: {error or 'they were had'}")
        other.call("allocate", 6 * unit)
        one.call("allocate", unit // 2)
        bench.note("with_3.5", used := limits.used(group, uuid))
        if not 3.5 * unit <= used <= 5 * unit:
            raise Wrong(f"{used} bytes are used where 3.5 were had and 5 can be")
    bench.note("when_all_ended", limits.used(group, uuid))


def _error(target: Target, name: str, *arguments: int) -> str | None:
    """What a call failed with."""
    try:
        target.call(name, *arguments)
    except AssertionError as error:
        return str(error)
    return None
