"""Where else a person who waits would get a GPU now, as the pool says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...policy.words.model import EnvironmentName
from ...protocol import documents as doc

Hints = Mapping[EnvironmentName, Sequence[doc.Hint]]


def with_hints(message: str, hints: Sequence[doc.Hint]) -> str:
    """Why a request waits, and where it would not."""
    return " ".join([message, *(hint["text"] for hint in hints)])
