"""The facts of a kind of GPU are found by the names that NVML and people use."""

from __future__ import annotations

import pytest

from jupyter_gpushare.predict.kinds import KINDS, hardware_of, named

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", 79, "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", 39, "A100 40GB"),
        ("Tesla V100-SXM2-32GB", 32, "V100 32GB"),
        ("NVIDIA H100 80GB HBM3", 79, "H100"),
        ("NVIDIA H100 PCIe", 79, "H100 PCIe"),
        ("NVIDIA H200", 139, "H200"),
        ("NVIDIA GeForce RTX 3090", 24, "RTX 3090"),
        ("NVIDIA GeForce RTX 2080 Ti", 11, "RTX 2080 Ti"),
        ("NVIDIA L40S", 44, "L40S"),
        ("Tesla T4", 15, "T4"),
        ("Simulated A100 80GB (80 GiB)", 80, "A100 80GB"),
    ],
)
def test_a_gpu_has_the_facts_of_its_kind_and_its_own_memory(name: str, gib: int, kind: str) -> None:
    fact = next(one for one in KINDS if one.name == kind)
    found = hardware_of(name, gib * GIB)
    assert (found.name, found.memory) == (name, gib * GIB)
    assert (found.flops, found.bandwidth) == (fact.flops, fact.bandwidth)
    assert (found.capability, found.cores) == (fact.capability, fact.cores)
    assert hardware_of(name, GIB, 9.9, 77).cores == 77, "the driver knows better"


def test_a_mig_device_has_its_part_and_an_unknown_gpu_what_the_driver_tells() -> None:
    whole = next(one for one in KINDS if one.name == "A100 40GB")
    part = hardware_of("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20 * GIB)
    assert part.flops == pytest.approx(whole.flops * 3 / 7)
    assert part.cores == round(whole.cores * 3 / 7)
    unknown = hardware_of("Abacus", GIB, 1.0, 7)
    assert (unknown.flops, unknown.capability, unknown.cores) == (0.0, 1.0, 7)


def test_people_may_name_a_kind_as_they_like() -> None:
    for name in ("a100-80gb", "A100 80GB", "A100_80GB"):
        assert getattr(named(name), "name", "") == "A100 80GB"
    assert getattr(named("A100"), "name", "") == "A100 40GB", "the first one of several"
    assert named("A1") is None
