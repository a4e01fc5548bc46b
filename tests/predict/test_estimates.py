"""Estimates come from the package's models alone, and a smaller kind never has a smaller share.

A kind's facts are found by the names that NVML and people use; a straight program's peak is exact.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.predict.dryrun.tally import Step, Tally, peak
from jupyter_gpushare.predict.estimates import Basis, Predictor, WrongModels, power
from jupyter_gpushare.predict.features import GIB, Features, Hardware, Node, vector
from jupyter_gpushare.predict.kinds import KINDS, hardware_of, named
from jupyter_gpushare.predict.records import Record, read_lines, shipped
from jupyter_gpushare.predict.table import KINDS as NODES, SOURCE

PREDICTOR = Predictor.load()
RECORDS = shipped()
MEASURED = tuple({record.hardware.name: record.hardware for record in RECORDS}.values())

counts = st.integers(0, 10**13)
nodes = st.lists(
    st.builds(Node, st.sampled_from(NODES), counts, st.integers(1, 10**5), counts, counts),
    min_size=1,
    max_size=8,
    unique_by=lambda node: node.kind,
)
models = st.builds(
    Features,
    framework=st.just("torch"),
    nodes=nodes.map(tuple),
    batch=st.integers(1, 10**5),
    iterations=st.integers(1, 10**7),
    inputs=st.integers(1, 10**10),
    peak=st.integers(1, 10**12),
    training=st.booleans(),
)
unknown = st.builds(
    Hardware,
    st.just("new"),
    st.floats(0, 20),
    st.integers(GIB, 200 * GIB),
    st.integers(1, 30000),
    st.one_of(st.just(0.0), st.floats(1e9, 1e15)),  # 0: not known
    st.one_of(st.just(0.0), st.floats(1e9, 1e13)),
)
hardware = st.one_of(st.sampled_from((*KINDS, *MEASURED)), unknown)


@given(models, st.lists(hardware, min_size=1, max_size=8))
def test_a_smaller_kind_never_has_a_smaller_share(model: Features, kinds: list[Hardware]) -> None:
    found = PREDICTOR.predict(model, kinds)
    assert [one.kind for one in found] == [kind.name for kind in kinds]
    by_power = sorted(zip(kinds, found, strict=True), key=lambda pair: power(pair[0]))
    shares = [one.utilisation for _, one in by_power]
    assert shares == sorted(shares, reverse=True)
    for one in found:
        assert 1 <= one.utilisation <= 100
        assert 0 <= one.memory <= one.memory_p90
        assert 0 <= one.seconds <= one.seconds_p90


def test_the_estimate_of_a_kind_without_runs_is_the_dry_run() -> None:
    model = RECORDS[0].features
    found = PREDICTOR.predict(model, (*MEASURED, *KINDS))
    assert [one.basis for one in found] == [
        *[Basis.PREDICTED] * len(MEASURED),
        *[Basis.DRY_RUN] * len(KINDS),
    ]
    on_gpu = found[-1]
    assert on_gpu.memory == model.peak + 872 * 2**20
    assert on_gpu.error > found[0].error


def test_time_is_of_all_iterations() -> None:
    once, many = (replace(RECORDS[0].features, iterations=n) for n in (1, 250))
    (one,), (all_of,) = (PREDICTOR.predict(model, MEASURED[:1]) for model in (once, many))
    assert all_of.seconds == pytest.approx(250 * one.seconds)
    assert all_of.memory == one.memory


def test_the_models_know_the_runs_they_were_trained_with() -> None:
    """Not how good they are (the card says that), but that they are read as they were written."""
    wrong = []
    for record in RECORDS:
        (found,) = PREDICTOR.predict(record.features, (record.hardware,))
        wrong.append(abs(found.memory / record.memory - 1))
    assert sorted(wrong)[len(wrong) // 2] < 0.03


def test_a_vector_has_the_sources_numbers_first() -> None:
    model = Features("torch", (Node("Conv2D", 4800, 3, 1, 1),), 32, 2000, 1000, 5, True)
    kind = Hardware("K", 7.0, 32 * GIB, 2880)
    told = vector(model, kind)
    assert NODES[: len(SOURCE)] == SOURCE
    assert [place for place, number in enumerate(told[: len(NODES)]) if number] == [
        SOURCE.index("Conv2D")
    ]
    assert told[len(NODES) + 3 : len(NODES) + 5] == (7.0, 32.0)
    assert vector(model, kind, 55.0) == (*told, 55.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99, "table": 1}'])
def test_a_file_without_models_is_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    (place := tmp_path / "models.json").write_text(text)
    with pytest.raises(WrongModels, match="predictor retrain"):
        Predictor.load(place)


def test_a_record_is_a_line_and_other_lines_are_left_out() -> None:
    record = replace(RECORDS[3], name="", family="a b")
    newer = json.dumps({**json.loads(record.line()), "version": 2})
    lines = [record.line(), "no JSON", "{}", "[1]", newer, '{"version": 1}']
    assert list(read_lines(lines)) == [record]
    assert Record.read(json.loads(record.line())).features.flops == record.features.flops


def test_estimates_and_dry_runs_load_no_framework() -> None:
    program = (
        "import sys\n"
        "from jupyter_gpushare.predict import dryrun, estimates, kinds, records\n"
        "estimates.Predictor.load()\n"
        "print(sorted({'numpy', 'torch', 'sklearn', 'cloudpickle', 'jax'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


# -- kinds of GPU ------------------------------------------------------------------------------


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


# -- what is alive at once ---------------------------------------------------------------------


def test_a_value_lives_from_its_step_to_the_last_that_reads_it() -> None:
    chain = [
        Step(("x",), (("a", 10),)),
        Step(("a",), (("b", 20),)),
        Step(("b",), (("c", 5),)),
    ]
    # x and a and b; a is dead when c is made.
    assert peak([("x", 100)], chain, {"c"}) == 130


def test_a_value_that_is_kept_or_read_late_adds_to_what_comes_between() -> None:
    skip = [
        Step(("x",), (("a", 10),)),
        Step(("a",), (("b", 20),)),
        Step(("b",), (("c", 20),)),
        Step(("a", "c"), (("d", 1),)),
    ]
    assert peak([("x", 0)], skip, {"d"}) == 50
    assert peak([("x", 0)], skip, {"b", "d"}) == 51


def test_what_a_step_needs_inside_is_not_there_afterwards() -> None:
    steps = [Step((), (("a", 10),), inside=90), Step(("a",), (("b", 10),))]
    assert peak([], steps, {"b"}) == 100


def test_an_unread_value_is_dead_at_once() -> None:
    steps = [Step((), (("unread", 10),)), Step((), (("b", 10),))]
    assert peak([], steps, {"b"}) == 10


@pytest.mark.parametrize("sizes", [(2400, 2800, 4800), (4800, 2800, 2400)])
def test_of_equal_kinds_the_largest_count_of_elements_is_told(sizes: tuple[int, ...]) -> None:
    tally = Tally()
    for size in sizes:
        tally.add("Conv2D", size, flops=1, moved=2)
    tally.add("AddV2", 7, 0, 1, times=3)
    add, conv = tally.nodes()
    assert (conv.kind, conv.largest, conv.count, conv.flops, conv.bytes) == (
        "Conv2D", 4800, 3, 3, 6,
    )  # fmt: skip
    assert (add.kind, add.count, add.bytes) == ("AddV2", 3, 3)
