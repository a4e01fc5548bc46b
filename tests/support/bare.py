"""A tree without the satellites' folders: which they are, and which files need them."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import Path

import jupyter_gpushare
from jupyter_gpushare.satellites import ENGINES, VERBS, Part

PACKAGE = Path(jupyter_gpushare.__file__).parent
#: The folders of all satellites, and those that this tree has not.
_VERBS = [place for place, _said in (*VERBS.values(), *ENGINES.values())]
SATELLITES = frozenset(str(place).partition(".")[0] for place in (*Part, *_VERBS))
MISSING = frozenset(room for room in SATELLITES if not (PACKAGE / room).is_dir())


@functools.cache
def names_one_of(file: Path, rooms: Collection[str]) -> bool:
    """Whether a file of tests names a module of these rooms, or what it has from `support` does."""
    text = file.read_text(encoding="utf-8")
    if re.search(rf"jupyter_gpushare\.({'|'.join(rooms)})\b", text):
        return True
    helpers = re.findall(r"^from support\.?([.\w]*) import (.+)", text, re.MULTILINE)
    names = {module or name.strip() for module, told in helpers for name in told.split(",")}
    places = (Path(__file__).parent / f"{name.replace('.', '/')}.py" for name in names)
    return any(names_one_of(place, rooms) for place in places if place.is_file())


def is_of_a_verb(test: str, rooms: Collection[str]) -> bool:
    """Whether a case of a test, by its name, begins with a verb of these rooms."""
    verbs = [verb for verb, (place, _said) in VERBS.items() if place.partition(".")[0] in rooms]
    return any(re.search(rf"\[{verb}\b", test) for verb in verbs)
