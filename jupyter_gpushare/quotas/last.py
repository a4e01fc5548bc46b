"""Keeps the Hub's last answer about its groups' quotas in a file beside the ledger.

Without the file, a node manager that starts while the Hub is away would give everybody the default
quota until the Hub is back.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from ..daemon import privatefile

_VERSION: Final = 1


class LastQuotas:
    """Keeps the newest answer of the Hub at ``hub`` in the file ``path``, for the owner only.

    The file's time is the answer's: the same answer each minute writes nothing. No method raises;
    an answer that cannot be kept or read is logged, once for each reason.
    """

    def __init__(self, path: Path, hub: str, log: logging.Logger) -> None:
        self._path = path
        self._hub = hub
        self._log = log
        self._kept: dict[str, Any] | None = None
        self._told = ""

    def keep(self, groups: dict[str, Any], at: float) -> None:
        """Write down the quotas by group as they are written, told ``at`` (Unix seconds)."""
        try:
            if groups != self._kept:
                document = {"version": _VERSION, "hub": self._hub, "groups": groups}
                privatefile.write(self._path, document)
                self._kept = groups
            os.utime(self._path, (at, at))
        except OSError as error:
            self._kept = None
            self._tell(f"The quotas of JupyterHub's groups could not be kept: {error}.")
        else:
            self._told = ""

    def recall(self) -> tuple[dict[str, Any], float] | None:
        """What was kept last; ``None`` if there is none of this Hub that can be trusted."""
        try:
            document, at = privatefile.read(self._path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._tell(f"{self._path} is not used: {error}.")
            return None
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            self._tell(f"{self._path} is not used: another release wrote it.")
            return None
        groups = document.get("groups")
        if document.get("hub") != self._hub or not isinstance(groups, dict):
            return None
        self._kept = groups
        return groups, at

    def _tell(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._log.error("%s", sentence)
