"""``jupyter gpushare gpu``: GPUs are taken out of service and put back by index or UUID."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.livenode import LiveNode
from support.node import until

from jupyter_gpushare.cli.gpu import _uuid
from jupyter_gpushare.console.verb import Refused

WHY = "its fan is replaced"


@pytest.fixture
def node(shared_node: LiveNode) -> Iterator[LiveNode]:
    yield shared_node
    shared_node.here("gpu", "resume", "0", "1")


def test_a_gpu_is_drained_listed_waited_for_and_put_back(node: LiveNode) -> None:
    holds = node.hold()
    (lease,) = node.json("leases")["leases"]
    index = str(lease["gpus"][0]["index"])
    done = node.cli("gpu", "drain", index, "--reason", WHY)
    assert done.stdout == f"GPU {index}: out of service (1 lease there)\n"
    again = node.here("gpu", "drain", lease["gpus"][0]["uuid"], "--reason", WHY)
    assert "already out of service (1 lease there)" in again.stdout
    listed = node.cli("gpu").stdout
    assert listed == node.here("gpu", "list").stdout
    assert listed.count("Out of service") == 1
    assert f"{WHY}. 1 lease is still there." in listed
    assert f"{WHY}. 1 lease is still there." in node.here("status").stdout

    waits = node.spawn("run", "--gpus", "2", "--", "true")
    row = until(lambda: node.json("status")["queue"], "it waits")[0]
    assert WHY in row["message"]
    holds.communicate("\n", timeout=60)
    until(lambda: "It is empty." in node.here("gpu").stdout, "the GPU is empty")
    assert waits.poll() is None
    assert node.cli("gpu", "resume", index).stdout == f"GPU {index}: in service\n"
    assert waits.wait(60) == 0, waits.communicate()
    waits.communicate()
    assert node.here("gpu", "resume", index).stdout == f"GPU {index}: already in service\n"


def test_a_program_that_can_stop_does_before_its_gpu_is_to_be_empty(node: LiveNode) -> None:
    runs = node.spawn("run", "--requeue", "--", "sleep", "1000")
    (lease,) = until(lambda: node.json("leases")["leases"], "it has a GPU")
    index = str(lease["gpus"][0]["index"])
    node.here("gpu", "drain", index, "--reason", WHY)
    assert runs.poll() is None
    node.here("gpu", "drain", index, "--reason", WHY, "--within", "0")  # as soon as it can
    until(lambda: lease["id"] not in str(node.json("leases")), "it has stopped, and asks again")
    runs.terminate()
    runs.communicate(timeout=60)


def test_for_programs(node: LiveNode) -> None:
    drained = node.json("gpu", "drain", "0", "1", "--reason", WHY)["gpus"]
    assert [gpu["out_of_service"]["reason"] for gpu in drained] == [WHY, WHY]
    assert [gpu["uuid"] for gpu in node.json("gpu", "list")["gpus"]] == [g["gpu"] for g in drained]
    for gpu in node.json("gpu", "resume", "0", "1")["gpus"]:
        assert (gpu["out_of_service"], gpu["changed"]) == (None, True)


def test_the_whole_node_is_drained_and_what_was_out_before_stays_out(node: LiveNode) -> None:
    node.json("gpu", "drain", "1", "--reason", "its fan")
    gpus = len(node.json("gpu", "list")["gpus"])
    done = node.here("gpu", "drain", "--all", "--reason", WHY)
    assert done.stdout == f"{gpus - 1} GPU{'' if gpus == 2 else 's'} out of service\n"
    assert f": {WHY}" in node.here("gpu").stdout
    assert node.json("gpu", "resume", "--all") == {"count": gpus - 1}
    assert "its fan" in node.here("gpu").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("drain", "0"), 2, "say why"),
        (("drain", "--all"), 2, "say why"),
        (("drain", "0", "--all", "--reason", WHY), 2, "or say --all"),
        (("resume",), 2, "which GPU"),
        (("mend", "0"), 2, "list, drain or resume"),
        (("drain", "7", "--reason", WHY), 1, "no GPU 7"),
        (("drain", "GPU-nowhere", "--reason", WHY), 1, "no such GPU"),
        (("drain", "0", "--reason", "a\nb"), 1, "one line"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_changed(
    node: LiveNode, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = node.here("gpu", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert all(gpu["out_of_service"] is None for gpu in node.json("gpu")["gpus"])
    if code == 1:
        told = json.loads(node.here("gpu", *arguments, "--json").stdout)
        assert told["error"]["reason"] in ("bad_request", "unknown_gpu")


def test_a_part_of_a_gpu_has_two_numbers_and_its_board_has_one() -> None:
    """A number means what nvidia-smi shows: 1 is never a part of GPU 0."""
    gpus = [
        {"uuid": "MIG-0", "index": 0, "instance": 0},
        {"uuid": "MIG-1", "index": 0, "instance": 1},
        {"uuid": "GPU-1", "index": 1, "instance": None},
    ]
    assert [_uuid(name, gpus) for name in ("0:1", "1", "GPU-1")] == ["MIG-1", "GPU-1", "GPU-1"]
    with pytest.raises(Refused, match=r"GPU 0 is in MIG mode.*\(0:0, 0:1\)"):
        _uuid("0", gpus)
    with pytest.raises(Refused, match="no GPU 2"):
        _uuid("2", gpus)
