"""Tells before a cell runs whether it seems to use a framework.

Such a cell imports the framework, or names something that comes from it: its modules, its objects,
or functions and classes that name those. The answer need not be exact: a cell that uses a framework
unseen still runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

#: Other top-level modules whose objects mean that a framework is used.
_ALSO: Final = {"jaxlib": "jax", "cupyx": "cupy", "keras": "tensorflow"}
_US: Final = "jupyter_gpushare"
#: Lines of `%gpushare` that say what is to be held.
_ASKING: Final = ("request", "release", "cpu", "park", "resume")
#: The options before the code of `%timeit` and similar magics.
_OPTIONS: Final = re.compile(r"^(?:\s*-\w*(?:\s*\d+)?(?=\s))+")
_MOST: Final = 2000  # things that are looked at
_FIRST: Final = 8  # members of a list, a tuple or a dictionary that are looked at


def used_framework(
    cell: str,
    transform: Callable[[str], str],
    names: Mapping[str, Any],
    frameworks: Collection[str],
) -> str | None:
    """The framework among ``frameworks`` (top-level modules) that a cell uses; ``None``: none.

    ``transform`` makes Python of what IPython takes; ``names`` are the notebook's variables.
    """
    try:
        return next(iter([*_Look(frameworks, names).cell(cell, transform)]), None)
    except _AsksItself:
        return None


class _AsksItself(Exception):
    """The cell asks for GPUs itself, so we ask for none before it."""


class _Look:
    def __init__(self, frameworks: Collection[str], names: Mapping[str, Any]) -> None:
        self._frameworks = frameworks
        self._names = names
        self._seen: set[int] = set()

    def cell(self, text: str, transform: Callable[[str], str]) -> Iterator[str]:
        try:
            tree = ast.parse(transform(text))
        except (SyntaxError, ValueError, RecursionError):
            return  # it is no Python, or will be told so when it runs
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._module(alias.name)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield from self._module(node.module or "")
            elif isinstance(node, ast.Name) and node.id in self._names:
                yield from self._thing(self._names[node.id])
            elif isinstance(node, ast.Call):
                yield from self._magic(node, transform)

    def _magic(self, call: ast.Call, transform: Callable[[str], str]) -> Iterator[str]:
        """The code that a magic runs: ``%%time``'s cell, ``%timeit``'s line, ``%run``'s file."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        words = [one.value for one in call.args if isinstance(one, ast.Constant)]
        if name not in ("run_line_magic", "run_cell_magic") or not words:
            return
        # `%gpushare status` holds nothing, so the rest of its cell may still need a GPU.
        if words[0] == "gpushare" and "".join(map(str, words[1:2])).startswith(_ASKING):
            raise _AsksItself
        if words[0] == "run" and len(words) > 1:
            try:
                with open(str(words[1]).split()[0].strip("\"'"), encoding="utf-8") as file:
                    yield from self.cell(file.read(), lambda text: text)
            except (OSError, UnicodeDecodeError, IndexError):
                return
        for word in words[1:]:
            yield from self.cell(_OPTIONS.sub("", str(word)), transform)

    def _module(self, name: object) -> Iterator[str]:
        top = str(name).partition(".")[0]
        if top == _US:
            raise _AsksItself
        found = _ALSO.get(top, top)
        if found in self._frameworks:
            yield found

    def _thing(self, thing: Any, *, members: bool = True) -> Iterator[str]:
        if id(thing) in self._seen or len(self._seen) >= _MOST:
            return
        self._seen.add(id(thing))
        # Nothing is asked of an object itself, which might compute the answer.
        kind = type(thing)
        if issubclass(kind, ModuleType):
            yield from self._module(vars(thing).get("__name__", ""))
            for inner in list(vars(thing).values()):
                if type(inner) is ModuleType:
                    yield from self._module(vars(inner).get("__name__", ""))
        elif issubclass(kind, FunctionType):
            yield from self._module(thing.__globals__.get("__name__", ""))
            yield from self._function(thing)
        elif issubclass(kind, MethodType):
            yield from self._thing(thing.__func__)
            yield from self._thing(thing.__self__)
        elif issubclass(kind, type):
            yield from self._class(thing)
        else:
            yield from self._class(kind)
            if members and issubclass(kind, list | tuple | set | frozenset | dict):
                inside = thing.values() if issubclass(kind, dict) else thing
                for inner, _ in zip(inside, range(_FIRST), strict=False):
                    yield from self._thing(inner, members=False)

    def _function(self, function: FunctionType) -> Iterator[str]:
        space = function.__globals__
        for name in _names_of(function.__code__):
            if name in space:
                yield from self._thing(space[name])
        for cell in function.__closure__ or ():
            try:
                yield from self._thing(cell.cell_contents)
            except ValueError:
                continue  # it is empty

    def _class(self, kind: type) -> Iterator[str]:
        for base in type.mro(kind) if kind is not type else ():
            yield from self._module(base.__module__)
        # Only the notebook's own classes: a library's lead to all that it imports.
        if kind.__module__ == "__main__":
            for inner in list(vars(kind).values()):
                if isinstance(inner, FunctionType):
                    yield from self._thing(inner)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_of(inner)
