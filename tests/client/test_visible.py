"""A process sees the GPUs of its lease only, and its user's or launcher's choice among them.

Code that takes the names of its GPUs for numbers is told how to get numbers.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.client.session.visible import (
    THREADS,
    VISIBLE,
    Visible,
    choose,
    cuda_started,
)
from jupyter_gpushare.client.words.grant import Grant, GrantedGpu
from jupyter_gpushare.client.words.numbernote import NOTE, annotate
from jupyter_gpushare.protocol import names

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
GPUS = tuple(GrantedGpu(uuid, at, "A card", 8, 24) for at, uuid in enumerate((A, B)))
GRANT = Grant("lease", GPUS)


def test_shows_the_lease() -> None:
    environ: dict[str, str] = {}
    visible = Visible(environ)
    assert visible.show(GRANT) is None
    assert environ == {VISIBLE: f"{A},{B}"}
    assert visible.is_ours
    assert visible.show(Grant("lease", GPUS[:1])) is None, "our own value is nobody's wish"
    environ[VISIBLE] = "0"
    assert visible.show(GRANT) == "0", "it tells what it replaces"
    assert environ[VISIBLE] == f"{A},{B}"


def test_a_part_of_a_gpu_has_two_numbers() -> None:
    gpus = (GPUS[0]._replace(instance=1), GPUS[1])
    assert Grant("lease", gpus).words == "GPU 0:1 and GPU 1 (8 B of 24 B each)"


def test_names_the_gpus_by_index_where_that_was_asked() -> None:
    """The numbers are the node's own, whoever reads them, and children do the same."""
    gpus = tuple(gpu._replace(index=at) for gpu, at in zip(GPUS, (1, 3), strict=True))
    grant, environ = Grant("lease", gpus), dict[str, str]()
    Visible(environ, lambda: True).show(grant)
    assert environ == {
        VISIBLE: "1,3",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        names.VISIBLE_DEVICES: "indices",
    }
    launched = {**environ, VISIBLE: "3"}  # a launcher's choice for one of its workers
    assert Visible(launched, lambda: True).show_part(grant).gpus == gpus[1:]
    assert launched[VISIBLE] == "3"
    parts = tuple(gpu._replace(uuid=gpu.uuid.replace("GPU", "MIG")) for gpu in gpus)
    Visible(environ, lambda: True).show(Grant("lease", parts))
    assert environ[VISIBLE] == ",".join(part.uuid for part in parts), "these have no number"


def test_with_mps_a_predicted_share_bounds_what_it_computes_at_once(tmp_path: Path) -> None:
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    environ = dict(pipes)
    visible = Visible(environ)
    visible.show(GRANT._replace(share=30))
    assert THREADS not in environ, "MPS does not run"
    (tmp_path / "control").touch()
    visible.show(GRANT._replace(share=30))
    assert environ[THREADS] == "30"
    visible.show(GRANT._replace(share=40))
    assert environ[THREADS] == "40"
    visible.show(GRANT)
    assert THREADS not in environ, "nobody predicted it"
    users = {**pipes, THREADS: "70"}
    Visible(users).show(GRANT._replace(share=30))
    assert users[THREADS] == "70"


@pytest.mark.parametrize("nothing", ["", " ", "-1", "NoDevFiles"])
def test_no_gpu_is_a_wish(nothing: str) -> None:
    assert Visible({VISIBLE: nothing}).hidden_by_user


def test_hidden_by_us_is_no_wish() -> None:
    environ: dict[str, str] = {}
    visible = Visible(environ)
    visible.hide(children_may_ask=True)
    assert environ[VISIBLE] == ""
    assert not visible.hidden_by_user
    assert not Visible(dict(environ)).hidden_by_user, "a child may ask for its own"
    visible.hide(children_may_ask=False)
    assert not visible.hidden_by_user
    assert Visible(dict(environ)).hidden_by_user, "a child does as its parent"
    environ[VISIBLE] = "-1"
    assert visible.hidden_by_user, "set by the user after us"
    visible.hide(children_may_ask=True)
    assert Visible({**environ, VISIBLE: "-1"}).hidden_by_user, "its user's, and not its parent's"
    child = Visible(environ)
    child.show(GRANT)
    assert "JUPYTER_GPUSHARE_HIDDEN" not in environ


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", (A, B)),
        ("0", (A,)),
        ("1", (B,)),
        ("1,0", (B, A)),
        (" 1 , 0 ", (B, A)),
        (B, (B,)),
        ("GPU-bbbb", (B,)),
        ("2", (A, B)),
        ("0,0", (A, B)),
        ("GPU-", (A, B)),
        ("GPU-cccc", (A, B)),
        ("99999999999999999999", (A, B)),
        pytest.param("9" * 5000, (A, B), id="which Python reads as no number"),
        ("²", (A, B)),
    ],
)
def test_part_of_a_shared_lease(value: str, expected: tuple[str, ...]) -> None:
    environ = {VISIBLE: value}
    part = Visible(environ).show_part(GRANT)
    assert tuple(gpu.uuid for gpu in part.gpus) == expected
    assert environ[VISIBLE] == ",".join(expected)
    assert part.lease == GRANT.lease


@given(st.text(), st.integers(0, 3))
def test_choosing_never_invents_gpus(value: str, count: int) -> None:
    gpus = (*GPUS, GrantedGpu("MIG-1", 2, "A slice", 1, 1))[:count]
    chosen = choose(value, gpus)
    assert chosen is None or (set(chosen) <= set(gpus) and len(set(chosen)) == len(chosen))


def test_cuda_has_started_when_its_device_is_open() -> None:
    device = "/dev/full"
    assert not cuda_started(device)
    number = os.open(device, os.O_RDWR)
    try:
        assert cuda_started(device)
    finally:
        os.close(number)


@pytest.mark.parametrize("started", [True, False])
def test_cuda_has_started_when_torch_says_so(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    cuda = types.SimpleNamespace(is_initialized=lambda: started)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert cuda_started("/dev/none") is started
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # half imported
    assert cuda_started("/dev/none") is False


def error_of(text: str) -> ValueError:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int(text)
    return raised.value


def test_a_launcher_that_counts_is_told_once_and_other_errors_are_left_alone() -> None:
    error = error_of(A)
    outer = RuntimeError("the launcher failed")
    outer.__cause__ = error
    for _ in range(2):
        annotate(outer)
    assert error.__notes__ == [NOTE]
    assert "JUPYTER_GPUSHARE_VISIBLE_DEVICES=indices" in NOTE
    for other in (error_of("eight"), ValueError(A), KeyError(A)):
        annotate(other)
        assert not hasattr(other, "__notes__")
