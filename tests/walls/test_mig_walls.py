"""A wall lets a control group open the MIG instance of its lease, and no other one.

The driver's tables and its library are doubles; its files for instances have the number of no
driver. So one that may be opened is told to be no device, and one that may not, to be denied.
"""

from __future__ import annotations

from support.node import until
from support.nvml import NvmlWorld
from support.nvml_fixtures import nvml_stub, nvml_world
from support.walls import FIRST, SECOND, WalledHost, host, needs_walls, walled_node

from jupyter_gpushare.protocol.messages import Method

__all__ = ["host", "nvml_stub", "nvml_world"]

ANN = 60001
MAY, MAY_NOT = "No such device or address", "Operation not permitted"
GIB = 2**30

pytestmark = needs_walls


class Instance:
    """One on the first GPU, with the files that a program opens to use it."""

    def __init__(self, host: WalledHost, world: NvmlWorld, gi: int, ci: int = 0) -> None:
        self.host = host
        inner = f"gpu0/mig/gi{gi}/ci{ci}"
        self.files = [host.add_capability(inner + "/access", 10 * gi + ci + 1)]
        outer = f"gpu0/mig/gi{gi}/access"
        if not (host.root / "proc/driver/nvidia/capabilities" / outer).exists():
            self.files.append(host.add_capability(outer, 10 * gi))
        self.uuid = world.add_mig(FIRST, instance=gi, compute_instance=ci)

    def opened(self) -> set[str]:
        """What the kernel says to who opens its own files."""
        return {self.host.opens(ANN, file) for file in self.files}


def test_the_files_of_one_instance_are_open(host: WalledHost, nvml_world: NvmlWorld) -> None:
    one, other = (Instance(host, nvml_world, gi) for gi in (1, 2))
    beside = Instance(host, nvml_world, 1, 1)  # in the same memory, with processors of its own
    empty = host.root / "proc/driver/nvidia/capabilities/gpu0/mig/gi3/access"
    empty.parent.mkdir()
    empty.touch()  # of one that is just being made
    assert host.set(ANN, one.uuid)["failed"] == {}
    assert [x.opened() for x in (one, other, beside)] == [{MAY}, {MAY_NOT}, {MAY_NOT}]
    assert host.gpus_of(ANN) == [0], "the GPU's own file"
    assert host.opens(ANN, str(host.root / "dev/nvidia-caps/nvidia-cap2")) == MAY, "no instance's"
    assert host.set(ANN, one.uuid, other.uuid, SECOND)["failed"] == {}
    assert [x.opened() for x in (one, other, beside)] == [{MAY}, {MAY}, {MAY_NOT}]
    assert host.gpus_of(ANN) == [0, 1]
    host.set(ANN)
    assert (one.opened(), host.gpus_of(ANN)) == ({MAY_NOT}, [])


def test_an_instance_that_came_later_is_closed_and_can_be_opened(
    host: WalledHost, nvml_world: NvmlWorld
) -> None:
    one = Instance(host, nvml_world, 1)
    host.set(ANN, one.uuid)
    unknown = host.add_capability("gpu0/mig/gi5/access", 50)
    assert host.opens(ANN, unknown) == MAY_NOT
    later = Instance(host, nvml_world, 3)
    assert host.set(ANN, later.uuid)["failed"] == {}
    assert (one.opened(), later.opened()) == ({MAY_NOT}, {MAY})


def test_memory_is_limited_on_the_gpus_without_instances_and_said_of_the_others(
    host: WalledHost, nvml_world: NvmlWorld
) -> None:
    one = Instance(host, nvml_world, 1)
    assert host.set(ANN, one.uuid, SECOND, soft=GIB, hard=2 * GIB)["failed"] == {}
    told = host.ask(do="hello")
    assert told["level"] == "devices"
    assert set(told["unlimited"]) == {FIRST, one.uuid}
    found = nvml_world.limits(str(host.top / host.group(ANN)))
    assert found == {SECOND: (GIB, 2 * GIB)}


def test_a_lease_on_an_instance_opens_it(host: WalledHost, nvml_world: NvmlWorld) -> None:
    instances = [Instance(host, nvml_world, gi) for gi in (1, 2)]
    nvml_world.remove(SECOND)
    with (
        walled_node(host, nvml_world) as node,
        host.walled(ANN) as ann,
    ):
        client = ann.client(node.socket)
        lease = client.request(gpus=1)
        (mine,) = (gpu["uuid"] for gpu in lease["gpus"])
        assert [one.opened() for one in instances] == [
            {MAY if one.uuid == mine else MAY_NOT} for one in instances
        ]
        assert node.status()["node"]["walls"]["level"] == "devices"
        client.call(Method.RELEASE, lease=lease["lease"])
        closed = [{MAY_NOT}, {MAY_NOT}]
        until(lambda: [one.opened() for one in instances] == closed, "closed again")
