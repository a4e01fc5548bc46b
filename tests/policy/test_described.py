"""All that is told of an event is said where it is declared: no other file has a list of events."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import jupyter_gpushare
from jupyter_gpushare.policy.words.events import EVENTS
from jupyter_gpushare.pool.words.events import EVENTS as OF_POOL

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
