"""Every route of the pages, and what each kind of viewer gets there: the same in both servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlencode

from tornado import web

from jupyter_gpushare.pages.routes import PAGES


class Who(Enum):
    """A viewer, seen from the lease of :func:`visits`."""

    ANONYMOUS = "anonymous"
    OTHER = "other user"
    OWNER = "owner"
    ADMIN = "admin"


@dataclass(frozen=True)
class Visit:
    """A request to a page. ``fields`` are those of a form that is posted."""

    path: str
    verb: str
    is_admins: bool
    fields: Mapping[str, str] = field(default_factory=dict)

    def code(self, who: Who) -> int:
        """The status that ``who`` gets; 302 leads to a login."""
        if who is Who.ANONYMOUS:
            return 302 if self.verb == "GET" else 403
        if self.is_admins and who is not Who.ADMIN:
            return 403
        return 200 if self.verb == "GET" else 303


def visits(lease: str, gpu: str) -> list[Visit]:
    """A visit with every method of every route, those that change something last.

    They are about ``lease``, and ``gpu`` of its node.
    """
    return sorted(_visits(lease, gpu), key=lambda visit: visit.verb)


def _visits(lease: str, gpu: str) -> Iterator[Visit]:
    wishes = {
        "admin/revoke": {"lease": lease, "reason": "Maintenance."},
        "admin/drain": {"gpu": gpu, "reason": "A fan."},
        "admin/quota": {"environment": "zoe", "gpus": "1"},
        "keep": {"lease": lease},
        "release": {"lease": lease},
    }
    for pattern, page in PAGES:
        paths = ("keep", "release") if pattern.startswith("(") else (pattern.replace("\\", ""),)
        for path in paths:
            wish = wishes.get(path, {})
            for verb in ("get", "post"):
                if getattr(page, verb) is getattr(web.RequestHandler, verb):
                    continue
                if verb == "post":
                    yield Visit(path, "POST", page.is_admins, wish)
                else:
                    query = {name: text for name, text in wish.items() if name != "reason"}
                    asked = f"{path}?{urlencode(query)}" if query else path
                    yield Visit(asked, "GET", page.is_admins)
