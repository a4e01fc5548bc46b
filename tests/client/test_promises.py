"""A cell is told what it is promised and whether it will be late, and the promise ends with it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.client.errors import GpuShareError, NotGranted, error_for
from jupyter_gpushare.client.requests.promises import Promises
from jupyter_gpushare.client.words.promises import News, Wish, clock, read_wish, share_words
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method

NOW = time.mktime((2026, 3, 2, 15, 30, 0, 0, 0, -1))


# -- words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "rate", "wish"),
    [
        (None, None, None),
        ("10m", None, Wish(600.0, None)),
        (90, None, Wish(90.0, None)),
        (None, "2", Wish(None, 2.0)),
        ("1h30m", 0.5, Wish(5400.0, 0.5)),
    ],
)
def test_what_is_named(deadline: object, rate: object, wish: Wish | None) -> None:
    assert read_wish(deadline, rate) == wish


@pytest.mark.parametrize(
    ("deadline", "rate"),
    [("soon", None), ("0s", None), (None, "0"), (None, "fast"), (None, float("nan")), (None, -1)],
)
def test_nonsense_is_refused_with_a_sentence(deadline: object, rate: object) -> None:
    with pytest.raises(ValueError, match=r"^it (is not|must be) "):
        read_wish(deadline, rate)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (5, "15:30:05"),
        (1200, "15:50"),
        (86400, "Tue 15:30"),
        (30 * 86400, "01 Apr 15:30"),
        (-3600, "14:30"),
    ],
)
def test_a_moment_on_the_readers_clock(seconds: float, words: str) -> None:
    assert clock(NOW + seconds, NOW) == words


def news(state: str, left: float | None = 1200.0, **more: Any) -> dict[str, Any]:
    told = {"state": state, "named": True, "left": left, "expected": None}
    return {**told, "message": "", "why": None, **more}


FULL = {"why": "full", "message": "other tasks have the rest of the GPU, and keep it"}


def test_a_cell_that_will_be_late_is_told_so_once_with_the_reason_and_the_new_estimate() -> None:
    said = News("This cell")
    assert said.text(news("on_time"), NOW) == "", "that was said when it was promised"
    text = said.text(news("late", expected=1920.0, **FULL), NOW)
    assert text == (
        "This cell will not be ready by 15:50: other tasks have the rest of the GPU, and keep it. "
        "New estimate: 16:02."
    )
    assert said.text(news("late", expected=1930.0, **FULL), NOW) == ""
    later = said.text(news("late", 600.0, expected=1900.0, **FULL), NOW + 600)
    assert later.endswith("New estimate: 16:11.")
    assert said.text(news("on_time", 500.0, expected=400.0), NOW + 700) == (
        "This cell is expected to be ready by 15:50:00 again."
    )
    assert said.text(news("late", 400.0, **FULL), NOW + 800).startswith("This cell will not be")


def test_a_missed_deadline_and_a_rate() -> None:
    missed = News("The command").text(news("missed", -5.0, expected=60.0, **FULL), NOW)
    assert missed.startswith("The command was not ready by 15:29:55: other tasks")
    slow = {"why": "slow", "message": "its steps take so long that all of the GPU is not enough"}
    assert News("This program").text(news("late", None, **slow), NOW) == (
        "This program will not make the steps a second that it was promised: its steps take so "
        "long that all of the GPU is not enough."
    )


def test_a_predicted_time_is_not_said_in_the_cell() -> None:
    assert News("This cell").text(news("late", named=False, **FULL), NOW) == ""
    assert News("This cell").text(news("kept"), NOW) == ""


@given(
    st.dictionaries(
        st.sampled_from(["state", "named", "left", "expected", "message"]),
        st.sampled_from(["late", "on_time", True, None, 1e300, -1, float("nan"), [], 5.0]),
    )
)
def test_a_notice_of_nonsense_raises_nothing(told: dict[str, Any]) -> None:
    News("This cell").text(told, NOW)


class FakeSession:
    """Keeps what is called, and answers as it is told to."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.refusal: GpuShareError | None = None

    def call(self, method: Method, **params: Any) -> dict[str, Any]:
        assert method is Method.PROMISE
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(params)
        return {"state": "held", "share": 40}

    def tell_surely(self, method: Method, **params: Any) -> None:
        self.calls.append({"over": True, **params})


class Scene:
    def __init__(self) -> None:
        self.session = FakeSession()
        self.lease: str | None = "L"
        self.said: list[str] = []
        self.begun: list[bool] = []
        self.promises = Promises(
            lambda: self.session,  # type: ignore[arg-type,return-value]
            lambda: self.lease,
            begins=lambda: self.begun.append(True),
            ends=lambda: self.session.calls.append({"ends": True}),
            what=lambda: "This cell",
            say=self.said.append,
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_promise_lasts_as_long_as_the_cell(scene: Scene) -> None:
    with scene.promises.kept(Wish(600.0, None), waited=100.0) as words:
        assert words.startswith("Promised: ready by ")
        assert words.endswith(
            "For it, it has 40 % of its GPU's time, whoever else wants to compute."
        )
        assert scene.begun == [True]
        assert scene.session.calls == [{"lease": "L", "deadline": 500.0, "rate": None}]
        scene.promises.heard(news("late", **FULL))
        assert len(scene.said) == 1
    assert scene.session.calls[1:] == [{"ends": True}, {"over": True, "lease": "L"}]
    scene.promises.heard(news("missed", **FULL))
    assert len(scene.said) == 1, "the cell has ended"
    with pytest.raises(ZeroDivisionError), scene.promises.kept(Wish(None, 2.0)):
        raise ZeroDivisionError
    assert scene.session.calls[-1] == {"over": True, "lease": "L"}, "also where it raises"


def test_without_turns_it_says_that_nothing_is_done_for_it() -> None:
    assert "nothing is done for it" in share_words(0)
    assert share_words(None) == share_words(True) == ""


def test_without_a_wish_nothing_is_sent(scene: Scene) -> None:
    with scene.promises.kept(None) as words:
        assert words == ""
    assert scene.session.calls == []


@pytest.mark.parametrize(
    ("lease", "waited", "kind", "said"),
    [
        ("L", 0.0, NotGranted, "best would be 12 min"),
        ("L", 120.0, NotGranted, "ready in 1 min, and waited 2 min"),
        (None, 0.0, GpuShareError, "jupyter gpushare run --deadline"),
    ],
    ids=["refused", "waited for longer than that", "no lease of its own"],
)
def test_what_cannot_be_promised_is_said_and_nothing_runs(
    scene: Scene, lease: str | None, waited: float, kind: type[GpuShareError], said: str
) -> None:
    scene.session.refusal = error_for(Reason.INFEASIBLE, "The best would be 12 min.")
    scene.lease = lease
    with pytest.raises(kind, match=said), scene.promises.kept(Wish(60.0, None), waited):
        pytest.fail("it ran")
    assert scene.session.calls == []
    scene.promises.heard(news("late", **FULL))
    assert scene.said == []


def test_a_lease_that_has_ended_takes_its_promise_along(scene: Scene) -> None:
    with scene.promises.kept(Wish(60.0, None)):
        scene.lease = None
    assert scene.session.calls[1:] == [{"ends": True}]
