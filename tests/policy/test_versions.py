"""Nothing is added to the durable events without a version, and nothing is taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum, nonmember
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from jupyter_gpushare.policy.words.events import EVENTS
from jupyter_gpushare.policy.words.versions import FIRST, RELEASES, declared, settle, since

#: What each version brought, by path. Only append: it stands for ledgers on people's disks.
SHAPES = Path(__file__).with_name("event_shapes.json")
HOW = (
    "The shape of the durable events has changed. Add the release to RELEASES in policy/versions.py"
    " if it has no version yet, say `since` or `SINCE` beside what is new, and"
    " add it to tests/policy/event_shapes.json. What is there stays."
)


def parts(at: str, kind: Any, version: int) -> Iterator[tuple[str, int]]:
    """All that a value of this type may hold: fields, words and types, and since when."""
    if isinstance(kind, type) and is_dataclass(kind):
        version = max(version, declared(kind))
        yield at, version
        hints = get_type_hints(kind)
        for field in fields(kind):
            came = max(version, field.metadata.get("since", FIRST))
            yield from parts(f"{at}.{field.name}", hints[field.name], came)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        for word in kind:
            yield f"{at}={word.value}", max(version, declared(kind, word.name))
    elif get_origin(kind) in (Union, UnionType, tuple):
        for number, part in enumerate(get_args(kind)):
            inside = get_origin(kind) is tuple and get_args(kind)[-1] is not Ellipsis
            yield from parts(f"{at}[{number}]" if inside else at, part, version)
    elif kind is not Ellipsis:
        plain = getattr(kind, "__supertype__", kind)
        yield f"{at}: {plain.__name__}", version


def shapes() -> dict[str, int]:
    durable = {name: kind for name, kind in EVENTS.items() if kind.DURABLE}
    return dict(sorted(part for name, kind in durable.items() for part in parts(name, kind, FIRST)))


def test_what_is_added_to_durable_events_has_a_version() -> None:
    recorded = json.loads(SHAPES.read_text())
    assert shapes() == recorded, HOW
    assert max(recorded.values()) == max(RELEASES), "a version that nothing came with"


class Word(Enum):
    SINCE = nonmember({"NEW": 4})
    OLD = "old"
    NEW = "new"


@dataclass(frozen=True)
class Part:
    word: Word = Word.OLD
    spared: int = since(3, 0)
    added: int = since(5, 0)


@dataclass(frozen=True)
class Thing:
    name: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class NewThing:
    SINCE = 6
    name: str


def settled(value: Any) -> tuple[int, Any]:
    plain = asdict(value)
    return settle(value, plain), plain


def test_a_record_needs_no_newer_reader_than_what_it_says() -> None:
    assert settled(Thing("a", (Part(),))) == (3, {"name": "a", "parts": ({"word": Word.OLD},)})
    assert settled(Thing("a", (Part(), Part(Word.NEW))))[0] == 4
    version, plain = settled(Thing("a", (Part(spared=1), Part(added=7))))
    assert version == 5
    assert plain["parts"] == ({"word": Word.OLD, "spared": 1}, {"word": Word.OLD, "added": 7})
    assert settled(NewThing("a"))[0] == 6
