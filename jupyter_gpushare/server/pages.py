"""The pages under ``gpushare/``: the table of `jupyter_gpushare.pages` behind this server's login.

They ask in the name of the server's user, as the panel does. The server's Authorizer decides who
may try through this server (``read`` or ``write``, and ``admin`` for the administrators' pages);
whether the user *is* an administrator the node manager decides.
"""

from __future__ import annotations

import re
import socket
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import jinja2
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web

from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pages.asking import Asking
from jupyter_gpushare.pages.live import Audience, LiveHandler
from jupyter_gpushare.pages.page import PageHandler
from jupyter_gpushare.pages.routes import PAGES
from jupyter_gpushare.pages.site import TEMPLATES, Site, make_templates, static_address
from jupyter_gpushare.pages.viewer import Viewer

from .handlers import AUTH_RESOURCE, Route, allowed
from .live import Upgrades

_FRAMED_BY: Final = re.compile(r"frame-ancestors ([^;]+)")


class ServerPage(Asking, JupyterHandler):
    """Asks the node manager in the name of the server's user."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, site: Site, to: NodeLink) -> None:
        self.site = site
        self._to = to

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.current_user.username, "")

    def link(self, node: str) -> AbstractAsyncContextManager[NodeLink]:
        return nullcontext(self._to)


class PageLiveHandler(Upgrades, LiveHandler, ServerPage):
    """One page that is told of changes."""

    def initialize(  # type: ignore[override] # tornado calls it with what the route gives
        self, site: Site, to: NodeLink, audience: Audience
    ) -> None:
        super().initialize(site, to)
        self.listens_in(audience)


def _served(page: type[PageHandler]) -> type[web.RequestHandler]:
    """A page behind this server's login."""
    verbs = [
        verb
        for verb in ("get", "post")
        if getattr(page, verb) is not getattr(web.RequestHandler, verb)
    ]
    methods = {verb: allowed(getattr(page, verb), admin=page.is_admins) for verb in verbs}
    return type(page.__name__, (page, ServerPage), methods)


def make_site(link: NodeLink, settings: dict[str, Any], static: str) -> Site:
    """The pages below this server's base URL; ``static`` is where their style and scripts are."""
    name = socket.gethostname()

    def names() -> tuple[str]:
        nonlocal name
        if link.state.hello is not None:
            name = link.state.hello["node"]["name"]
        return (name,)

    own_static = static_address(static)
    templates = make_templates([jinja2.FileSystemLoader([str(TEMPLATES / "alone")])])
    templates.globals |= {
        "own_static": own_static,
        "around": "Jupyter",
        "styles": [own_static("alone.css"), own_static("gpushare.css")],
        "scripts": [],
    }
    # An administrator who lets another site show all of JupyterLab in a frame has set this header.
    policy = settings.get("headers", {}).get("Content-Security-Policy", "")
    framed_by = _FRAMED_BY.search(policy)
    return Site(
        prefix=url_path_join(settings["base_url"], "gpushare/"),
        templates=templates,
        names=names,
        framed_by=framed_by[1] if framed_by else "'self'",
    )


def page_routes(link: NodeLink, site: Site, audience: Audience) -> list[Route]:
    """Return the routes of the pages, without the base URL."""
    given = {"site": site, "to": link}
    return [
        *((f"gpushare/{path}", _served(page), given) for path, page in PAGES),
        ("gpushare/live", PageLiveHandler, {**given, "audience": audience}),
    ]
