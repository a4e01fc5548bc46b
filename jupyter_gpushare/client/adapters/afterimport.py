"""Calls a function when one module, perhaps deep in a package, has been imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call ``call(module)`` once: now, or when the module ``name`` has run."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        sys.meta_path.insert(0, _Finder(name, call))
    else:
        call(module)


class _Finder:
    """Stands before the other finders until the module is imported."""

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        # Before it asks the others, which it would otherwise be one of.
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if (run := getattr(loader, "exec_module", None)) is not None:

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._imported(module)

            loader.exec_module = exec_module
        return spec
