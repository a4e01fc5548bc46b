"""Every reason for which a task may be asked for something has words for its people."""

from __future__ import annotations

import pytest

from jupyter_gpushare.policy.say.texts import ask_back_text, park_warning_text, stop_text
from jupyter_gpushare.policy.words.model import TaskKind
from jupyter_gpushare.policy.words.recalls import Why
from jupyter_gpushare.protocol import documents
from jupyter_gpushare.protocol.shapes import Words, shapes


@pytest.mark.parametrize("why", Why)
def test_each_reason_stands_in_every_sentence(why: Why) -> None:
    because = f"because {why.reason.because}."
    said = ask_back_text(why)
    assert said.endswith(because)
    assert ("idle" in said.replace(because, "")) is not bool(why.reason.asks)
    assert because in park_warning_text(why, 30.0)
    assert stop_text(why, 60.0).endswith(because)
    assert len({one.reason.because for one in Why}) == len(Why)


@pytest.mark.parametrize("kind", TaskKind)
def test_a_task_is_called_what_it_is_and_has_what_helps_it(kind: TaskKind) -> None:
    words = ask_back_text(Why.CONTENDED, kind=kind), park_warning_text(Why.IDLE, 9.0, kind=kind)
    for said in (*words, ask_back_text(Why.OUT_OF_SERVICE, "A fan.", kind)):
        for other in TaskKind:
            called = "program" if other is TaskKind.PROCESS else other.value
            assert (f"This {called} " in said) is (kind is other)
    assert ("Run a cell" in words[1]) is (kind is TaskKind.KERNEL)
    assert ("next request" in words[1]) is (kind is TaskKind.SERVER)


def test_the_administrators_words_come_first() -> None:
    assert ask_back_text(Why.OUT_OF_SERVICE, "A fan is broken.").endswith(": A fan is broken.")
    said = park_warning_text(Why.OUT_OF_SERVICE, 9.0, "A fan is broken.")
    assert "because A fan is broken. " in said


@pytest.mark.parametrize("why", Why)
def test_the_wire_declares_the_words_of_each_reason(why: Why) -> None:
    # Its own person's wish is not told.
    assert why is Why.WISHED or why.word in words_of(documents.Recall, "why")
    assert why.reason.warned in words_of(documents.Warning, "reason")
    assert not why.at_work or why.reason.leaves in words_of(documents.Interruption, "what")


def words_of(kind: type, field: str) -> tuple[str, ...]:
    (words,) = (one for one in shapes(kind)[field].said if isinstance(one, Words))
    return words
