"""REST under ``gpushare/api/``: the calls of the server's user to the node manager.

Every method is authenticated and authorized (resource ``gpushare``; action
``read`` or ``write``, and ``admin`` for other people's things), whatever
``allow_unauthenticated_access`` says. Whether the user *is* an admin the node
manager decides; the server's Authorizer only decides who may try through this
server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async
from tornado import web

from jupyter_gpushare.link import openapi, rest, wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.pages.asking import JsonAnswers, refusals
from jupyter_gpushare.protocol.secured import HOST_NAME

from .otherpythons import OtherPythons

if TYPE_CHECKING:
    from jupyter_gpushare.protocol.documents import KernelElsewhere, Kernels, MovedKernel

AUTH_RESOURCE = "gpushare"

NO_STARTS = "No kernel can start on another host: this jupyter_gpushare was installed without it."


class GpuShareHandler(JsonAnswers, APIHandler):
    """The common part of the handlers."""

    auth_resource = AUTH_RESOURCE
    # A panel polls; that must not keep an idle server from being culled.
    _track_activity = False


class NodeHandler(GpuShareHandler):
    """One that asks the node manager."""

    def initialize(self, link: NodeLink) -> None:
        self.link = link


def _method(operation: rest.Operation) -> Callable[..., Awaitable[None]]:
    async def method(self: NodeHandler, *path: str) -> None:
        # Not get_query_arguments(), which silently turns control characters into spaces.
        came = self.request
        with refusals():
            self.answer(
                await rest.answer(operation, self.link.call, path, came.query_arguments, came.body)
            )

    return allowed(method, admin=operation.admin)


def allowed(
    method: Callable[..., Awaitable[None]], *, admin: bool
) -> Callable[..., Awaitable[None]]:
    """A handler's method for those who are logged in and whom the Authorizer lets try."""
    may = authorized(action="admin", resource=AUTH_RESOURCE) if admin else authorized
    return cast(Callable[..., Awaitable[None]], web.authenticated(may(method)))


def handler(operations: Sequence[rest.Operation]) -> type[NodeHandler]:
    """Return the handler of a resource."""
    methods: dict[str, Any] = {one.verb: _method(one) for one in operations}
    # A panel polls; that must not keep an idle server from being culled.
    changes = any(one.verb != "get" for one in operations)
    return type("ResourceHandler", (NodeHandler,), {**methods, "_track_activity": changes})


class Elsewhere(Protocol):
    """Kernels of this server on other hosts, where a satellite can start them."""

    def running(self) -> list[KernelElsewhere]:
        """The kernels that run on another host."""

    async def move(self, kernel_id: str, host: str) -> MovedKernel:
        """Restart a kernel on ``host``. Raises :class:`NodeProblem`."""


class KernelsHandler(GpuShareHandler):
    """The kernels whose Python lacks the import hook, and those that run on other hosts."""

    def initialize(self, pythons: OtherPythons, elsewhere: Elsewhere | None) -> None:
        self.pythons = pythons
        self.elsewhere = elsewhere

    @web.authenticated
    @authorized
    async def get(self) -> None:
        specs = await ensure_async(self.kernel_spec_manager.get_all_specs())
        lacking = await self.pythons.kernels(specs)
        elsewhere = [] if self.elsewhere is None else self.elsewhere.running()
        document: Kernels = {"lacking": lacking, "elsewhere": elsewhere}
        self.answer(document)


class KernelHostHandler(GpuShareHandler):
    """Restarts a kernel on another host."""

    _track_activity = True

    def initialize(self, elsewhere: Elsewhere | None) -> None:
        self.elsewhere = elsewhere

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        with refusals():
            host = wishes.json_object(self.request.body, "host").get("host")
            if not isinstance(host, str) or not re.fullmatch(HOST_NAME, host):
                raise wishes.bad_request("'host' must be the name of a host of the pool.")
            if self.elsewhere is None:
                raise NodeProblem("unavailable", NO_STARTS)
            self.answer(await self.elsewhere.move(kernel_id, host))


class OpenApiHandler(NodeHandler):
    """The description of this interface."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(openapi.document(self.base_url))


Route = tuple[str, Callable[..., Any], dict[str, Any]]


def rest_routes(link: NodeLink) -> list[Route]:
    """Return the REST routes, without the base URL."""
    routes: list[tuple[str, type[NodeHandler]]] = [
        (pattern, handler(operations)) for pattern, operations in rest.resources()
    ]
    routes.append((r"openapi\.json", OpenApiHandler))
    return [(f"gpushare/api/{pattern}", served, {"link": link}) for pattern, served in routes]


def kernel_routes(pythons: OtherPythons, elsewhere: Elsewhere | None) -> list[Route]:
    """Return the routes that this server answers by itself."""
    return [
        ("gpushare/api/kernels", KernelsHandler, {"pythons": pythons, "elsewhere": elsewhere}),
        (r"gpushare/api/kernels/([^/]+)/host", KernelHostHandler, {"elsewhere": elsewhere}),
    ]
