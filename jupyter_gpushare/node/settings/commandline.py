"""Command lines on which a mistyped option is an error that suggests the right one.

Traitlets only warns in a line that scrolls by, and goes on without the option.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from traitlets.config import Config
from traitlets.config.loader import ArgumentError, KVArgParseConfigLoader

from ...protocol.words import did_you_mean

_ALWAYS = ("help", "help-all", "version")


class StrictLoader(KVArgParseConfigLoader):
    """Refuses what is neither an alias nor a flag; ``--Class.trait`` is traitlets' own affair."""

    def load_config(self, argv: Any = None, *rest: Any, **named: Any) -> Config:
        """Raises :class:`ArgumentError`."""
        for argument in self.argv if argv is None else argv:
            if argument == "--":
                break
            name = argument.removeprefix("--").partition("=")[0]
            if not argument.startswith("--") or "." in name:
                continue
            known = {*self._names(self.aliases), *self._names(self.flags), *_ALWAYS}
            if name not in known:
                hint = did_you_mean(name, sorted(known), "--")
                raise ArgumentError(f"there is no option --{name}{hint}")
        loaded: Config = super().load_config(argv, *rest, **named)
        return loaded

    @staticmethod
    def _names(options: Iterable[str | tuple[str, ...]]) -> Iterable[str]:
        for option in options:
            yield from (option,) if isinstance(option, str) else option
