"""Every reason for which a task may be asked for something has words for its people."""

from __future__ import annotations

import pytest

from jupyter_gpushare.policy.say.texts import ask_back_text, park_warning_text
from jupyter_gpushare.policy.words.recalls import Why

#: Asked while their code runs: nothing may be said of an idle kernel.
RUNNING = (*(Why.QUANTUM, Why.MOVED, Why.SERVED, Why.PROMISED, Why.BEYOND, Why.RECLAIMED_AT_WORK),)


@pytest.mark.parametrize("why", Why)
def test_why_a_task_was_asked(why: Why) -> None:
    said = ask_back_text(why)
    assert said.endswith(".")
    assert said.count(".") == 1, "one sentence"
    assert "idle" not in said or why not in RUNNING
    assert ("taken back" in said) is (why not in (*RUNNING, Why.WISHED))


@pytest.mark.parametrize("why", Why)
def test_why_an_idle_task_will_be_asked(why: Why) -> None:
    said = park_warning_text(why, 30.0)
    assert said.startswith("This kernel is idle: its GPU will be taken back in 30 seconds, ")
    assert "because " in said or why is Why.IDLE


def test_the_words_differ() -> None:
    assert len({ask_back_text(why) for why in Why}) == len(Why)
    assert ask_back_text(Why.OUT_OF_SERVICE, "A fan is broken.").endswith(": A fan is broken.")
