"""REST under ``api/``: the resources of the Jupyter server's ``gpushare/api/``.

A caller shows a Hub token that may access this service. The service asks the node manager with that
token, and the node manager decides what the caller may do.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tornado import web

from jupyter_gpushare.link import openapi, rest, wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.pages.asking import refusals
from jupyter_gpushare.pages.hosts import HostState
from jupyter_gpushare.protocol.poolcalls import WhereParams

from .handlers import JsonHandler


class NodesHandler(JsonHandler):
    """The node managers, and whether they answer this viewer."""

    async def get(self) -> None:
        if self.site.hosts is not None:
            # The pool knows; a link to each of a hundred hosts would be too many.
            nodes = [
                {
                    "name": one.name,
                    "connected": one.state is not HostState.AWAY,
                    "message": one.problem,
                }
                for one in self.site.hosts.hosts(self.viewer)
            ]
        else:
            nodes = await asyncio.gather(*(self._look(name) for name in self.site.pool.nodes))
        self.answer({"nodes": nodes})

    async def _look(self, name: str) -> dict[str, Any]:
        with refusals():
            async with self.link(name) as link:
                state = link.state
                return {"name": name, "connected": state.connected, "message": state.message}


class WhereHandler(JsonHandler):
    """The pool's hosts, ranked for what the viewer wishes for."""

    async def get(self) -> None:
        with refusals():
            if self.site.hosts is None:
                raise NodeProblem("not_found", "This Hub has no pool of hosts.")
            wish = {
                name: wishes.typed(WhereParams, name, self.query(name))
                for name in ("gpus", "memory")
            }
            kind = self.query("kind")
            self.answer(await self.site.hosts.where(self.viewer, kind=kind, **wish))


def _method(operation: rest.Operation) -> Callable[..., Awaitable[None]]:
    async def method(self: JsonHandler, *path: str) -> None:
        came = self.request
        with refusals():
            ask = functools.partial(self.ask, self.node_named(self.query("node")))
            self.answer(await rest.answer(operation, ask, path, came.query_arguments, came.body))

    return method


def handler(operations: Sequence[rest.Operation]) -> type[JsonHandler]:
    """The handler of a resource of one node: the query's, or the only one."""
    return type("ResourceHandler", (JsonHandler,), {one.verb: _method(one) for one in operations})


class OpenApiHandler(JsonHandler):
    """The description of this interface."""

    def get(self) -> None:
        self.answer(openapi.document(self.site.prefix, openapi.HUB))


class NothingHandler(JsonHandler):
    """Any other address under ``api/``."""

    def get(self) -> None:
        raise web.HTTPError(404)

    post = put = delete = patch = get


ROUTES: tuple[tuple[str, type[JsonHandler]], ...] = (
    (r"api/nodes", NodesHandler),
    (r"api/where", WhereHandler),
    *((f"api/{pattern}", handler(operations)) for pattern, operations in rest.resources()),
    (r"api/openapi\.json", OpenApiHandler),
    (r"api/.*", NothingHandler),
)
