"""The objects that all requests of a server share, and how a page is rendered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import jinja2
from tornado import web

from jupyter_gpushare.figures import counted
from jupyter_gpushare.protocol.periods import moment
from jupyter_gpushare.protocol.quota import source_text, value_text

from .forms import own_text
from .shown import gpu_hours, iso, prose
from .viewer import Pool

HERE: Final = Path(__file__).resolve().parent
STATIC: Final = HERE / "static"
TEMPLATES: Final = HERE / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """``prefix`` is where the pages are (``/services/gpushare/``).

    ``names`` gives the names of the nodes now. ``origins``: other places that styles and scripts of
    the page around ours come from. ``framed_by``: whose pages may show ours in a frame.
    """

    prefix: str
    templates: jinja2.Environment
    names: Callable[[], Collection[str]]
    origins: tuple[str, ...] = ()
    framed_by: str = "'none'"
    #: The pool of hosts, or ``None`` where each host has quotas of its own.
    hosts: Pool | None = None

    @property
    def nodes(self) -> Collection[str]:
        """The names of the node managers that can be asked."""
        return self.names()

    def policy(self) -> str:
        """The Content-Security-Policy of the pages."""
        own = " ".join(("'self'", *self.origins))
        return "; ".join(
            (
                "default-src 'none'",
                f"script-src {own}",
                f"style-src {own}",
                f"font-src {own}",
                f"img-src {own} data:",
                "connect-src 'self'",
                "form-action 'self'",
                "base-uri 'none'",
                f"frame-ancestors {self.framed_by}",
            )
        )


def make_templates(
    around: Sequence[jinja2.BaseLoader], before: Sequence[jinja2.BaseLoader] = ()
) -> jinja2.Environment:
    """Our templates, and those of the server ``around`` them; what is ``before`` ours wins."""
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [*before, jinja2.FileSystemLoader([str(TEMPLATES)]), *around],
        ),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"prose": prose, "iso": iso, "moment": moment}
    templates.filters |= {"own": own_text, "source": source_text, "counted": counted}
    templates.filters |= {"gpu_hours": gpu_hours, "memory_each": partial(value_text, "memory")}
    return templates


def static_address(folder: str) -> Callable[[str], str]:
    """The address of a static file in ``folder``; it changes with the file, for caches."""
    marks = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in STATIC.iterdir()
        if path.is_file()
    }
    return lambda name: f"{folder}{name}?v={marks[name]}"


def write_page(handler: web.RequestHandler, template: str, site: Site, **view: Any) -> None:
    """Render one of our pages around ``view`` and finish."""
    handler.set_header("Content-Type", "text/html; charset=utf-8")
    page = site.templates.get_template(f"gpushare/{template}")
    handler.finish(page.render(prefix=site.prefix, **view))
