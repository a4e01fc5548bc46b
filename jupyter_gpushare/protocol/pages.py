"""The status of a large node comes to administrators in pages; here they become one document."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

#: The lists that have pages, what names a row of each, and what its rows are sorted by.
_LISTS: Final = {"leases": ("id", "requested"), "queue": ("lease", "position")}


def whole(first: Mapping[str, Any]) -> Generator[int, Mapping[str, Any], dict[str, Any]]:
    """Turns pages: gives the number of each that is wanted, is sent it, and returns all as one.

    ``first`` is the page that was asked for without a number. A lease that moves to a later page
    meanwhile is there once. One that moves to a page that was turned already is missed: where
    a page has fewer than the one before promised, all are turned once more.
    """
    # An older node manager has one page.
    if not first["admin"] or not any(first.get("more", {}).values()):
        return dict(first)
    whole, is_short = yield from _turned(first)
    if is_short:
        whole, _ = yield from _turned((yield 0))
    return whole


def _turned(
    first: Mapping[str, Any],
) -> Generator[int, Mapping[str, Any], tuple[dict[str, Any], bool]]:
    """All pages as one, and whether one had fewer rows than the one before promised."""
    rows = {name: {row[key]: row for row in first[name]} for name, (key, _) in _LISTS.items()}
    page, more, is_short = 0, first["more"], False
    while any(more.values()):
        page += 1
        rest = yield page
        for name, (key, _) in _LISTS.items():
            rows[name] |= {row[key]: row for row in rest[name]}
            is_short = is_short or len(rest[name]) + rest["more"][name] < more[name]
        more = rest["more"]
    found = {
        name: sorted(rows[name].values(), key=lambda row: row[order])
        for name, (_, order) in _LISTS.items()
    }
    return {**first, **found, "more": more}, is_short
