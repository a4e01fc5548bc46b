"""A sweep gives each model a GPU and one end, in stories and in random histories.

The best model is said, and its row says what is whose.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from jupyter_gpushare.jobs import core
from jupyter_gpushare.jobs.best import Best, best
from jupyter_gpushare.jobs.core import Card, End, Phase, Pick, Row, State
from jupyter_gpushare.jobs.records import Model
from jupyter_gpushare.jobs.verb import SweepApp


def wrong(state: State) -> list[str]:
    """What must never be, in sentences."""
    given = [card for number in state.running for card in state.models[number].cards]
    listed = [row.card for row in state.table]
    queued = {model.number for model in state.models if model.phase is Phase.QUEUED}
    running = {model.number for model in state.models if model.phase is Phase.RUNNING}
    never = {
        "two models have one card": len(given) != len(set(given)),
        "a card is listed twice": len(listed) != len(set(listed)),
        "a card that a model has is listed": bool(set(given) & set(listed)),
        "the queue is not the models that have not run": sorted(state.queue) != sorted(queued),
        "the running ones are not those in the phase running": state.running != running,
    }
    return [said for said, is_so in never.items() if is_so]


def rows(host: str, *gpus: str, free: int = 8) -> list[Row]:
    return [Row(Card(host, gpu), free) for gpu in gpus]


def begun(count: int, **how: Any) -> State:
    return core.begin([(Phase.QUEUED, 0)] * count, **how)


def round_of(state: State, **idle: list[Row]) -> State:
    state = core.registered(state, idle)
    for host, listed in idle.items():
        state = core.answered(state, host, listed)
    return state


def test_nothing_is_drawn_before_all_hosts_were_asked() -> None:
    state = core.registered(begun(3), ["a", "b"])
    state = core.answered(state, "a", rows("a", "0"))
    assert core.drawn(state)[1] is None
    state = core.skipped(state, "b")
    assert core.answered(state, "b", rows("b", "0")) == state, "too late for this round"
    state, sent = core.drawn(state)
    assert (sent.number, sent.cards) == (0, (Card("a", "0"),))
    assert state.table == ()


def test_a_card_that_was_given_is_not_listed_again_before_its_model_has_ended() -> None:
    state, sent = core.drawn(round_of(begun(3), a=rows("a", "0")))
    assert sent is not None
    assert core.wants_round(state)
    state = round_of(state, a=rows("a", "0"))  # the host does not see yet that it is busy
    assert state.table == ()
    state, _ = core.ended(state, 0, 1, End.DONE)
    assert round_of(state, a=rows("a", "0")).table


@pytest.mark.parametrize(
    ("end", "phase"),
    [
        (End.DONE, Phase.DONE),
        (End.OWN_FAULT, Phase.FAILED),
        (End.HOST_FAULT, Phase.QUEUED),
        (End.NO_ROOM, Phase.QUEUED),
        (End.PREEMPTED, Phase.QUEUED),
    ],
)
def test_what_an_end_means(end: End, phase: Phase) -> None:
    state, _ = core.drawn(round_of(begun(2), a=rows("a", "0")))
    state, final = core.ended(state, 0, 1, end)
    assert state.models[0].phase is phase
    assert final is (None if phase is Phase.QUEUED else phase)
    assert core.ended(state, 0, 1, End.DONE) == (state, None), "a second end counts for nothing"


def test_a_model_whose_hosts_always_fail_fails() -> None:
    state, final = begun(1), None
    for attempt in range(1, core.MOST_HOST_FAULTS + 1):
        assert final is None
        state, _ = core.drawn(round_of(state, a=rows("a", "0")))
        state, final = core.ended(state, 0, attempt, End.HOST_FAULT)
    assert final is Phase.FAILED


def test_the_owner_grants_another_card() -> None:
    state = round_of(begun(3), a=rows("a", "0", "1", "2"))
    state, one = core.drawn(state)
    state, two = core.drawn(state)
    assert one is not None
    third = state.table[0].card
    state = core.granted(state, 0, 1, [two.cards[0].gpu])
    assert state.models[0].cards == two.cards
    assert state.models[1].cards == one.cards
    state = core.granted(state, 1, 1, [third.gpu])
    assert state.models[1].cards == (third,)
    assert [row.card for row in state.table] == list(one.cards)
    assert not wrong(state)


def test_several_cards_are_of_one_host() -> None:
    state = round_of(begun(2, gpus=2), a=rows("a", "0"), b=rows("b", "0", "1"))
    state, sent = core.drawn(state)
    assert {card.host for card in sent.cards} == {"b"}
    assert len(set(sent.cards)) == 2
    assert core.drawn(state)[1] is None
    assert core.wants_round(state), "one card is no room for two"


def test_random_picks_are_uniform_and_repeatable() -> None:
    def picks(seed: int) -> list[Card]:
        state, found = begun(1000, seed=seed), []
        for _ in range(1000):
            listed = {host: rows(host, "0", "1", "2", "3") for host in "abc"}
            state, sent = core.drawn(round_of(state, **listed))
            found.append(sent.cards[0])
            state, _ = core.ended(state, sent.number, 1, End.DONE)
        return found

    one = picks(7)
    assert one == picks(7)
    assert one != picks(8)
    expected = 1000 / 12
    chi = sum((n - expected) ** 2 / expected for n in Counter(one).values())
    assert len(Counter(one)) == 12
    assert chi < 31.3, "above that with a probability of 0.001 (11 degrees of freedom)"


def test_most_free_picks_the_card_with_most_free() -> None:
    state = begun(2, pick=Pick.MOST_FREE)
    state = round_of(state, a=rows("a", "0", free=3), b=rows("b", "0", free=5))
    state, sent = core.drawn(state)
    assert sent.host == "b"


def test_a_sweep_that_is_loaded_again_runs_what_has_not_ended() -> None:
    phases = (Phase.DONE, Phase.QUEUED, Phase.FAILED, Phase.QUEUED)
    state = core.begin([(phase, number) for number, phase in enumerate(phases)])
    assert state.queue == (1, 3)
    assert [model.attempt for model in state.models] == [0, 1, 2, 3]


@settings(max_examples=150)
@given(st.data())
def test_random_histories(data: st.DataObject) -> None:
    hosts = ["a", "b", "c"]
    cards = [Card(host, str(gpu)) for host in hosts for gpu in range(3)]
    count, gpus = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 2))
    state = begun(count, gpus=gpus, seed=data.draw(st.integers(0, 9)))
    results: Counter[int] = Counter()
    told: list[tuple[int, int, End]] = []
    for _ in range(data.draw(st.integers(0, 60))):
        what = data.draw(
            st.sampled_from(["round", "answer", "skip", "draw", "grant", "end", "old"])
        )
        if what == "round":
            state = core.registered(state, hosts)
        elif what == "answer":
            host = data.draw(st.sampled_from(hosts))
            own = [card for card in cards if card.host == host]
            idle = data.draw(st.lists(st.sampled_from(own), unique=True))
            state = core.answered(state, host, [Row(card, 1) for card in idle])
        elif what == "skip":
            state = core.skipped(state, data.draw(st.sampled_from(hosts)))
        elif what == "draw":
            state, sent = core.drawn(state)
            if sent is not None:
                assert len(sent.cards) == gpus
                assert not set(sent.cards) & {row.card for row in state.table}
        elif what == "grant" and state.running:
            model = state.models[data.draw(st.sampled_from(sorted(state.running)))]
            own = [card.gpu for card in cards if card.host == model.cards[0].host]
            found = data.draw(
                st.lists(st.sampled_from(own), unique=True, min_size=gpus, max_size=gpus)
            )
            state = core.granted(state, model.number, model.attempt, found)
        elif what == "end" and state.running:
            model = state.models[data.draw(st.sampled_from(sorted(state.running)))]
            end = data.draw(st.sampled_from(End))
            told.append((model.number, model.attempt, end))
            state, final = core.ended(state, *told[-1])
            results[model.number] += final is not None
        elif what == "old" and told:
            before = state
            state, final = core.ended(state, *data.draw(st.sampled_from(told)))
            assert (state, final) == (before, None)
        assert not wrong(state)
    for number, model in enumerate(state.models):
        assert results[number] == (model.phase in (Phase.DONE, Phase.FAILED))


def test_hosts_that_name_no_card_are_asked_more_seldom_until_a_model_ends() -> None:
    pace, dues = core.Pace(every=1.0), []
    for _ in range(6):
        pace = pace.asked(100.0)
        dues.append(pace.due)
    assert dues == [101, 102, 104, 104, 104, 104]
    assert pace.freed().due == 101
    assert replace(pace, granted=True).asked(200.0).due == 201


# -- the best --------------------------------------------------------------------------------------

NAN = math.nan


@pytest.mark.parametrize(
    ("results", "given", "found"),
    [
        ([{"loss": 2.0}, {"loss": 1.0}], (), Best(1, "loss", 1.0, False)),
        ([{"accuracy": 2}, {"accuracy": 1}], (), Best(0, "accuracy", 2, True)),
        ([{"val_f1": 0.2}, {"val_f1": 0.4}], (), Best(1, "val_f1", 0.4, True)),
        ([{"loss": NAN}, {"loss": math.inf}, {"loss": 3.0}], (), Best(2, "loss", 3.0, False)),
        ([{"epoch": 1, "ok": True, "loss": 3}], (), Best(0, "loss", 3, False)),
        ([{"loss": 1, "n": 1}, {"loss": 2, "n": 0}], ("n",), Best(1, "n", 0, False)),
        ([{"loss": 1}, {"loss": 2}], ("loss", True), Best(1, "loss", 2, True)),
        ([{"loss": 1}, {"loss": 1}], (), Best(0, "loss", 1, False)),
        ([{"loss": NAN}, {"text": "x"}, {}], (), None),
        ([{"loss": 1}], ("accuracy",), None),
        ([{"huge": 10**400}], (), None),
        ([], (), None),
    ],
)
def test_the_best_is_the_least_or_the_most_of_a_number(
    results: list[dict[str, Any]], given: tuple[Any, ...], found: Best | None
) -> None:
    assert best(enumerate(results), *given) == found


def model(candidate: Any, result: Any) -> Model:
    ran = (1, "a", ("GPU-5c1a",), "GPU 0", 10.0, 12.5)
    return Model(7, candidate, Phase.DONE, *ran, result, "", "", {})


def test_nothing_of_a_result_takes_the_place_of_what_the_row_says() -> None:
    row = model({"lr": 0.1, "host": "x"}, {"lr": 0.2, "model": "m", "error": 3.0, "loss": 1}).row
    assert row == {
        **{"model": 7, "lr": 0.1, "given.host": "x", "result.lr": 0.2, "result.model": "m"},
        **{"result.error": 3.0, "loss": 1, "phase": "done", "host": "a", "gpus": "GPU 0"},
        **{"attempts": 1, "seconds": 2.5, "error": ""},
    }
    assert model(3, 4).row["x"] == 3
    assert model(3, 4).row["result"] == 4


def test_json_has_null_for_what_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    SweepApp().print_json({"models": [{"loss": NAN, "all": (1.0, -math.inf)}]})
    assert json.loads(capsys.readouterr().out) == {"models": [{"loss": None, "all": [1.0, None]}]}
