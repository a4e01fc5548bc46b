"""Errors between a server and the node manager, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NodeProblem(Exception):
    """The node manager refused, or could not be asked.

    ``reason`` is one of the protocol's words (or ``unavailable``,
    ``timed_out``), ``message`` a sentence for people, ``numbers`` what else
    the node manager said.
    """

    def __init__(self, reason: str, message: str, numbers: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.numbers = dict(numbers or {})


class NodeUnavailable(NodeProblem):
    """No node manager can be reached now."""

    def __init__(self, message: str) -> None:
        super().__init__("unavailable", message)


class NodeTimedOut(NodeProblem):
    """The node manager did not answer in time; what was asked may still happen."""

    def __init__(self, method: str, seconds: float) -> None:
        super().__init__(
            "timed_out",
            f"The node manager did not answer {method!r} within {seconds:g} seconds. "
            "It may be overloaded; try again, or see `jupyter gpushare doctor`.",
        )
