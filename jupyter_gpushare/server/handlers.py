"""REST under ``gpushare/api/``: what the server's user may ask of the node manager.

Every method is authenticated and authorized (resource ``gpushare``; action
``read`` or ``write``, and ``admin`` for other people's things), whatever
``allow_unauthenticated_access`` says. Whether the user *is* an admin the node
manager decides; the server's Authorizer only decides who may try through this
server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from tornado import web

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.sizes import parse_size

from . import openapi

AUTH_RESOURCE = "gpushare"

Handle = TypeVar("Handle", bound=Callable[..., Awaitable[None]])

_STATUS_OF = {
    "bad_request": 400,
    "not_allowed": 403,
    "unknown_lease": 404,
    "not_found": 404,
    "over_quota": 409,
    "zero_quota": 409,
    "too_large": 409,
    "no_resources": 409,
    "rate_limited": 429,
    "unsupported_protocol": 502,
    "unavailable": 503,
    "timed_out": 504,
}
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
        super().__init__(_STATUS_OF.get(code, 502))
        self.code = code
        self.message = message
        self.numbers = numbers or {}


def bad_request(message: str) -> ApiError:
    """Return the error for input that makes no sense."""
    return ApiError("bad_request", message)


@contextmanager
def node_problems() -> Iterator[None]:
    """Map the node manager's refusals to HTTP errors: the one place for it."""
    try:
        yield
    except NodeProblem as problem:
        raise ApiError(problem.reason, problem.message, problem.numbers) from problem


class GpuShareHandler(APIHandler):
    """What the handlers have in common: the link, strict parsing, JSON errors."""

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
        """Finish with ``document`` as JSON that nobody caches."""
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
        try:
            body = json.loads(self.request.body.decode("utf-8"), parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"The body is not JSON ({error}).") from error
        if not isinstance(body, dict):
            raise bad_request("The body must be a JSON object.")
        unknown = sorted(set(body) - set(known))
        if unknown:
            raise bad_request(
                f"Unknown key {unknown[0][:64]!r}; known are {', '.join(map(repr, known))}."
            )
        return body

    def query_number(self, name: str, least: float, most: float) -> float | None:
        """Return a number of the query within bounds, ``None`` when it is not given."""
        text = self._query(name)
        if text is None:
            return None
        # Python's float() also takes "1_0", " 1", "nan" and Arabic digits. A double may be written
        # with more places than it has figures: 0.00012…
        if not re.fullmatch(r"-?[0-9]{1,16}(\.[0-9]{0,32})?([eE][+-]?[0-9]{1,3})?", text):
            raise bad_request(f"{name!r} must be a number, not {text[:64]!r}.")
        value = float(text)
        if not least <= value <= most:
            raise bad_request(f"{name!r} must be between {least:g} and {most:g}.")
        return value

    def query_count(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number of the query within bounds, ``None`` when it is not given."""
        value = self.query_number(name, least, most)
        if value is None:
            return None
        if not value.is_integer():
            raise bad_request(f"{name!r} must be a whole number.")
        return int(value)

    def query_name(self, name: str) -> str | None:
        """Return an environment's name of the query, ``None`` when it is not given."""
        text = self._query(name)
        return None if text is None else checked_name(text)

    def _query(self, name: str) -> str | None:
        # Not get_query_arguments(), which silently turns control characters into spaces.
        values = self.request.query_arguments.get(name, [])
        if len(values) > 1:
            raise bad_request(f"{name!r} is given {len(values)} times.")
        try:
            return values[0].decode("utf-8") if values else None
        except UnicodeDecodeError as error:
            raise bad_request(f"{name!r} is not UTF-8.") from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def checked_name(text: str) -> str:
    """Return an environment's name, refusing empty, padded, over-long and unprintable ones."""
    if len(text) > openapi.LONGEST_NAME or not re.fullmatch(openapi.NAME_PATTERN, text):
        raise bad_request(
            f"An environment's name has 1 to {openapi.LONGEST_NAME} characters, no control "
            "characters and no space around it."
        )
    return text


def checked_lease(text: str) -> str:
    """Return a lease's id, or say that there is no such lease."""
    if not re.fullmatch(openapi.ID_PATTERN, text):
        raise ApiError("unknown_lease", "There is no such lease.")
    return text


def quota_wish(body: dict[str, Any]) -> dict[str, Any]:
    """Turn a quota's JSON body into the protocol's parameters. Raises :class:`ApiError`."""
    gpus = _whole(body.get("gpus"))
    if gpus is None or not 0 <= gpus <= openapi.MOST_GPUS:
        raise bad_request(f"'gpus' must be a whole number from 0 to {openapi.MOST_GPUS}.")
    memory = body.get("memory")
    if memory is not None:
        try:
            memory = parse_size(memory) if isinstance(memory, str) else _whole(memory)
        except ValueError as error:
            raise bad_request(str(error)) from error
        if memory is None or not 1 <= memory <= openapi.MOST_MEMORY:
            raise bad_request("'memory' must be a positive size such as '8GiB' or bytes, or null.")
    weight = body.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise bad_request("'weight' must be a number.")
    if not openapi.LEAST_WEIGHT <= weight <= openapi.MOST_WEIGHT:
        raise bad_request(
            f"'weight' must be from {openapi.LEAST_WEIGHT:g} to {openapi.MOST_WEIGHT:g}."
        )
    return {"gpus": gpus, "memory": memory, "weight": float(weight)}


def _whole(value: object) -> int | None:
    """Return a JSON number that is whole (``2.0`` is), ``None`` for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class StatusHandler(GpuShareHandler):
    """The whole status document."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        self.answer(await self.ask(Method.STATUS))


class LeasesHandler(GpuShareHandler):
    """Leases and queue alone."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        status = await self.ask(Method.STATUS)
        self.answer({"leases": status["leases"], "queue": status["queue"]})


class LeaseHandler(GpuShareHandler):
    """One lease: DELETE releases it."""

    _track_activity = True

    @web.authenticated
    @authorized
    async def delete(self, lease: str) -> None:
        lease = checked_lease(lease)
        answer = await self.ask(Method.RELEASE, lease=lease)
        self.answer({"lease": lease, "state": answer["state"]})


class RevokeHandler(GpuShareHandler):
    """Take anybody's lease away."""

    _track_activity = True

    @web.authenticated
    @admin_only
    async def post(self, lease: str) -> None:
        lease = checked_lease(lease)
        reason: Any = self.body_object("reason").get("reason")
        told = isinstance(reason, str) and len(reason) <= openapi.LONGEST_REASON
        if not told or not re.fullmatch(openapi.TEXT_PATTERN, reason):
            raise bad_request(
                f"'reason' must be a text of 1 to {openapi.LONGEST_REASON} characters, none of "
                "them control characters: the lease's owner reads it."
            )
        answer = await self.ask(Method.LEASE_REVOKE, lease=lease, reason=reason)
        self.answer({"lease": lease, "state": answer["state"]})


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
        wish = quota_wish(self.body_object("gpus", "memory", "weight"))
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
        (r"gpushare/api/leases/([^/]+)/revoke", RevokeHandler, given),
        (r"gpushare/api/quota", QuotaHandler, given),
        (r"gpushare/api/usage", UsageHandler, given),
        (r"gpushare/api/usage/daily", DailyUsageHandler, given),
        (r"gpushare/api/readings", ReadingsHandler, given),
        (r"gpushare/api/history", HistoryHandler, given),
        (r"gpushare/api/quotas", QuotasHandler, given),
        (r"gpushare/api/quotas/(.+)", EnvironmentQuotaHandler, given),
        (r"gpushare/api/openapi\.json", OpenApiHandler, given),
    ]
