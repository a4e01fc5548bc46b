"""Environment variables that frameworks read, set without ever overruling the user."""

from __future__ import annotations

import os


class FrameworkVariables:
    """Sets variables the user has not set, and changes only its own afterwards."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}

    def is_users(self, name: str) -> bool:
        """Whether the user, or another program, has set this variable."""
        value = os.environ.get(name)
        return value is not None and value != self._ours.get(name)

    def set(self, name: str, value: str | None) -> None:
        """Set ``name``, or take back our own value with ``None``; the user's own stays."""
        if self.is_users(name):
            return
        if value is None:
            self._ours.pop(name, None)
            os.environ.pop(name, None)
        else:
            self._ours[name] = os.environ[name] = value
