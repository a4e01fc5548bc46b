"""The exceptions that a user's code may meet. Each says what happened, why, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..protocol.errors import Reason

#: The exit code of a program that saved its state and is to be started again (EX_TEMPFAIL).
PREEMPTED: Final = 75


class GpuShareError(Exception):
    """Base of what jupyter_gpushare raises into user code.

    ``reason`` is the wire's word where there is one, ``details`` the numbers.
    """

    def __init__(
        self,
        message: str,
        reason: Reason | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.details: Mapping[str, Any] = dict(details or {})

    def _render_traceback_(self) -> list[str]:
        """For IPython: the sentence alone. A traceback into our code does not help."""
        return [f"{type(self).__name__}: {self}"]


class QuotaExceeded(GpuShareError):
    """The request asks for more than the quota has."""


class NotGranted(QuotaExceeded):
    """The quota would allow the request, and yet it gets nothing; the message says why.

    It does not wait and nothing is free now, it asks for more than the node has, or for a deadline
    or a rate that cannot be kept. It is a :class:`QuotaExceeded`, so that one ``except`` has both.
    """


class NodeUnavailable(GpuShareError):
    """The node manager cannot be reached, hangs, answers nonsense, or had no GPU in time."""


class LeaseLost(GpuShareError):
    """A lease that this process held has ended."""


class Preempted(SystemExit):
    """The program has saved its state for an interactive request, and ends: exit code 75.

    That is EX_TEMPFAIL: start it again. It is no :class:`Exception`, so that no ``except`` of the
    program's own loop goes on with it.
    """

    def __init__(self) -> None:
        super().__init__(PREEMPTED)


_BY_REASON: dict[Reason, type[GpuShareError]] = {
    Reason.OVER_QUOTA: QuotaExceeded,
    Reason.ZERO_QUOTA: QuotaExceeded,
    Reason.NO_RESOURCES: NotGranted,
    Reason.TOO_LARGE: NotGranted,
    Reason.BAD_REQUEST: NotGranted,
    Reason.RATE_LIMITED: NotGranted,
    Reason.INFEASIBLE: NotGranted,
    Reason.UNKNOWN_LEASE: LeaseLost,
}


def error_for(
    reason: Reason | None, message: str, details: Mapping[str, Any] | None = None
) -> GpuShareError:
    """The exception for an error answer."""
    kind = _BY_REASON.get(reason, NodeUnavailable) if reason is not None else NodeUnavailable
    return kind(message, reason, details)
