"""What is recorded of an event is declared once, and none of its changes lacks a version."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum, nonmember
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import jupyter_gpushare
from jupyter_gpushare.policy.words.events import EVENTS
from jupyter_gpushare.policy.words.versions import FIRST, RELEASES, declared, settle, since
from jupyter_gpushare.pool.words.events import EVENTS as OF_POOL

#: What each version brought, a type a line. Only append: it stands for ledgers on people's disks.
SHAPES = Path(__file__).with_name("event_shapes.txt")
HOW = (
    "The shape of the durable events has changed. Add the release to RELEASES in policy/versions.py"
    " if it has no version yet, say `since` or `SINCE` beside what is new, and"
    " add it to tests/policy/event_shapes.txt. What is there stays."
)


def said(kind: Any, found: dict[str, list[str]]) -> str:
    """The name of a type; what it is made of goes to ``found``."""
    plain = getattr(kind, "__supertype__", kind)
    if get_origin(plain) in (Union, UnionType):
        return "|".join(said(part, found) for part in get_args(plain))
    if get_origin(plain) is tuple:
        parts = [part for part in get_args(plain) if part is not Ellipsis]
        return f"({', '.join(said(part, found) for part in parts)})"
    name: str = plain.__name__
    if is_dataclass(plain) and name not in found:
        found[name] = []
        hints = get_type_hints(plain)
        found[name] += [
            f"{field.name}: {said(hints[field.name], found)}"
            f" since {max(declared(plain), field.metadata.get('since', FIRST))}"
            for field in fields(plain)
        ]
    elif isinstance(plain, type) and issubclass(plain, Enum):
        found[name] = [f"{word.value} since {declared(plain, word.name)}" for word in plain]
    return name


def shapes() -> str:
    found: dict[str, list[str]] = {}
    for kind in EVENTS.values():
        if kind.DURABLE:
            said(kind, found)
    lines = [f"{name}: {', '.join(sorted(parts))}" for name, parts in sorted(found.items())]
    news = [line.replace(f" since {FIRST}", "") for line in lines]
    return "".join(textwrap.fill(new, 100, subsequent_indent="  ") + "\n" for new in news)


def test_what_is_added_to_durable_events_has_a_version() -> None:
    recorded = SHAPES.read_text()
    assert shapes() == recorded, HOW
    versions = {FIRST, *map(int, re.findall(r"since (\d+)", recorded))}
    assert max(versions) == max(RELEASES), "a version that nothing came with"


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


PACKAGE = Path(jupyter_gpushare.__file__).parent
KINDS = EVENTS.keys() | OF_POOL.keys()
#: A front end's words for what the wire names; an exception that has the name of an event; what
#: events of a ledger of the release before are called now.
NAMED = {"server/leaseevents.py", "elastic/raypolicy.py", "ledger/earlier.py"}
COLLECTIONS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


def is_event(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) in KINDS


def test_no_other_file_lists_events() -> None:
    any_kind = "|".join(KINDS)
    named, known = re.compile(rf"""["'](?:{any_kind})["']"""), re.compile(rf"\b(?:{any_kind})\b")
    lists = set()
    for path in PACKAGE.rglob("*.py"):
        text, where = path.read_text("utf-8"), path.relative_to(PACKAGE).as_posix()
        if named.search(text):
            lists.add(where)
        # What makes an event, and what it changes, has its meaning.
        if "/decide" not in where and len(set(known.findall(text))) > 3:
            several = (one for one in ast.walk(ast.parse(text)) if isinstance(one, COLLECTIONS))
            lists |= {where for one in several if sum(map(is_event, ast.iter_child_nodes(one))) > 3}
    assert lists == NAMED
