"""The status of a large node comes to administrators in pages; here they become one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

#: The lists that have pages, what names a row of each, and what its rows are sorted by.
_LISTS: Final = {"leases": ("id", "requested"), "queue": ("lease", "position")}


def has_more(page: Mapping[str, Any]) -> bool:
    """Whether a page follows this one. Others than administrators have one."""
    return page["admin"] and any(page.get("more", {}).values())


def is_short(pages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a page has fewer rows than the one before promised.

    A lease has then ended meanwhile, and another may have moved to a page that was already read.
    """
    return any(
        len(after[name]) + after["more"][name] < before["more"][name]
        for before, after in pairwise(pages)
        for name in _LISTS
    )


def joined(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All pages as one document; a lease that is on two of them is there once."""
    whole = dict(pages[0])
    if len(pages) > 1:
        for name, (key, order) in _LISTS.items():
            rows = {row[key]: row for page in pages for row in page[name]}
            whole[name] = sorted(rows.values(), key=lambda row: row[order])
        # What is not shown is said there, too; an older node manager says nothing.
        whole |= {name: pages[-1][name] for name in ("more", "says") if name in pages[-1]}
    return whole
