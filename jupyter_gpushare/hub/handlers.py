"""The common part of the service's handlers: who the caller is, and how errors look."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from jupyterhub.services.auth import HubOAuthCallbackHandler, HubOAuthenticated, UserNotAllowed
from tornado import web

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pages.asking import Asking, JsonAnswers, Refusal, said_by
from jupyter_gpushare.pages.site import write_page
from jupyter_gpushare.pages.viewer import Viewer

from .site import HubSite

_LOG: Final = logging.getLogger("jupyter_gpushare.hub")

_HUB_ANSWERS: Final = 10.0  # seconds for the Hub to say who somebody is
HUB_AWAY: Final = (
    "JupyterHub does not answer, so this page cannot find out who you are. Tasks that hold a GPU "
    "keep it. Try again in a minute."
)
NOT_LET_IN: Final = (
    "You may not use this service: it needs the permission access:services!service=gpushare. Ask "
    "the administrator of this JupyterHub for it."
)
NOT_LOGGED_IN: Final = (
    "You are not logged in, or this page is too old for what you asked: nothing was changed. Go "
    "back, reload the page, and try again."
)


def quiet_log(handler: web.RequestHandler) -> None:
    """Log a request without its query: OAuth codes and tokens travel there."""
    status = handler.get_status()
    level = logging.DEBUG if status < 400 else logging.INFO if status < 500 else logging.WARNING
    request = handler.request
    milliseconds = 1000 * request.request_time()
    _LOG.log(level, "%d %s %s %.0f ms", status, request.method, request.path, milliseconds)


class QuietErrors(web.RequestHandler):
    """Errors without query strings and request dumps in the log."""

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Say what went wrong, with a traceback only where it is our mistake."""
        what = f"{self.request.method} {self.request.path}"
        if not isinstance(value, web.HTTPError):
            _LOG.error("%s failed", what, exc_info=(typ, value, tb))
        elif value.status_code >= 500:
            _LOG.warning("%s: %s", what, said_by(value))
        else:
            _LOG.debug("%s: %s", what, said_by(value))


class ServiceHandler(HubOAuthenticated, QuietErrors, Asking):
    """Identifies the caller before anything else happens.

    ``viewer`` is the caller with the token by which the Hub knows them.
    """

    @property
    def sends_to_login(self) -> bool:
        """Whether a browser without a login is sent to the Hub to log in."""
        return False

    site: HubSite

    def initialize(self, site: HubSite) -> None:
        self.site = site
        self.hub_auth = site.auth
        self._viewer: Viewer | None = None

    @property
    def viewer(self) -> Viewer:
        assert self._viewer is not None, "prepare() lets nobody through without one"
        return self._viewer

    @property
    def reader(self) -> dict[str, str] | None:
        user = getattr(self, "_current_user", None)
        return {"name": user["name"]} if user else None

    async def prepare(self) -> None:
        """Ask the Hub for the owner of the login or token; refuse all others."""
        try:
            async with asyncio.timeout(_HUB_ANSWERS):
                model = await self.hub_auth.get_user(self, sync=False)
        except (web.HTTPError, TimeoutError) as error:
            raise Refusal(NodeProblem("unavailable", HUB_AWAY)) from error
        if model is None:
            # A client with a token that the Hub does not know is a program: it cannot log in.
            shows = bool(self.hub_auth.get_token(self, in_cookie=False))
            if self.sends_to_login and not shows and self.request.method in ("GET", "HEAD"):
                self.redirect(self.get_login_url())
                return
            raise Refusal(NodeProblem("not_allowed", NOT_LOGGED_IN))
        try:
            self.current_user = self.check_hub_user(model)
        except UserNotAllowed:
            self.current_user = None
            raise Refusal(NodeProblem("not_allowed", NOT_LET_IN)) from None
        if self.request.method not in ("GET", "HEAD", "OPTIONS"):
            self._check_xsrf()
        self._viewer = _viewer(model, self._token())

    def _check_xsrf(self) -> None:
        """Check that a change by a login's cookie comes from one of our pages.

        JupyterHub's code has checked already, but leaves out some ways to fetch.
        """
        if getattr(self, "_token_authenticated", False):
            return
        told = self.get_argument("_xsrf", "") or self.request.headers.get("X-XSRFToken", "")
        if not hmac.compare_digest(told.encode(), self.xsrf_token):
            raise Refusal(NodeProblem("not_allowed", NOT_LOGGED_IN))

    def _token(self) -> str:
        """The token that the Hub knew: the header's, or that of the login."""
        if getattr(self, "_token_authenticated", False):
            return str(self.hub_auth.get_token(self, in_cookie=False))
        return str(self.hub_auth._get_token_cookie(self))

    # -- asking --------------------------------------------------------------------------------

    @asynccontextmanager
    async def link(self, node: str) -> AsyncIterator[NodeLink]:
        """The viewer's own link to a node. Raises :class:`NodeProblem`."""
        async with self.site.pool.borrow(node, self.viewer) as link:
            yield link


def _viewer(model: Mapping[str, Any], token: str) -> Viewer:
    name, kind = str(model["name"]), str(model.get("kind", "user"))
    return Viewer(
        f"{kind}:{name}",
        token,
        # A service may be called as a user is, and must not be taken for that one.
        environment=name if kind == "user" else f"{kind}:{name}",
        groups=tuple(sorted(map(str, model.get("groups") or ()))),
        admin=kind == "user" and model.get("admin") is True,
    )


class JsonHandler(JsonAnswers, ServiceHandler):
    """Answers and errors as JSON."""


class CallbackHandler(QuietErrors, HubOAuthCallbackHandler):
    """The Hub sends a browser here after the login."""

    def initialize(self, site: HubSite) -> None:
        self.site = site
        self.hub_auth = site.auth

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        self.set_header("Content-Security-Policy", self.site.policy())
        write_page(
            self,
            "error.html",
            self.site,
            title="The login did not work",
            message="JupyterHub sent you back here without a login that counts.",
            advice="Start again from the GPU page; if that does not help, log out and in again.",
        )


class HealthHandler(web.RequestHandler):
    """Tells every caller that the service runs, and nothing else."""

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.clear_header("Server")
        self.finish("ok\n")
