"""The objects that all requests of the service share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
from markupsafe import Markup, escape

from .links import LinkPool

if TYPE_CHECKING:
    from .pooling import HubPool

HERE: Final = Path(__file__).resolve().parent
STATIC: Final = HERE / "static"
_TEMPLATES: Final = HERE / "templates"
# The Hub's own pages need these; ours run under a policy that allows no inline script, and work
# without any.
_INLINE_SCRIPT: Final = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>.*?</script>", re.DOTALL)
_TYPED: Final = re.compile(r"`([^`]+)`")
_NO_SCRIPT: Final = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Site:
    """``prefix`` is where the service is (``/services/gpushare/``), ``hub_url`` where the Hub is.

    ``origins``: other places that styles and scripts of the Hub come from.
    """

    name: str
    prefix: str
    hub_url: str
    auth: Any
    pool: LinkPool
    templates: jinja2.Environment
    origins: tuple[str, ...] = ()
    #: The pool of hosts; ``None``: each host has quotas of its own.
    hosts: HubPool | None = None

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
                "frame-ancestors 'none'",
            )
        )


class _HubPages(jinja2.FileSystemLoader):
    """JupyterHub's templates, without what their pages run in the page itself."""

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        source, path, uptodate = super().get_source(environment, template)
        return _NO_SCRIPT.sub("", _INLINE_SCRIPT.sub("", source)), path, uptodate


def make_templates(more: Sequence[str], hub_templates: Sequence[str]) -> jinja2.Environment:
    """The templates: the administrator's own first, then ours, then JupyterHub's.

    As in JupyterHub itself, ``templates/page.html`` is always the original.
    """
    original = _HubPages(list(hub_templates))
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                *([_HubPages(list(more))] if more else []),
                jinja2.FileSystemLoader([str(_TEMPLATES)]),
                jinja2.PrefixLoader({"templates": original}),
                original,
            ]
        ),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["prose"] = prose
    templates.filters["iso"] = lambda unix: _utc(unix).isoformat(timespec="seconds")
    templates.filters["moment"] = lambda unix: f"{_utc(unix):%Y-%m-%d %H:%M} UTC"
    return templates


def prose(text: object) -> Markup:
    """A sentence for people, in which `what is typed` stands between backticks."""
    return Markup(_TYPED.sub(r"<code>\1</code>", str(escape(text))))


def _utc(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)


def versions() -> dict[str, str]:
    """A word for the content of each of our static files, for browsers' caches."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in STATIC.iterdir()
        if path.is_file()
    }
