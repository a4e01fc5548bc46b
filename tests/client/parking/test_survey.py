"""Tensors move only where all memory of the process is accounted for; else it says why not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from jupyter_gpushare.client.adapters.parkers.survey import (
    DeviceSurvey,
    Survey,
    obstacles,
    rounded,
    unexplained,
)


def device(sizes: list[int], *, exact: bool = True, hidden: int = 0) -> DeviceSurvey:
    blocks = sum(map(rounded, sizes))
    return DeviceSurvey(
        device="cuda:0",
        storages=len(sizes),
        found=sum(sizes),
        blocks=blocks,
        requested=sum(sizes) + hidden if exact else None,
        allocated=blocks + rounded(hidden),
    )


SIZES = st.lists(st.integers(1, 2**40), max_size=30)
CLEAN = Survey(devices=(device([1, 4096]),))


@given(SIZES, st.booleans())
def test_what_is_all_found_reconciles(sizes: list[int], exact: bool) -> None:
    assert obstacles(Survey(devices=(device(sizes, exact=exact),))) == ()


@given(SIZES, st.integers(1, 2**40), st.booleans())
def test_nothing_hidden_is_overlooked(sizes: list[int], hidden: int, exact: bool) -> None:
    """Not a byte, however much rounding all the others could explain."""
    one = device(sizes, exact=exact, hidden=hidden)
    assert unexplained(one) >= (hidden if exact else rounded(hidden))
    (refusal,) = obstacles(Survey(devices=(one,)))
    assert "not Python" in refusal


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=9), st.booleans())
def test_more_than_the_allocator_knows_is_refused(sizes: list[int], exact: bool) -> None:
    one = device(sizes, exact=exact)
    fewer = replace(one, requested=0 if exact else None, allocated=0)
    (refusal,) = obstacles(Survey(devices=(fewer,)))
    assert "somewhere else" in refusal


def test_rounding_is_allowed_where_only_blocks_are_counted() -> None:
    one = DeviceSurvey("cuda:0", 2, found=600, blocks=1536, requested=None, allocated=1024)
    assert unexplained(one) == 0


def test_all_together_in_words() -> None:
    survey = replace(CLEAN, graphs=1, others=("CuPy", "JAX"), not_resizable=1, in_step=True)
    said = "; ".join(obstacles(survey))
    assert said.startswith("an optimizer step is running; ")
    assert "1 CUDA graph or memory pool" in said
    assert "CuPy and JAX may use" in said
    assert "memory of 1 tensor is not" in said
