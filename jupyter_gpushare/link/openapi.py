"""The REST interface's OpenAPI 3.1 document, built from plain data.

The Jupyter server's interface and JupyterHub's have the same resources; what
differs is a :class:`Host`. Held to the handlers by a test: schemathesis sends
what the document allows (and what it does not) to a real server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jupyter_gpushare._version import __version__
from jupyter_gpushare.protocol import documents as doc
from jupyter_gpushare.protocol.messages import (
    LINE_PATTERN,
    LONGEST_SINCE,
    MOST_GPU_HOURS,
    MOST_IDLE,
    MOST_MEMORY,
    NAME,
    TEXT,
    WEIGHTS,
)
from jupyter_gpushare.protocol.sizes import MOST_GPUS

from .schema import Json, components, reference

LONGEST_NAME, LONGEST_REASON, LONGEST_DRAIN_REASON = NAME, TEXT, NAME
LONGEST_HISTORY = 1000
MOST_PIN = 1e9  # seconds
MOST_DAYS = 366
MOST_PAGES = 1_000_000
LARGEST_OFFSET = 14 * 3600  # seconds; the time zones' extremes are 12 h behind and 14 h ahead
MOST_READINGS = 86400  # seconds
MOST_SECONDS = LONGEST_SINCE
TEXT_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
# No control characters, and no white space at either end.
NAME_PATTERN = (
    r"^[^\s\x00-\x1f\x7f-\x9f]"
    r"([^\x00-\x1f\x7f-\x9f\u2028\u2029]*[^\s\x00-\x1f\x7f-\x9f])?$"
)
ID_PATTERN = r"^[A-Za-z0-9._~-]{1,128}$"


@dataclass(frozen=True, slots=True)
class Host:
    """Who serves the interface: where, in whose eyes, and who is refused.

    ``many_nodes``: it knows several node managers, and ``node`` says which.
    """

    prefix: str
    about: str
    forbidden: str
    many_nodes: bool = False


SERVER = Host(
    prefix="/gpushare/api",
    about=(
        "The node manager's GPUs, leases and quotas, as this Jupyter server's user "
        "sees them. Live status: the WebSocket `gpushare/api/live`, which sends "
        '`{"type": "status", "status": …}` or `{"type": "unavailable", '
        '"reason": …, "message": …}` with each change.'
    ),
    forbidden="Not logged in, not authorized by the server's Authorizer, or not an admin.",
)
HUB = Host(
    prefix="/api",
    about=(
        "The node managers' GPUs, leases and quotas, as the owner of the JupyterHub token "
        "sees them. The token needs the scope `access:services!service=gpushare`. The "
        'WebSocket `live` sends `{"type": "changed"}` with each change.'
    ),
    forbidden="No token that JupyterHub knows, one without the scope, or not an admin's.",
    many_nodes=True,
)


def _object(
    properties: Json,
    *,
    required: list[str] | None = None,
    optional: tuple[str, ...] = (),
    closed: bool = False,
) -> Json:
    needed = list(properties) if required is None else required
    schema: Json = {
        "type": "object",
        "properties": properties,
        "required": [name for name in needed if name not in optional],
    }
    if closed:
        schema["additionalProperties"] = False
    return schema


def _or_null(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


_PER: Json = {
    "description": "'week', 'month', or the first day of a term; null: the rolling window",
    "anyOf": [{"enum": ["week", "month", None]}, {"type": "string", "format": "date"}],
}

#: What REST answers with. Those with a name are components; the others stand inside them.
_ANSWERS: Final[Mapping[str, Any]] = {
    kind.__name__: kind
    for kind in (
        *(doc.Error, doc.Status, doc.Gpu, doc.OutOfService, doc.Lease, doc.Waiting),
        *(doc.HeldQuota, doc.Budget, doc.Leases, doc.OwnQuota, doc.Usage, doc.DailyUsage),
        *(doc.UsedOnDay, doc.Readings, doc.History, doc.LeaseState, doc.GpuService),
        *(doc.Quota, doc.Quotas, doc.GroupQuota),
    )
} | {"Live": doc.Live}


def _bodies() -> Json:
    return {
        "Pin": _object(
            {
                "seconds": {
                    "type": ["number", "null"],
                    "minimum": 0,
                    "maximum": MOST_PIN,
                    "description": "null, or left out: keep_for; 0: no more",
                }
            },
            required=[],
            closed=True,
        ),
        "Revoke": _object(
            {
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": LONGEST_REASON,
                    "pattern": TEXT_PATTERN,
                }
            },
            closed=True,
        ),
        "Drain": _object(
            {
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": LONGEST_DRAIN_REASON,
                    "pattern": LINE_PATTERN,
                }
            },
            closed=True,
        ),
        "QuotaWish": _object(
            {
                "gpus": {"type": "integer", "minimum": 0, "maximum": MOST_GPUS},
                "memory": {
                    "description": "On each GPU: bytes, or text as '8GiB'; null is the whole GPU. "
                    "What a wish leaves out, this or another, stays as it is.",
                    "anyOf": [
                        {"type": "integer", "minimum": 1, "maximum": MOST_MEMORY},
                        {"type": "string", "enum": ["8GiB", "16 GB", "512MiB", "0.5GiB"]},
                        {"type": "null"},
                    ],
                },
                "weight": {
                    "type": "number",
                    "minimum": WEIGHTS[0],
                    "maximum": WEIGHTS[1],
                },
                "gpu_hours": _or_null(
                    "number",
                    minimum=0,
                    maximum=MOST_GPU_HOURS,
                    description="For the period 'per'; null is no budget.",
                ),
                "per": _PER,
                "idle_timeout": _or_null(
                    "number",
                    minimum=0,
                    maximum=MOST_IDLE,
                    description="Seconds until an idle kernel's GPUs are asked back; 0 is never; "
                    "null is the node's own time-out.",
                ),
                "burst_memory": {
                    "description": "Up to what limits are lifted on a nearly empty GPU: bytes, "
                    "text as '60GiB', or up to 1.0 a share of a GPU; 0 is not at all; null is the "
                    "node's own.",
                    "anyOf": [
                        {"type": "number", "minimum": 0, "maximum": 1},
                        {"type": "integer", "minimum": 1, "maximum": MOST_MEMORY},
                        {"type": "string", "enum": ["60GiB", "40 GB", "0.9"]},
                        {"type": "null"},
                    ],
                },
            },
            required=["gpus"],
            closed=True,
        ),
    }


def _answers(schema: str, forbidden: str, *extra: int) -> Json:
    texts = {
        400: "The request is not valid; nothing was changed.",
        403: forbidden,
        404: "There is no such thing, or it is not yours.",
        409: "It cannot be done in the present state.",
        429: "Too many requests; try again in a second.",
        502: "The node manager's answer cannot be read, or it speaks another protocol.",
        503: "No node manager can be reached.",
        504: "The node manager did not answer in time.",
    }
    answers: Json = {
        "200": {
            "description": "Done.",
            "content": {"application/json": {"schema": reference(schema)}},
        }
    }
    for status in sorted({400, 403, 429, 502, 503, 504, *extra}):
        answers[str(status)] = {
            "description": texts[status],
            "content": {"application/json": {"schema": reference("Error")}},
        }
    return answers


def _path_parameter(name: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


_LEASE_ID = _path_parameter("lease", {"type": "string", "pattern": ID_PATTERN})
_GPU = _path_parameter("gpu", {"type": "string", "pattern": ID_PATTERN})
_NAME: Json = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_NAME,
    "pattern": NAME_PATTERN,
}
_ENVIRONMENT = _path_parameter("environment", _NAME)
_PAGE = _query(
    "page",
    {"type": "integer", "minimum": 0, "maximum": MOST_PAGES},
    "Which page of the lists; 0 is the first, and all that one has who is no administrator.",
)
_ONE_ENVIRONMENT = _query("environment", _NAME, "Only this environment (others': admins only).")


def _body(schema: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": reference(schema)}}}


def _paths(host: Host) -> Json:
    one_node = _query("node", _NAME, "Of this node; may be left out where there is one.")
    which = [one_node] if host.many_nodes else []

    def operation(name: str, summary: str, schema: str, *extra: int, **more: Any) -> Json:
        if which:
            more["parameters"] = [*more.get("parameters", []), *which]
            extra = (*extra, 404)  # no such node
        return {
            "operationId": name,
            "summary": summary,
            "responses": _answers(schema, host.forbidden, *extra),
            **more,
        }

    since = {"type": "number", "minimum": 0, "maximum": MOST_SECONDS}
    limit = {"type": "integer", "minimum": 1, "maximum": LONGEST_HISTORY, "default": 50}
    paths = {
        "/status": {
            "get": operation(
                "getStatus", "GPUs, leases and queue of the node.", "Status", parameters=[_PAGE]
            )
        },
        "/leases": {
            "get": operation(
                "getLeases", "Leases and waiting requests.", "Leases", parameters=[_PAGE]
            )
        },
        "/leases/{lease}": {
            "parameters": [_LEASE_ID],
            "delete": operation("releaseLease", "Release a lease of yours.", "LeaseState", 404),
        },
        "/leases/{lease}/revoke": {
            "parameters": [_LEASE_ID],
            "post": operation(
                "revokeLease",
                "Take anyone's lease away (admin).",
                "LeaseState",
                404,
                requestBody=_body("Revoke"),
            ),
        },
        "/leases/{lease}/pin": {
            "parameters": [_LEASE_ID],
            "post": operation(
                "pinLease",
                "Keep an idle lease's GPUs for a while, within the administrator's limit.",
                "LeaseState",
                404,
                requestBody=_body("Pin"),
            ),
        },
        "/gpus/{gpu}/drain": {
            "parameters": [_GPU],
            "post": operation(
                "drainGpu",
                "Take a GPU out of service: nothing new is placed on it (admin).",
                "GpuService",
                404,
                requestBody=_body("Drain"),
            ),
        },
        "/gpus/{gpu}/resume": {
            "parameters": [_GPU],
            "post": operation(
                "resumeGpu", "Put a GPU back into service (admin).", "GpuService", 404
            ),
        },
        "/quota": {"get": operation("getQuota", "Your own quota.", "OwnQuota")},
        "/usage": {
            "get": operation(
                "getUsage",
                "GPU-seconds held and busy by environment.",
                "Usage",
                parameters=[_query("since", since, "Seconds back from now."), _ONE_ENVIRONMENT],
            )
        },
        "/usage/daily": {
            "get": operation(
                "getDailyUsage",
                "GPU-seconds by local day, oldest first; today ends now.",
                "DailyUsage",
                parameters=[
                    _query(
                        "days",
                        {"type": "integer", "minimum": 1, "maximum": MOST_DAYS, "default": 30},
                        "So many days.",
                    ),
                    _query(
                        "utc_offset",
                        {
                            "type": "number",
                            "minimum": -LARGEST_OFFSET,
                            "maximum": LARGEST_OFFSET,
                            "default": 0,
                        },
                        "Seconds by which the local clock is ahead of UTC's.",
                    ),
                    _ONE_ENVIRONMENT,
                ],
            )
        },
        "/readings": {
            "get": operation(
                "getReadings",
                "The GPUs' utilisation and memory used over the last quarter of an hour.",
                "Readings",
                parameters=[
                    _query(
                        "since",
                        {"type": "number", "minimum": 0, "maximum": MOST_READINGS},
                        "Seconds back from now.",
                    )
                ],
            )
        },
        "/history": {
            "get": operation(
                "getHistory",
                "The ledger's latest events, newest first.",
                "History",
                parameters=[_query("limit", limit, "At most so many."), _ONE_ENVIRONMENT],
            )
        },
        "/quotas": {
            "get": operation(
                "listQuotas",
                "The quotas of every environment that the node manager knows (admin).",
                "Quotas",
            )
        },
        "/quotas/{environment}": {
            "parameters": [_ENVIRONMENT],
            "get": operation("getQuotaOf", "One environment's quota (admin).", "Quota", 404),
            "put": operation(
                "setQuota",
                "Set an environment's quota (admin).",
                "Quota",
                requestBody=_body("QuotaWish"),
            ),
            "delete": operation(
                "unsetQuota", "Go back to the default quota (admin).", "Quota", 404
            ),
        },
    }
    if host.many_nodes:
        paths["/nodes"] = {
            "get": {
                "operationId": "getNodes",
                "summary": "The node managers that this service knows.",
                "responses": _answers("Nodes", host.forbidden),
            }
        }
    return {host.prefix + path: operations for path, operations in paths.items()}


def document(base_url: str = "/", host: Host = SERVER) -> Json:
    """Return the OpenAPI document of a ``host`` whose base URL is ``base_url``."""
    answers = {**_ANSWERS, **({"Nodes": doc.Nodes} if host.many_nodes else {})}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jupyter_gpushare",
            "version": __version__,
            "description": host.about,
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "servers": [{"url": base_url.rstrip("/") or "/"}],
        "security": [{"token": []}],
        "paths": _paths(host),
        "components": {
            "schemas": {**components(answers), **_bodies()},
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
        },
    }
