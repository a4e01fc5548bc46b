"""Why a dry run told nothing."""

from __future__ import annotations


class DryRunFailed(Exception):
    """The dry run told nothing: what happened, why, and what to do.

    ``reason`` is a word for programs: ``data-dependent`` (the model's way depends on its data's
    values), ``unknown`` (it is of no framework that we know), ``missing`` (a package is missing in
    this Python), ``cannot-travel`` (it cannot be handed to another process), ``timeout`` or
    ``failed`` (its own code raised an error).
    """

    def __init__(self, reason: str, what: str, todo: str) -> None:
        super().__init__(f"{what} {todo}".strip())
        self.reason = reason
        self.what = what
        self.todo = todo
