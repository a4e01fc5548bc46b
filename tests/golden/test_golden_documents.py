"""The golden documents are what the product makes of the situations that they are named after."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden.situations import DOCUMENTS, PARTS, SITUATIONS
from hypothesis import given, strategies as st

from jupyter_gpushare.compose import leases, quotas
from jupyter_gpushare.compose.text import name, size, text
from jupyter_gpushare.protocol.documents import SUBJECTS, TONES
from jupyter_gpushare.protocol.said import FIGURE, says, text_of

ROWS: dict[str, Any] = json.loads(PARTS.read_text("utf-8"))


def test_each_document_is_of_a_situation() -> None:
    assert {*ROWS, *(file.stem for file in DOCUMENTS.glob("*.json"))} == set(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_documents_are_what_the_product_makes(name: str) -> None:
    """Where a change is meant: `PYTHONPATH=tests python -m golden.situations`, and look at it."""
    file = DOCUMENTS / f"{name}.json"
    whole = json.loads(file.read_text("utf-8")) if file.exists() else {}
    assert SITUATIONS[name]().kept() == (whole, ROWS.get(name, []))


def sentences() -> list[dict[str, Any]]:
    """All that is said in any of the situations."""
    found: list[dict[str, Any]] = []

    def look(value: Any) -> None:
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, dict | list):
                look(part)
        if isinstance(value, dict):
            found.extend(map(dict, says(value)))

    for situation in SITUATIONS.values():
        look(situation().documents())
    return found


#: What stands in a column, a list of facts or a line: words, and no sentence.
FRAGMENTS = {"who", "what", "where", "state", "memory", "held", "class", "asks", "waited", "place"}
FRAGMENTS |= {"ahead", "takes", "tasks", "busy", "used", "part", "health", "quota", "source"}
FRAGMENTS |= {"left", "weight", "budget", "host_memory", "node", "preset", "summary"}
FRAGMENTS |= {"countdown", "turns"}


def test_each_sentence_stands_alone_and_its_figures_are_known() -> None:
    for one in sentences():
        assert one["about"] in SUBJECTS, one
        assert one.get("tone", "plain") in TONES, one
        assert "{" not in FIGURE.sub("", one["text"]), one
        words = text_of(one, 1_700_000_000.0)
        assert "?" not in words, one
        assert "None" not in words, one
        if one["about"] not in FRAGMENTS:
            assert words[0].isupper() or not words[0].isalpha(), words
            assert words.endswith((".", "!")), words


@given(st.lists(st.sampled_from(["{", "}", "since", "bytes", " ", "7", "{since 7}"])).map("".join))
def test_no_name_is_a_figure_nor_a_part_of_one(word: str) -> None:
    told = text("{}{}{} 7}}{}", word, name(word), word, size(1)).replace("{bytes 1}", "")
    assert not FIGURE.search(told)
    assert name(told) == told or len(told) > 80


#: Of these subjects each word that there is.
WORDS = (
    ("state", {word for _tone, word, _hint in leases.STATES.values()} - {"waiting", "ended"}),
    ("state", {word for _tone, word, _hint in leases._SERVERS.values()}),
    ("parked", set(leases._RUNGS.values())),
    ("interrupted", set(leases._INTERRUPTIONS.values())),
    ("ability", set(leases._ABILITIES.values())),
    ("over", set(leases._OVER_NEXT.values())),
    ("promise", {f"The reason: {why}." for why in leases.WHY_LATE.values()}),
    ("promise", set(leases._PROMISES.values())),
    ("source", set(quotas._SOURCES.values())),
)


def test_some_situation_has_each_word() -> None:
    said: dict[str, str] = {}
    for one in sentences():
        text = FIGURE.sub("{}", one["text"])
        said[one["about"]] = f"{said.get(one['about'], '')}\n{text}"
    missing = {word for about, known in WORDS for word in known if word not in said[about]}
    # A promise that is over leaves its row at once.
    assert missing <= {"Kept", "It was promised", f"The reason: {leases.WHY_LATE['undone']}."}
