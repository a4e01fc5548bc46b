"""The service as a program: ``python -m jupyter_gpushare.hub``, which JupyterHub starts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit

from jupyter_core.application import JupyterApp
from jupyterhub.services.auth import HubOAuth
from jupyterhub.utils import url_path_join
from tornado import web
from tornado.httpserver import HTTPServer
from traitlets import Bool, Dict, Float, Integer, List, TraitError, Unicode, default, validate

from jupyter_gpushare._version import __version__
from jupyter_gpushare.pages.live import Audience
from jupyter_gpushare.pages.page import NothingHandler
from jupyter_gpushare.pages.routes import PAGES
from jupyter_gpushare.pages.site import STATIC, static_address
from jupyter_gpushare.protocol import heldport, names
from jupyter_gpushare.protocol.address import SYSTEM_SOCKET
from jupyter_gpushare.protocol.parent import when_parent_ends
from jupyter_gpushare.satellites import Part, take, there
from jupyter_gpushare.traits import mistyped

from . import api
from .handlers import CallbackHandler, HealthHandler, ServiceHandler, quiet_log
from .links import Limits, LinkPool
from .live import HubLiveHandler
from .site import HubSite, hub_templates

_OTHER_ENDS: Final = 10.0  # seconds for another one to give up the port
_MOST_BODY: Final = 1 << 20  # bytes of a request
NOT_ALONE: Final = (
    "This is a service that JupyterHub starts: put `from jupyter_gpushare.hub import setup; "
    "setup(c)` into jupyterhub_config.py."
)
NO_POOL: Final = (
    "GpuShareHub.pool is set, and no pool is installed here: install jupyter_gpushare[pool] where "
    "the Hub is."
)
#: The pool as a role of this service.
_role: Final = take(Part.HUB_POOL) if there(Part.HUB_POOL) else None
_CLASSES: Final = () if _role is None else (_role.Pool,)


class GpuShareHub(JupyterApp):
    """JupyterHub's pages about GPUs."""

    name = "jupyter-gpushare-hub"
    version = __version__
    description = __doc__
    config_file_name = Unicode("jupyter_gpushare_hub_config")
    classes = List([HubOAuth, *_CLASSES])

    nodes = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""The socket of each node manager, by the name that people are shown. Not set: the
        one of JUPYTER_GPUSHARE_SOCKET, or the system's, under this host's name.""",
    ).tag(config=True)
    pool = Bool(
        False,
        help="""Run the pool of hosts here: the pages show the hosts that joined it, and `nodes` is
        not read.""",
    ).tag(config=True)
    url = Unicode(
        help="""Where to listen. Not set: what JupyterHub says in JUPYTERHUB_SERVICE_URL."""
    ).tag(config=True)
    believed = Integer(
        30, min=1, help="Seconds for which the Hub's word on a login is believed."
    ).tag(config=True)
    links = Integer(512, min=1, help="Most links to node managers at once.").tag(config=True)
    links_per_user = Integer(16, min=1, help="Most of them in one person's name.").tag(config=True)
    link_linger = Float(
        10.0, min=0.0, help="Seconds after its last use in which a link is closed."
    ).tag(config=True)
    answer_timeout = Float(
        5.0, min=0.1, help="Seconds a node manager may take to answer one question."
    ).tag(config=True)
    live_limit = Integer(512, min=0, help="Most pages that are kept up to date at once.").tag(
        config=True
    )
    live_limit_per_user = Integer(16, min=0, help="Most of them one person's.").tag(config=True)
    login_check = Float(
        30.0, min=0.1, help="Seconds between two looks whether an open page's login is still good."
    ).tag(config=True)
    template_paths = List(
        Unicode(), help="Directories of templates of your own, such as JupyterHub's page.html."
    ).tag(config=True)

    @default("nodes")
    def _default_nodes(self) -> dict[str, str]:
        return {socket.gethostname(): os.environ.get(names.SOCKET) or SYSTEM_SOCKET}

    @default("url")
    def _default_url(self) -> str:
        return os.environ.get("JUPYTERHUB_SERVICE_URL", "")

    @validate("nodes")
    def _check_nodes(self, proposal: dict[str, Any]) -> dict[str, str]:
        nodes: dict[str, str] = proposal["value"]
        if not nodes or not all(nodes) or not all(nodes.values()):
            raise TraitError("nodes needs at least one name with the path of a socket.")
        return nodes

    def start(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        # Below that it tells of every cookie that is set.
        logging.getLogger("tornado.application").setLevel(logging.WARNING)
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        address = urlsplit(self.url)
        port = address.port
        if not address.hostname or port is None or "JUPYTERHUB_API_TOKEN" not in os.environ:
            raise SystemExit(NOT_ALONE)
        if wrong := mistyped(self.config, (type(self), *_CLASSES)):
            raise SystemExit(wrong)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        when_parent_ends(asyncio.get_running_loop(), stop.set)
        async with AsyncExitStack() as stack:
            hosts = await self._pool(stack) if self.pool else None
            await self._serve_pages(self.make_site(hosts), address.hostname, port, stop)

    async def _pool(self, stack: AsyncExitStack) -> Any:
        """The pool, until ``stack`` ends. Raises :class:`SystemExit` with a sentence."""
        if _role is None:
            raise SystemExit(NO_POOL)
        return await stack.enter_async_context(_role.running(self, urlsplit(self.url).hostname))

    async def _serve_pages(
        self, site: HubSite, address: str, port: int, stop: asyncio.Event
    ) -> None:
        audience = Audience(self.live_limit, self.live_limit_per_user, self.login_check)
        server = HTTPServer(
            make_application(site, audience), xheaders=True, max_body_size=_MOST_BODY
        )
        await self._listen(server, port, address)
        self.log.info("gpushare: serves %s at %s", site.prefix, self.url)
        await stop.wait()
        server.stop()
        audience.close()
        await server.close_all_connections()

    async def _listen(self, server: HTTPServer, port: int, host: str) -> None:
        """Listen; wait for an earlier service that is just ending.

        Raises :class:`OSError`, and :class:`SystemExit` with sentences where it does not end.

        The Hub and the keeper hold the address for our user, so the kernel lets us share it.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _OTHER_ENDS
        while heldport.listener(self.url) == os.geteuid():
            # The Hub ends if one of its services does not start.
            if loop.time() > until:
                raise SystemExit(
                    f"Another program of this user, such as another Hub's pages, listens at "
                    f"{self.url}. End it (`ss -ltnp` names it), or give this Hub's pages another "
                    "port: setup(c, url=…). Without a port in url a free one is found."
                )
            await asyncio.sleep(0.2)
        server.listen(port, host, reuse_port=True)

    def make_site(self, hosts: Any = None) -> HubSite:
        """Join the parts. JupyterHub's environment variables say where and who it is."""
        auth = HubOAuth(parent=self, cache_max_age=self.believed)
        limits = Limits(self.links, self.links_per_user, self.link_linger, self.answer_timeout)
        hub_url = auth.hub_host + auth.hub_prefix
        templates = hub_templates(self.template_paths)
        prefix = auth.base_url
        own_static = static_address(f"{prefix}static/")
        name = os.environ.get("JUPYTERHUB_SERVICE_NAME", "gpushare")
        templates.globals |= {
            "own_static": own_static,
            "around": "JupyterHub",
            "styles": [own_static("gpushare.css")],
            # Of the Hub's scripts only those that its bar needs.
            "scripts": [
                f"{hub_url}static/components/bootstrap/dist/js/bootstrap.bundle.min.js",
                f"{hub_url}static/js/darkmode.js",
            ],
            "base_url": hub_url,
            "login_url": f"{hub_url}login",
            "logout_url": f"{hub_url}logout",
            "parsed_scopes": (),
            "services": [{"name": name, "href": prefix}],
            "static_url": lambda path, include_version=True: f"{hub_url}static/{path}",
        }
        pool = LinkPool(hosts.places if hosts else dict(self.nodes), limits, log=self.log)
        return HubSite(
            prefix=prefix,
            names=lambda: pool.nodes,
            auth=auth,
            pool=pool,
            hosts=hosts,
            templates=templates,
            origins=(auth.hub_host,) if auth.hub_host else (),
        )


def make_application(site: HubSite, audience: Audience) -> web.Application:
    """The routes."""
    given = {"site": site}
    routes: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        (r"health", HealthHandler, {}),
        (r"oauth_callback", CallbackHandler, given),
        (r"static/(.*)", StaticHandler, {"path": str(STATIC)}),
        (r"live", HubLiveHandler, {**given, "audience": audience}),
        *((path, handler, given) for path, handler in api.ROUTES),
        *((path, type(page.__name__, (page, ServiceHandler), {}), given) for path, page in PAGES),
        # Below the Hub's prefix all addresses are ours, also those where nothing is.
        (r".*", type("NothingHandler", (NothingHandler, ServiceHandler), {}), given),
    ]
    return web.Application(
        [(url_path_join(site.prefix, path), *rest) for path, *rest in routes],
        cookie_secret=cookie_secret(site.auth.api_token),
        log_function=quiet_log,
        websocket_ping_interval=30,
    )


def cookie_secret(api_token: str) -> bytes:
    """The key that signs cookies, as long-lived as our own token at the Hub.

    Open pages go on after a restart of the service. After a restart of the Hub they must log in
    again.
    """
    return hmac.digest(api_token.encode(), b"jupyter_gpushare.hub cookies", "sha256")


class StaticHandler(web.StaticFileHandler):
    """Our style and script; they contain no person's data."""

    def set_default_headers(self) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")


def main() -> None:
    """Run the service."""
    GpuShareHub.launch_instance()
