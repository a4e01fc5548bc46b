"""``live``: the Hub says who listens, before the connection is upgraded and while it is open."""

from __future__ import annotations

from typing import Any

from jupyterhub.services.auth import UserNotAllowed
from tornado import web

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages.asking import Refusal
from jupyter_gpushare.pages.live import Audience, LiveHandler

from .handlers import NOT_LOGGED_IN, ServiceHandler
from .site import HubSite


class HubLiveHandler(ServiceHandler, LiveHandler):
    """One listener. The connection ends with the login."""

    def initialize(  # type: ignore[override] # tornado calls it with what the route gives
        self, site: HubSite, audience: Audience
    ) -> None:
        super().initialize(site)
        self.listens_in(audience)

    async def prepare(self) -> None:
        await super().prepare()
        by_token = getattr(self, "_token_authenticated", False)
        if not by_token and not self.request.headers.get("Origin"):
            # Browsers always send the origin; only our pages may use a person's cookie.
            raise Refusal(NodeProblem("not_allowed", NOT_LOGGED_IN))
        if self.is_full:
            message = "Too many pages about GPUs are open at once. Close some."
            raise Refusal(NodeProblem("rate_limited", message))

    async def is_let_in(self) -> bool:
        try:
            model: Any = await self.hub_auth.user_for_token(
                self.viewer.token, use_cache=False, sync=False
            )
            return model is not None and self.check_hub_user(model) is not None
        except UserNotAllowed:
            return False
        except web.HTTPError:
            return True  # the Hub is away: listeners stay
