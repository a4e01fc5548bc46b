"""The common part of adapters whose lease can only be taken at import."""

from __future__ import annotations

from types import ModuleType

from ..words.grant import Grant
from .environment import FrameworkVariables


class ImportTimeAdapter:
    """Defaults for a framework whose CUDA start cannot be caught."""

    catches_first_use = False

    def __init__(self) -> None:
        self._variables = FrameworkVariables()

    def before(self, grant: Grant | None) -> None:
        """Nothing to prepare."""

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        """Nothing to tell the framework."""

    def cuda_started(self, module: ModuleType) -> bool | None:
        """Nobody knows."""
        return None


class PlainAdapter(ImportTimeAdapter):
    """Of a framework that has nothing to set."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
