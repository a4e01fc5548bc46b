"""Quotas are understood as people write them, or refused in words that say where and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.node.app import NodeManagerApp
from jupyter_gpushare.policy.words.model import Bytes, Gpu, GpuUuid, Quota
from jupyter_gpushare.quotas.config import NodeSize, configure, parse_quota

GIB = 2**30
NODE = NodeSize(4, 24 * GIB)


def gpu(index: int, memory: int) -> Gpu:
    return Gpu(GpuUuid(f"GPU-{index}"), index, "a GPU", Bytes(memory))


@pytest.mark.parametrize(
    ("given", "quota"),
    [
        ({}, Quota(4)),
        ({"gpus": "all"}, Quota(4)),
        ({"gpus": 2, "memory": "16GiB"}, Quota(2, Bytes(16 * GIB))),
        ({"gpus": 1, "memory": 0.5}, Quota(1, Bytes(12 * GIB))),
        ({"gpus": 1, "memory": "0.25"}, Quota(1, Bytes(6 * GIB))),
        ({"gpus": 1, "memory": 1.0}, Quota(1, Bytes(24 * GIB))),
        ({"gpus": 0, "weight": 2, "gpu_hours": 10}, Quota(0, weight=2.0, gpu_hours=10.0)),
        ({"gpus": 1, "idle_timeout": 600}, Quota(1, idle_timeout=600.0)),
        ({"gpus": 1, "idle_timeout": "1h30m"}, Quota(1, idle_timeout=5400.0)),
        ({"gpus": 1, "burst_memory": 0}, Quota(1, burst_memory=0.0)),
        ({"gpus": 1, "burst_memory": 0.9}, Quota(1, burst_memory=0.9)),
        ({"gpus": 1, "burst_memory": "60GiB"}, Quota(1, burst_memory=60.0 * GIB)),
    ],
)
def test_what_is_understood(given: dict[str, Any], quota: Quota) -> None:
    assert parse_quota("here", given, NODE) == quota


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("two", "a quota is a dict"),
        ({"gpu": 1}, "unknown gpu"),
        ({"gpus": 0.5}, "whole number"),
        ({"gpus": -1}, "whole number"),
        ({"gpus": True}, "whole number"),
        ({"gpus": 4097}, "whole number from 0 to 4096"),
        ({"weight": 2e6}, "weight"),
        ({"gpu_hours": 1e10}, "gpu_hours"),
        ({"idle_timeout": 1e10}, "idle_timeout"),
        ({"memory": 1.5}, "no part of a GPU"),
        ({"memory": 0.0}, "no part of a GPU"),
        ({"memory": "much"}, "no memory size"),
        ({"memory": "8 gigs"}, "no memory size"),
        ({"memory": "8"}, "Did you mean 8GiB"),
        ({"memory": 8}, "Did you mean 8GiB"),
        ({"burst_memory": "60"}, "burst_memory: .*Did you mean 60GiB"),
        ({"weight": 0}, "weight"),
        ({"gpu_hours": -1}, "gpu_hours"),
        ({"idle_timeout": "soon"}, "idle_timeout"),
        ({"burst_memory": "90%"}, "burst_memory: .*no memory size.*like 0.9"),
        ({"burst_memory": 1.5}, "burst_memory: .*no part of a GPU"),
        ({"burst_memory": False}, "burst_memory: .*no memory size"),
        ({"burst_memory": []}, "burst_memory: .*no memory size"),
    ],
)
def test_what_is_refused_says_where_and_why(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^here: .*{said}"):
        parse_quota("here", given, NODE)


def test_a_part_is_one_of_the_smallest_gpu_so_that_it_fits_on_any() -> None:
    node = NodeSize.of([gpu(0, 80 * GIB), gpu(1, 24 * GIB)])
    assert node == NodeSize(2, 24 * GIB)
    command = configure(0.0, node, {"gpus": 1, "memory": 0.5}, {}, {})
    assert command.default.memory == 12 * GIB


def test_without_gpus_a_configuration_is_still_read() -> None:
    command = configure(0.0, NodeSize.of([]), {"memory": 0.5}, {"g": {"gpus": "all"}}, {})
    assert command.default == Quota(0, Bytes(2 * 2**20))


def test_a_setting_that_nothing_has_is_refused_as_a_wrong_quota_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.py"
    config.write_text('c.Policy.min_idle = 1.0\nc.Policy.idle_timeot = "5m"\nc.Other.thing = 1\n')
    with pytest.raises(SystemExit) as left:
        NodeManagerApp().initialize([f"--config={config}"])
    assert left.value.code == 1
    said = "Policy.idle_timeot: there is no such setting; did you mean idle_timeout?"
    assert said in capsys.readouterr().err
