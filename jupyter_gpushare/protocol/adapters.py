"""The entry points with which other packages add frameworks: their group, and their names."""

from __future__ import annotations

from typing import Final

#: An entry point's name here is a framework's top-level module, its value gives an adapter.
GROUP: Final = "jupyter_gpushare.adapters"


def framework_modules() -> frozenset[str]:
    """Top-level modules that installed packages have adapters for. Takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return frozenset(entry.name for entry in entry_points(group=GROUP) if entry.name.isidentifier())
