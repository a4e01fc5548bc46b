"""The status of a large node comes to administrators in pages; here they become one document."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

#: The lists that have pages, what names a row of each, and what its rows are sorted by.
_LISTS: Final = {"leases": ("id", "requested"), "queue": ("lease", "position")}


def whole(first: Mapping[str, Any]) -> Generator[int, Mapping[str, Any], dict[str, Any]]:
    """Turns pages: gives the number of each that is wanted, is sent it, and returns all as one.

    ``first`` is the page that was asked for without a number. A lease that moves to another page
    meanwhile is there once.
    """
    rows = {name: {row[key]: row for row in first[name]} for name, (key, _) in _LISTS.items()}
    page, more = 0, first.get("more", {})  # an older node manager has one page
    if not first["admin"] or not any(more.values()):
        return dict(first)
    while any(more.values()):
        page += 1
        rest = yield page
        for name, (key, _) in _LISTS.items():
            rows[name] |= {row[key]: row for row in rest[name]}
        more = rest["more"]
    found = {
        name: sorted(rows[name].values(), key=lambda row: row[order])
        for name, (_, order) in _LISTS.items()
    }
    return {**first, **found, "more": more}
