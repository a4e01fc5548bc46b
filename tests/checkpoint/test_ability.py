"""A person reads in plain words whether the driver can checkpoint here, and if not, why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cuda import Call, Cuda, CudaProgram, CudaWorld, end_helper

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.node.checkpoint.worker import permutation
from jupyter_gpushare.protocol.checkpoint import Cause

from .conftest import Drive


def test_all_is_well(cuda_world: CudaWorld, gpu: str, program: CudaProgram, drive: Drive) -> None:
    ability = drive(program).probe()
    assert ability.usable, ability
    assert ability.cause is None
    assert "13.0" in ability.why
    assert (ability.cuda, ability.driver) == (13000, "580.0.stub")
    assert [each.uuid for each in ability.gpus] == [gpu]
    assert ability.gpus[0].persistence is True
    assert ability.cautions == ()
    assert not ability.migration  # where to, with one GPU?
    assert "no two GPUs" in ability.migration_why


def test_another_gpu_of_the_same_kind(cuda_world: CudaWorld, drive: Drive, place: Path) -> None:
    cuda_world.add_gpu(name="A")
    cuda_world.add_gpu(name="B")
    assert not drive(os.getpid()).probe().migration
    cuda_world.add_gpu(name="B")
    end_helper(place)  # CUDA counts its GPUs once, when it starts
    assert drive(os.getpid()).probe().migration


def test_an_old_driver(cuda_world: CudaWorld, program: CudaProgram, drive: Drive) -> None:
    cuda_world.set_version(12040)
    ability = drive(program).probe()
    assert (ability.usable, ability.cause) == (False, Cause.OLD_DRIVER)
    assert "12.4" in ability.why
    assert "12.8" in ability.why
    assert not ability.migration
    outcome = drive(program).park(5, 1)
    assert outcome.cause is Cause.NOT_SUPPORTED  # nothing was touched


def test_a_driver_without_migration(cuda_world: CudaWorld, drive: Drive) -> None:
    cuda_world.set_version(12080)
    for _ in range(2):
        cuda_world.add_gpu()
    ability = drive(os.getpid()).probe()
    assert ability.usable
    assert not ability.migration
    assert "13.0" in ability.migration_why


def test_it_may_not(cuda_world: CudaWorld, program: CudaProgram, drive: Drive) -> None:
    cuda_world.fault(Call.STATE, Cuda.OPERATING_SYSTEM)
    ability = drive(program).probe()
    assert (ability.usable, ability.cause) == (False, Cause.NOT_PERMITTED)
    assert "ptrace" in ability.why


def test_a_process_without_cuda_is_no_reason_against_it(
    cuda_world: CudaWorld, gpu: str, drive: Drive
) -> None:
    assert drive(os.getpid()).probe().usable


def test_mig_and_persistence(cuda_world: CudaWorld, program: CudaProgram, drive: Drive) -> None:
    other = cuda_world.add_gpu()
    cuda_world.set_persistence(other, False)
    ability = drive(program).probe()
    assert ability.usable
    assert len(ability.cautions) == 1
    assert "nvidia-smi -pm 1" in ability.cautions[0]
    for gpu in ability.gpus:
        cuda_world.set_mig_mode(gpu.uuid, True)
    ability = drive(program).probe()
    assert (ability.usable, ability.cause) == (False, Cause.NOT_SUPPORTED)
    assert "MIG" in ability.why


def test_no_driver(cuda_world: CudaWorld, program: CudaProgram, drive: Drive) -> None:
    cuda_world.refuse_cuda(Cuda.NO_DEVICE)
    ability = drive(program).probe()
    assert (ability.usable, ability.cause) == (False, Cause.NO_DRIVER)
    assert "CUDA_ERROR_NO_DEVICE" in ability.why
    cuda_world.refuse_cuda(None)
    assert drive(program).probe().usable


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
