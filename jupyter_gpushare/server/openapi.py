"""The REST interface's OpenAPI 3.1 document, built from plain data.

Kept beside the handlers and held to them by a test: schemathesis sends what
the document allows (and what it does not) to a real server.
"""

from __future__ import annotations

from typing import Any

from jupyter_gpushare._version import __version__

Json = dict[str, Any]

LONGEST_NAME = 256
LONGEST_REASON = 1024
LONGEST_HISTORY = 1000
MOST_GPUS = 4096
MOST_MEMORY = 2**53  # bytes: what JavaScript can still count
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
MOST_SECONDS = 10 * 366 * 86400.0
TEXT_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
# No control characters, and no white space at either end.
NAME_PATTERN = (
    r"^[^\s\x00-\x1f\x7f-\x9f]"
    r"([^\x00-\x1f\x7f-\x9f\u2028\u2029]*[^\s\x00-\x1f\x7f-\x9f])?$"
)
ID_PATTERN = r"^[A-Za-z0-9._~-]{1,128}$"


def _object(properties: Json, *, required: list[str] | None = None, closed: bool = False) -> Json:
    schema: Json = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    if closed:
        schema["additionalProperties"] = False
    return schema


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_BYTES: Json = {"type": "integer", "minimum": 0, "description": "bytes"}
_SECONDS: Json = {"type": "number", "description": "seconds"}
_UNIX: Json = {"type": "number", "description": "Unix time, seconds"}
_FLAG: Json = {"type": "boolean"}


def _schemas() -> Json:
    return {
        "Error": _object(
            {
                "reason": {
                    "type": "string",
                    "description": "A word for programs.",
                },
                "message": {
                    "type": "string",
                    "description": "What happened, why, and what to do.",
                },
            }
        ),
        "Gpu": _object(
            {
                "uuid": _TEXT,
                "index": {"type": "integer"},
                "name": _TEXT,
                "memory": _BYTES,
                "reserved": _BYTES,
                "unleased": _BYTES,
                "free": _BYTES,
                "used": _or_null("integer", description="bytes; null is unknown"),
                "mine": _BYTES,
                "utilisation": _or_null("number", description="0 to 1"),
                "tasks": _COUNT,
                "health": {"enum": ["ok", "lost"]},
                "problem": _or_null("string"),
                "squatters": _array({"type": "object"}),
            }
        ),
        "Lease": _object(
            {
                "id": _or_null("string", description="null: another environment's"),
                "environment": _or_null("string"),
                "mine": _FLAG,
                "state": {
                    "enum": [
                        *("queued", "active", "idle", "stalled", "draining"),
                        *("parked", "over_limit", "ended"),
                    ]
                },
                "phase": _TEXT,
                "activity": _or_null("string"),
                "name": _or_null("string"),
                "kind": _or_null("string"),
                "kernel_id": _or_null("string"),
                "path": _or_null("string"),
                "pid": _or_null("integer"),
                "gpus": _array({"type": "object"}),
                "asked": {"type": "object"},
                "priority_class": _TEXT,
                "requested": _UNIX,
                "granted": _or_null("number"),
                "age": _SECONDS,
                "position": _or_null("integer"),
            }
        ),
        "Waiting": _object(
            {
                "position": {"type": "integer"},
                "lease": _or_null("string"),
                "mine": _FLAG,
                "environment": _or_null("string"),
                "priority_class": _TEXT,
                "gpus": _COUNT,
                "memory": _or_null("integer"),
                "waiting": _SECONDS,
            }
        ),
        "Status": _object(
            {
                "node": _object(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "simulated": _FLAG,
                        "problem": _or_null("string"),
                    }
                ),
                "environment": _TEXT,
                "admin": _FLAG,
                "quota": {"type": ["object", "null"]},
                "gpus": _array(_ref("Gpu")),
                "leases": _array(_ref("Lease")),
                "queue": _array(_ref("Waiting")),
            }
        ),
        "Leases": _object({"leases": _array(_ref("Lease")), "queue": _array(_ref("Waiting"))}),
        "OwnQuota": _object(
            {"environment": _TEXT, "admin": _FLAG, "quota": {"type": ["object", "null"]}}
        ),
        "Usage": _object(
            {
                "since": _UNIX,
                "until": _UNIX,
                "rows": _array(
                    _object(
                        {
                            "environment": _TEXT,
                            "gpu_seconds_held": _SECONDS,
                            "gpu_seconds_busy": _SECONDS,
                            "leases": _COUNT,
                        }
                    )
                ),
            }
        ),
        "History": _object(
            {
                "events": _array(
                    _object(
                        {
                            "at": _UNIX,
                            "kind": _TEXT,
                            "environment": _or_null("string"),
                            "lease": _or_null("string"),
                            "text": _TEXT,
                        }
                    )
                )
            }
        ),
        "LeaseState": _object({"lease": _TEXT, "state": _TEXT}),
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
        "QuotaWish": _object(
            {
                "gpus": {"type": "integer", "minimum": 0, "maximum": MOST_GPUS},
                "memory": {
                    "description": "On each GPU: bytes, or text as '8GiB'; null is the whole GPU.",
                    "anyOf": [
                        {"type": "integer", "minimum": 1, "maximum": MOST_MEMORY},
                        {"type": "string", "enum": ["8GiB", "16 GB", "512MiB", "0.5GiB"]},
                        {"type": "null"},
                    ],
                },
                "weight": {
                    "type": "number",
                    "minimum": LEAST_WEIGHT,
                    "maximum": MOST_WEIGHT,
                },
            },
            required=["gpus"],
            closed=True,
        ),
        "Quota": _object(
            {
                "environment": _TEXT,
                "gpus": _COUNT,
                "memory": _or_null("integer"),
                "weight": {"type": "number"},
            }
        ),
        "Quotas": _object({"quotas": _array(_ref("Quota")), "default": {"type": "object"}}),
    }


def _answers(schema: str, *extra: int) -> Json:
    texts = {
        400: "The request makes no sense; nothing was changed.",
        403: "Not logged in, not authorized by the server's Authorizer, or not an admin.",
        404: "There is no such thing, or it is not yours.",
        409: "It cannot be done in the present state.",
        429: "Too many requests; try again in a second.",
        502: "The node manager answered nonsense or speaks another protocol.",
        503: "No node manager can be reached.",
        504: "The node manager did not answer in time.",
    }
    answers: Json = {
        "200": {
            "description": "Done.",
            "content": {"application/json": {"schema": _ref(schema)}},
        }
    }
    for status in sorted({400, 403, 429, 502, 503, 504, *extra}):
        answers[str(status)] = {
            "description": texts[status],
            "content": {"application/json": {"schema": _ref("Error")}},
        }
    return answers


def _path_parameter(name: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


_LEASE_ID = _path_parameter("lease", {"type": "string", "pattern": ID_PATTERN})
_NAME: Json = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_NAME,
    "pattern": NAME_PATTERN,
}
_ENVIRONMENT = _path_parameter("environment", _NAME)
_ONE_ENVIRONMENT = _query("environment", _NAME, "Only this environment (others': admins only).")


def _body(schema: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": _ref(schema)}}}


def _operation(name: str, summary: str, schema: str, *extra: int, **more: Any) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "responses": _answers(schema, *extra),
        **more,
    }


def _paths() -> Json:
    since = {"type": "number", "minimum": 0, "maximum": MOST_SECONDS}
    limit = {"type": "integer", "minimum": 1, "maximum": LONGEST_HISTORY, "default": 50}
    return {
        "/gpushare/api/status": {
            "get": _operation("getStatus", "GPUs, leases and queue of the node.", "Status")
        },
        "/gpushare/api/leases": {
            "get": _operation("getLeases", "Leases and waiting requests.", "Leases")
        },
        "/gpushare/api/leases/{lease}": {
            "parameters": [_LEASE_ID],
            "delete": _operation("releaseLease", "Release a lease of yours.", "LeaseState", 404),
        },
        "/gpushare/api/leases/{lease}/revoke": {
            "parameters": [_LEASE_ID],
            "post": _operation(
                "revokeLease",
                "Take anyone's lease away (admin).",
                "LeaseState",
                404,
                requestBody=_body("Revoke"),
            ),
        },
        "/gpushare/api/quota": {"get": _operation("getQuota", "Your own quota.", "OwnQuota")},
        "/gpushare/api/usage": {
            "get": _operation(
                "getUsage",
                "GPU-seconds held and busy by environment.",
                "Usage",
                parameters=[_query("since", since, "Seconds back from now."), _ONE_ENVIRONMENT],
            )
        },
        "/gpushare/api/history": {
            "get": _operation(
                "getHistory",
                "The ledger's latest events, newest first.",
                "History",
                parameters=[_query("limit", limit, "At most so many."), _ONE_ENVIRONMENT],
            )
        },
        "/gpushare/api/quotas": {
            "get": _operation("listQuotas", "Every quota that is set (admin).", "Quotas")
        },
        "/gpushare/api/quotas/{environment}": {
            "parameters": [_ENVIRONMENT],
            "get": _operation("getQuotaOf", "One environment's quota (admin).", "Quota", 404),
            "put": _operation(
                "setQuota",
                "Set an environment's quota (admin).",
                "Quota",
                requestBody=_body("QuotaWish"),
            ),
            "delete": _operation(
                "unsetQuota", "Go back to the default quota (admin).", "Quota", 404
            ),
        },
    }


def document(base_url: str = "/") -> Json:
    """Return the OpenAPI document of a server whose base URL is ``base_url``."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jupyter_gpushare",
            "version": __version__,
            "description": (
                "The node manager's GPUs, leases and quotas, as this Jupyter server's user "
                "sees them. Live status: the WebSocket `gpushare/api/live`, which sends "
                '`{"type": "status", "status": …}` or `{"type": "unavailable", '
                '"reason": …, "message": …}` with each change.'
            ),
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "servers": [{"url": base_url.rstrip("/") or "/"}],
        "security": [{"token": []}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
        },
    }
