"""A person reads in plain words whether the driver can checkpoint here, and if not, why not."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.cuda import Call, Cuda, CudaWorld

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.node.checkpoint.ability import judge
from jupyter_gpushare.node.checkpoint.worker import permutation
from jupyter_gpushare.protocol.checkpoint import Cause

from .conftest import Stage


def test_what_the_driver_says_now_is_told(stage: Stage, gpu: str) -> None:
    """All of it by one helper."""
    driver, world = stage.driver(), stage.world
    world.fault(Call.INIT, Cuda.NO_DEVICE)
    ability = driver.probe()
    assert (ability.usable, ability.cause) == (False, Cause.NO_DRIVER)
    assert "CUDA_ERROR_NO_DEVICE" in ability.why
    world.heal()
    ability = driver.probe()
    assert ability.usable, ability
    assert ability.cause is None
    assert "13.0" in ability.why
    assert (ability.cuda, ability.driver) == (13000, "580.0.stub")
    assert [(each.uuid, each.persistence) for each in ability.gpus] == [(gpu, True)]
    assert ability.cautions == ()
    assert not ability.migration  # where to, with one GPU?
    assert "no two GPUs" in ability.migration_why
    assert stage.drive(os.getpid()).probe().usable, "that it has no CUDA is no reason against it"
    world.fault(Call.STATE, Cuda.OPERATING_SYSTEM)
    ability = driver.probe()
    assert (ability.usable, ability.cause) == (False, Cause.NOT_PERMITTED)
    assert "ptrace" in ability.why


def test_an_old_driver_touches_nothing(stage: Stage) -> None:
    stage.world.set_version(12040)
    assert stage.driver().probe().cause is Cause.OLD_DRIVER
    assert stage.driver().park(5, 1).cause is Cause.NOT_SUPPORTED


GPU = {"uuid": "GPU-0", "name": "A", "persistence": True, "mig": False}
SAID = {"cuda": 13000, "driver": "580", "bindings": "13.0", "pairs": True, "gpus": [GPU, GPU]}


@pytest.mark.parametrize(
    ("other", "cause", "migration", "words"),
    [
        ({}, None, True, "can checkpoint processes"),
        ({"gpus": [GPU, {**GPU, "name": "B"}]}, None, False, "no two GPUs of one kind"),
        ({"gpus": [GPU, {**GPU, "mig": True}]}, None, False, r"GPU-0\) is in MIG mode"),
        ({"gpus": [{**GPU, "mig": True}] * 2}, Cause.NOT_SUPPORTED, False, "in MIG mode, which"),
        ({"gpus": [{**GPU, "persistence": False}]}, None, False, "nvidia-smi -pm 1"),
        ({"gpus": []}, Cause.NO_DRIVER, False, "shows no GPU"),
        ({"cuda": 12080}, None, False, "needs a driver of CUDA 13.0 or newer"),
        ({"cuda": 12070}, Cause.OLD_DRIVER, False, "of CUDA 12.7; checkpoints need .* 12.8"),
        ({"pairs": False}, None, False, "needs cuda-bindings 13.0.3"),
        ({"cuda": None, "code": 3}, Cause.DRIVER, False, r"does not say its version \(3\)"),
    ],
)
def test_what_the_driver_says_is_judged(
    other: dict[str, Any], cause: Cause | None, migration: bool, words: str
) -> None:
    found = judge({**SAID, **other})
    assert (found.usable, found.cause, found.migration) == (cause is None, cause, migration)
    assert re.search(words, "\n".join((found.why, found.migration_why, *found.cautions)))


def test_no_driver_library(place: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    ability = DriverCheckpoint(place=str(place), environ=environ).probe()
    assert not ability.usable
    assert ability.cause is Cause.NO_DRIVER


def test_no_bindings(cuda_world: CudaWorld, gpu: str, place: Path, tmp_path: Path) -> None:
    """As where the extra is not installed."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['cuda.bindings'] = None\n")
    environ = cuda_world.environ()
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    ability = DriverCheckpoint(place=str(place), environ=environ).probe()
    assert (ability.usable, ability.cause) == (False, Cause.NO_BINDINGS)
    assert "pip install 'cuda-bindings>=12.8'" in ability.why


def test_the_map_of_gpus_is_made_complete() -> None:
    gpus = ["a", "b", "c"]
    assert permutation({"a": "a"}, gpus) == {"a": "a", "b": "b", "c": "c"}
    assert permutation({"a": "c"}, gpus) == {"a": "c", "b": "b", "c": "a"}
    assert permutation({"a": "b", "b": "c"}, gpus) == {"a": "b", "b": "c", "c": "a"}
    with pytest.raises(ValueError, match="d is not among"):
        permutation({"a": "d"}, gpus)


@given(st.permutations(list("abcde")), st.sets(st.sampled_from("abcde")))
def test_the_complete_map_names_every_gpu_once(new: list[str], named: set[str]) -> None:
    wanted = {old: to for old, to in zip("abcde", new, strict=True) if old in named}
    full = permutation(wanted, list("abcde"))
    assert sorted(full) == sorted(full.values()) == list("abcde")
    assert wanted.items() <= full.items()
