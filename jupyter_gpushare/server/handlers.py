"""REST under ``gpushare/api/``: the calls of the server's user to the node manager.

Every method is authenticated and authorized (resource ``gpushare``; action
``read`` or ``write``, and ``admin`` for other people's things), whatever
``allow_unauthenticated_access`` says. Whether the user *is* an admin the node
manager decides; the server's Authorizer only decides who may try through this
server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_gpushare.link import openapi, wishes
from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.quota import QUOTA

AUTH_RESOURCE = "gpushare"

Handle = TypeVar("Handle", bound=Callable[..., Awaitable[None]])

_REASON_OF = {
    400: "bad_request",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
}
_METHODS = ("GET", "POST", "PUT", "DELETE")


def admin_only(method: Handle) -> Handle:
    """Let only those through whom the server's Authorizer allows ``admin`` on gpushare."""
    return cast(Handle, authorized(action="admin", resource=AUTH_RESOURCE)(method))


class ApiError(web.HTTPError):
    """An error that says its reason and message in the JSON body."""

    def __init__(self, code: str, message: str, numbers: dict[str, Any] | None = None) -> None:
        super().__init__(wishes.HTTP_STATUS.get(code, 502))
        self.code = code
        self.message = message
        self.numbers = numbers or {}


@contextmanager
def node_problems() -> Iterator[None]:
    """Map refusals, the node manager's and our own, to HTTP errors: the one place for it."""
    try:
        yield
    except NodeProblem as problem:
        raise ApiError(problem.reason, problem.message, problem.numbers) from problem


class GpuShareHandler(APIHandler):
    """The common part of the handlers: the link, strict parsing, JSON errors."""

    auth_resource = AUTH_RESOURCE
    # A panel polls; that must not keep an idle server from being culled.
    _track_activity = False

    def initialize(self, link: NodeLink) -> None:
        self.link = link

    async def ask(self, method: Method, **params: Any) -> dict[str, Any]:
        """Ask the node manager; ``None`` parameters are left out."""
        with node_problems():
            return await self.link.call(method, **params)

    def answer(self, document: object) -> None:
        """Finish with ``document`` as JSON that must not be cached."""
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(document, allow_nan=False))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write ``{"reason", "message", …numbers}``; no traceback, no HTML."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ApiError):
            body: dict[str, Any] = {
                **error.numbers,
                "reason": error.code,
                "message": error.message,
            }
        else:
            body = {
                "reason": _REASON_OF.get(status_code, "internal"),
                "message": self._message(status_code, error),
            }
        if status_code == 405:
            self.set_header("Allow", ", ".join(self._own_methods()))
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(body))

    def _message(self, status_code: int, error: BaseException | None) -> str:
        said = error.log_message if isinstance(error, web.HTTPError) else None
        if said:
            return said
        return {
            403: "You are not logged in to this server, or may not do this here.",
            404: "There is nothing at this address.",
            405: "This address does not know that method.",
        }.get(status_code, "Something went wrong in the server; its log has the reason.")

    def _own_methods(self) -> list[str]:
        return [
            name
            for name in _METHODS
            if getattr(type(self), name.lower()) is not getattr(web.RequestHandler, name.lower())
        ]

    # -- strict input -------------------------------------------------------------------------

    def body_object(self, *known: str) -> dict[str, Any]:
        """Return the JSON object of the body, refusing anything but ``known`` keys."""
        with node_problems():
            return wishes.json_object(self.request.body, *known)

    def query_number(self, name: str, least: float, most: float) -> float | None:
        """Return a number of the query within bounds, ``None`` when it is not given."""
        with node_problems():
            return wishes.number(name, self._query(name), least, most)

    def query_count(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number of the query within bounds, ``None`` when it is not given."""
        with node_problems():
            return wishes.count(name, self._query(name), least, most)

    def query_name(self, name: str) -> str | None:
        """Return an environment's name of the query, ``None`` when it is not given."""
        with node_problems():
            text = self._query(name)
            return None if text is None else wishes.checked_name(text)

    def _query(self, name: str) -> str | None:
        # Not get_query_arguments(), which silently turns control characters into spaces.
        return wishes.one_value(self.request.query_arguments, name)


def checked_name(text: str) -> str:
    """Return an environment's name of the path."""
    with node_problems():
        return wishes.checked_name(text)


def checked_lease(text: str) -> str:
    """Return a lease's id of the path."""
    with node_problems():
        return wishes.checked_lease(text)


class StatusHandler(GpuShareHandler):
    """The whole status document."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(
            await self.ask(Method.STATUS, page=self.query_count("page", 0, openapi.MOST_PAGES))
        )


class LeasesHandler(GpuShareHandler):
    """Leases and queue alone."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        status = await self.ask(Method.STATUS, page=self.query_count("page", 0, openapi.MOST_PAGES))
        self.answer({name: status[name] for name in ("leases", "queue", "more") if name in status})


class LeaseHandler(GpuShareHandler):
    """One lease: DELETE releases it."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def delete(self, lease: str) -> None:
        lease = checked_lease(lease)
        answer = await self.ask(Method.RELEASE, lease=lease)
        self.answer({"lease": lease, "state": answer["state"]})


class PinHandler(GpuShareHandler):
    """Keep an idle lease's GPUs for a while."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def post(self, lease: str) -> None:
        lease = checked_lease(lease)
        body = self.body_object("seconds")
        with node_problems():
            seconds = wishes.checked_pin(body)
        answer = await self.ask(Method.PIN, lease=lease, seconds=seconds)
        self.answer({"lease": lease, "state": answer["state"]})


class RevokeHandler(GpuShareHandler):
    """Take anybody's lease away."""

    _track_activity = True

    @web.authenticated
    @admin_only
    async def post(self, lease: str) -> None:
        lease = checked_lease(lease)
        body = self.body_object("reason")
        with node_problems():
            reason = wishes.checked_reason(body.get("reason"))
        answer = await self.ask(Method.LEASE_REVOKE, lease=lease, reason=reason)
        self.answer({"lease": lease, "state": answer["state"]})


class DrainHandler(GpuShareHandler):
    """Take a GPU out of service."""

    _track_activity = True

    @web.authenticated
    @admin_only
    async def post(self, gpu: str) -> None:
        body = self.body_object("reason")
        with node_problems():
            gpu = wishes.checked_gpu(gpu)
            reason = wishes.checked_drain_reason(body.get("reason"))
        self.answer(await self.ask(Method.GPU_DRAIN, gpu=gpu, reason=reason))


class ResumeGpuHandler(GpuShareHandler):
    """Put a GPU back into service."""

    _track_activity = True

    @web.authenticated
    @admin_only
    async def post(self, gpu: str) -> None:
        with node_problems():
            gpu = wishes.checked_gpu(gpu)
        self.answer(await self.ask(Method.GPU_RESUME, gpu=gpu))


class QuotaHandler(GpuShareHandler):
    """The user's own quota."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        status = await self.ask(Method.STATUS)
        self.answer({name: status[name] for name in ("environment", "admin", "quota")})


class UsageHandler(GpuShareHandler):
    """GPU-seconds by environment."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        since = self.query_number("since", 0, openapi.MOST_SECONDS)
        environment = self.query_name("environment")
        self.answer(await self.ask(Method.USAGE, since=since, environment=environment))


class DailyUsageHandler(GpuShareHandler):
    """GPU-seconds by local day, one's own and the node's."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        days = self.query_count("days", 1, openapi.MOST_DAYS)
        utc_offset = self.query_number(
            "utc_offset", -openapi.LARGEST_OFFSET, openapi.LARGEST_OFFSET
        )
        environment = self.query_name("environment")
        self.answer(
            await self.ask(
                Method.USAGE_DAILY, days=days, utc_offset=utc_offset, environment=environment
            )
        )


class ReadingsHandler(GpuShareHandler):
    """Utilisation and memory used over the last minutes."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        since = self.query_number("since", 0, openapi.MOST_READINGS)
        self.answer(await self.ask(Method.READINGS, since=since))


class HistoryHandler(GpuShareHandler):
    """The ledger's latest events."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        limit = self.query_count("limit", 1, openapi.LONGEST_HISTORY)
        environment = self.query_name("environment")
        self.answer(await self.ask(Method.HISTORY, limit=limit, environment=environment))


class QuotasHandler(GpuShareHandler):
    """The quotas of every environment that the node manager knows."""

    @web.authenticated
    @admin_only
    async def get(self) -> None:
        self.answer(await self.ask(Method.QUOTA_LIST))


class EnvironmentQuotaHandler(GpuShareHandler):
    """One environment's quota."""

    _track_activity = True

    @web.authenticated
    @admin_only
    async def get(self, environment: str) -> None:
        environment = checked_name(environment)
        for quota in (await self.ask(Method.QUOTA_LIST))["quotas"]:
            if quota["environment"] == environment:
                self.answer(quota)
                return
        raise ApiError(
            "not_found", f"No quota is set for {environment!r}: it has the default quota."
        )

    @web.authenticated
    @admin_only
    async def put(self, environment: str) -> None:
        body = self.body_object(*QUOTA)
        with node_problems():
            wish = wishes.quota_wish(body)
        environment = checked_name(environment)
        self.answer(await self.ask(Method.QUOTA_SET, environment=environment, **wish))

    @web.authenticated
    @admin_only
    async def delete(self, environment: str) -> None:
        environment = checked_name(environment)
        self.answer(await self.ask(Method.QUOTA_UNSET, environment=environment))


class OpenApiHandler(GpuShareHandler):
    """The description of this interface."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(openapi.document(self.base_url))


Route = tuple[str, Callable[..., Any], dict[str, Any]]


def rest_routes(link: NodeLink) -> list[Route]:
    """Return the REST routes, without the base URL."""
    given = {"link": link}
    return [
        (r"gpushare/api/status", StatusHandler, given),
        (r"gpushare/api/leases", LeasesHandler, given),
        (r"gpushare/api/leases/([^/]+)", LeaseHandler, given),
        (r"gpushare/api/leases/([^/]+)/pin", PinHandler, given),
        (r"gpushare/api/leases/([^/]+)/revoke", RevokeHandler, given),
        (r"gpushare/api/gpus/([^/]+)/drain", DrainHandler, given),
        (r"gpushare/api/gpus/([^/]+)/resume", ResumeGpuHandler, given),
        (r"gpushare/api/quota", QuotaHandler, given),
        (r"gpushare/api/usage", UsageHandler, given),
        (r"gpushare/api/usage/daily", DailyUsageHandler, given),
        (r"gpushare/api/readings", ReadingsHandler, given),
        (r"gpushare/api/history", HistoryHandler, given),
        (r"gpushare/api/quotas", QuotasHandler, given),
        (r"gpushare/api/quotas/(.+)", EnvironmentQuotaHandler, given),
        (r"gpushare/api/openapi\.json", OpenApiHandler, given),
    ]
