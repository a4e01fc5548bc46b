"""REST under ``api/``: the resources of the Jupyter server's ``gpushare/api/``.

A caller shows a Hub token that may access this service. The service asks the node manager with that
token, and the node manager decides what the caller may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tornado import web

from jupyter_gpushare.link import openapi, wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.quota import QUOTA

from .handlers import JsonHandler, Refusal


@contextmanager
def refusals() -> Iterator[None]:
    """Map refusals, the node manager's and our own, to HTTP errors."""
    try:
        yield
    except NodeProblem as problem:
        raise Refusal(problem) from problem


class ApiHandler(JsonHandler):
    """One resource of one node."""

    async def ask_node(self, method: Method, **params: Any) -> dict[str, Any]:
        """Ask the node of the query, or the only one."""
        with refusals():
            return await self.ask(self.node_named(self.query("node")), method, **params)

    def number(self, name: str, least: float, most: float) -> float | None:
        with refusals():
            return wishes.number(name, self.query(name), least, most)

    def count(self, name: str, least: int, most: int) -> int | None:
        with refusals():
            return wishes.count(name, self.query(name), least, most)

    def environment(self) -> str | None:
        with refusals():
            text = self.query("environment")
            return None if text is None else wishes.checked_name(text)


class NodesHandler(ApiHandler):
    """The node managers, and whether they answer this viewer."""

    async def get(self) -> None:
        names = list(self.site.pool.nodes)
        self.answer({"nodes": await asyncio.gather(*(self._look(name) for name in names))})

    async def _look(self, name: str) -> dict[str, Any]:
        with refusals():
            async with self.link(name) as link:
                state = link.state
                return {"name": name, "connected": state.connected, "message": state.message}


class StatusHandler(ApiHandler):
    """The whole status document."""

    async def get(self) -> None:
        self.answer(
            await self.ask_node(Method.STATUS, page=self.count("page", 0, openapi.MOST_PAGES))
        )


class LeasesHandler(ApiHandler):
    """Leases and queue alone."""

    async def get(self) -> None:
        status = await self.ask_node(Method.STATUS, page=self.count("page", 0, openapi.MOST_PAGES))
        self.answer({name: status[name] for name in ("leases", "queue", "more") if name in status})


class LeaseHandler(ApiHandler):
    """One lease: DELETE releases it."""

    async def delete(self, lease: str) -> None:
        with refusals():
            lease = wishes.checked_lease(lease)
        answer = await self.ask_node(Method.RELEASE, lease=lease)
        self.answer({"lease": lease, "state": answer["state"]})


class PinHandler(ApiHandler):
    """Keep an idle lease's GPUs for a while."""

    async def post(self, lease: str) -> None:
        with refusals():
            lease = wishes.checked_lease(lease)
            seconds = wishes.checked_pin(wishes.json_object(self.request.body, "seconds"))
        answer = await self.ask_node(Method.PIN, lease=lease, seconds=seconds)
        self.answer({"lease": lease, "state": answer["state"]})


class RevokeHandler(ApiHandler):
    """Take anybody's lease away."""

    async def post(self, lease: str) -> None:
        with refusals():
            lease = wishes.checked_lease(lease)
            reason = wishes.json_object(self.request.body, "reason").get("reason")
            reason = wishes.checked_reason(reason)
        answer = await self.ask_node(Method.LEASE_REVOKE, lease=lease, reason=reason)
        self.answer({"lease": lease, "state": answer["state"]})


class DrainHandler(ApiHandler):
    """Take a GPU out of service."""

    async def post(self, gpu: str) -> None:
        with refusals():
            gpu = wishes.checked_gpu(gpu)
            reason = wishes.json_object(self.request.body, "reason").get("reason")
            reason = wishes.checked_drain_reason(reason)
        self.answer(await self.ask_node(Method.GPU_DRAIN, gpu=gpu, reason=reason))


class ResumeGpuHandler(ApiHandler):
    """Put a GPU back into service."""

    async def post(self, gpu: str) -> None:
        with refusals():
            gpu = wishes.checked_gpu(gpu)
        self.answer(await self.ask_node(Method.GPU_RESUME, gpu=gpu))


class QuotaHandler(ApiHandler):
    """The viewer's own quota."""

    async def get(self) -> None:
        status = await self.ask_node(Method.STATUS)
        self.answer({name: status[name] for name in ("environment", "admin", "quota")})


class UsageHandler(ApiHandler):
    """GPU-seconds by environment."""

    async def get(self) -> None:
        since = self.number("since", 0, openapi.MOST_SECONDS)
        environment = self.environment()
        self.answer(await self.ask_node(Method.USAGE, since=since, environment=environment))


class DailyUsageHandler(ApiHandler):
    """GPU-seconds by local day."""

    async def get(self) -> None:
        days = self.count("days", 1, openapi.MOST_DAYS)
        offset = self.number("utc_offset", -openapi.LARGEST_OFFSET, openapi.LARGEST_OFFSET)
        environment = self.environment()
        self.answer(
            await self.ask_node(
                Method.USAGE_DAILY, days=days, utc_offset=offset, environment=environment
            )
        )


class ReadingsHandler(ApiHandler):
    """Utilisation and memory used over the last minutes."""

    async def get(self) -> None:
        since = self.number("since", 0, openapi.MOST_READINGS)
        self.answer(await self.ask_node(Method.READINGS, since=since))


class HistoryHandler(ApiHandler):
    """The ledger's latest events."""

    async def get(self) -> None:
        limit = self.count("limit", 1, openapi.LONGEST_HISTORY)
        environment = self.environment()
        self.answer(await self.ask_node(Method.HISTORY, limit=limit, environment=environment))


class QuotasHandler(ApiHandler):
    """The quotas of every environment that the node manager knows."""

    async def get(self) -> None:
        self.answer(await self.ask_node(Method.QUOTA_LIST))


class EnvironmentQuotaHandler(ApiHandler):
    """One environment's quota."""

    async def get(self, environment: str) -> None:
        with refusals():
            environment = wishes.checked_name(environment)
        for quota in (await self.ask_node(Method.QUOTA_LIST))["quotas"]:
            if quota["environment"] == environment:
                self.answer(quota)
                return
        message = f"No quota is set for {environment!r}: it has the default quota."
        raise Refusal(NodeProblem("not_found", message))

    async def put(self, environment: str) -> None:
        with refusals():
            wish = wishes.quota_wish(wishes.json_object(self.request.body, *QUOTA))
            environment = wishes.checked_name(environment)
        self.answer(await self.ask_node(Method.QUOTA_SET, environment=environment, **wish))

    async def delete(self, environment: str) -> None:
        with refusals():
            environment = wishes.checked_name(environment)
        self.answer(await self.ask_node(Method.QUOTA_UNSET, environment=environment))


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
    (r"api/status", StatusHandler),
    (r"api/leases", LeasesHandler),
    (r"api/leases/([^/]+)", LeaseHandler),
    (r"api/leases/([^/]+)/pin", PinHandler),
    (r"api/leases/([^/]+)/revoke", RevokeHandler),
    (r"api/gpus/([^/]+)/drain", DrainHandler),
    (r"api/gpus/([^/]+)/resume", ResumeGpuHandler),
    (r"api/quota", QuotaHandler),
    (r"api/usage", UsageHandler),
    (r"api/usage/daily", DailyUsageHandler),
    (r"api/readings", ReadingsHandler),
    (r"api/history", HistoryHandler),
    (r"api/quotas", QuotasHandler),
    (r"api/quotas/(.+)", EnvironmentQuotaHandler),
    (r"api/openapi\.json", OpenApiHandler),
    (r"api/.*", NothingHandler),
)
