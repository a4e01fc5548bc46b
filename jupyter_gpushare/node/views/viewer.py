"""The person who looks at a status, and what that person may see. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ...policy.books.state import Lease
from ...policy.words.model import EnvironmentName, is_own


class View(Enum):
    """How much a viewer may know of a lease: all of their own, all as administrator, or less."""

    OWN = "own"
    ADMIN = "admin"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person who looks. An admin sees everybody's names; others see what they own."""

    environment: EnvironmentName
    admin: bool = False
    all_servers: bool = False

    def is_mine(self, environment: str) -> bool:
        """Whether the environment is the viewer's own, or one of the viewer's named servers."""
        return is_own(environment, self.environment, servers=self.all_servers)

    def own(self, environments: Iterable[EnvironmentName]) -> set[EnvironmentName]:
        """Those that are the viewer's."""
        if not self.all_servers:
            return {self.environment}.intersection(environments)
        return {name for name in environments if self.is_mine(name)}

    def view(self, lease: Lease) -> View:
        """The view that this viewer has of a lease."""
        if self.is_mine(lease.environment):
            return View.OWN
        return View.ADMIN if self.admin else View.OTHER
