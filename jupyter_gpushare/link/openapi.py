"""The REST interface's OpenAPI 3.1 document, built from plain data.

The Jupyter server's interface and JupyterHub's have the same resources; what
differs is a :class:`Host`. Held to the handlers by a test: schemathesis sends
what the document allows (and what it does not) to a real server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jupyter_gpushare._version import __version__
from jupyter_gpushare.protocol import calls, documents as doc
from jupyter_gpushare.protocol.messages import MOST_MEMORY, Method
from jupyter_gpushare.protocol.secured import HOST_NAME
from jupyter_gpushare.protocol.sizes import LEAST_MEMORY
from jupyter_gpushare.quota import FIELDS, Field, Unit

from . import rest, wishes
from .schema import Json, components, fields, reference


@dataclass(frozen=True, slots=True)
class Host:
    """The server of the interface: where it is, what it is called, and whom it refuses.

    With ``many_nodes`` it knows several node managers, and ``node`` says which. With ``kernels``
    it starts kernels.
    """

    prefix: str
    about: str
    forbidden: str
    many_nodes: bool = False
    kernels: bool = False


SERVER = Host(
    prefix="/gpushare/api",
    about=(
        "The node manager's GPUs, leases and quotas, as this Jupyter server's user "
        "sees them. Live status: the WebSocket `gpushare/api/live`, which sends "
        '`{"type": "status", "status": …}` or `{"type": "unavailable", '
        '"reason": …, "message": …}` with each change.'
    ),
    forbidden="Not logged in, not authorized by the server's Authorizer, or not an admin.",
    kernels=True,
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


#: What REST answers with. Those with a name are components; the others stand inside them.
_ANSWERS: Final[Mapping[str, Any]] = {
    kind.__name__: kind
    for kind in (
        *(doc.Error, doc.Said, doc.Status, doc.Gpu, doc.OutOfService),
        *(doc.Lease, doc.Job, doc.Waiting),
        *(doc.HeldQuota, doc.Budget, doc.Leases, doc.OwnQuota, doc.Usage, doc.DailyUsage),
        *(doc.UsedOnDay, doc.Readings, doc.History, doc.LeaseState, doc.GpuService),
        *(doc.Quota, doc.Quotas, doc.GroupQuota, doc.Servers, doc.Server),
    )
} | {"Live": doc.Live}


def _bodies() -> Json:
    """What REST takes: a call's parameters, less those of the path, and what only people write."""
    wish = _without(calls.QuotaParams, "whose")
    for name, field in FIELDS.items():
        if field.unit in _SIZES:
            wish[name] = _sized(field, wish[name]["description"])
    return {
        "Pin": _closed(_without(calls.PinParams, "lease"), ()),
        "Revoke": _closed(_without(calls.RevokeParams, "lease"), ("reason",), wishes.TEXT_PATTERN),
        "Drain": _closed(_without(calls.DrainParams, "gpu"), ("reason",)),
        # What a wish leaves out stays as it is, or goes on following the group.
        "QuotaWish": _closed(wish, ()) | {"minProperties": 1},
    }


#: Texts with a unit that people write for a size, too.
_SIZES: Final[Mapping[Unit, list[str]]] = {
    Unit.BYTES: ["8GiB", "16 GB", "512MiB", "0.5GiB"],
    Unit.PART: ["60GiB", "40 GB", "0.9"],
}


def _sized(field: Field, about: str) -> Json:
    """A size in bytes, or as a text; below the least one there is at most 0, or a share."""
    share = {"type": "number", "minimum": 0, "maximum": 1}
    low = share if field.unit is Unit.PART else {"type": "integer", "enum": [0]}
    sizes = {"type": "integer", "minimum": LEAST_MEMORY, "maximum": MOST_MEMORY}
    texts = {"enum": _SIZES[field.unit]}
    any_of = [*([] if field.least else [low]), sizes, texts, {"type": "null"}]
    return {"description": f"{about}; or text as '{texts['enum'][0]}'", "anyOf": any_of}


def _without(kind: type, name: str) -> Json:
    """The parameters of a call but for one."""
    return {each: schema for each, schema in fields(kind).items() if each != name}


def _closed(properties: Json, required: tuple[str, ...], pattern: str = "") -> Json:
    """An object that has nothing else; ``pattern`` is that of its required texts."""
    if pattern:
        properties = {**properties, **{x: {**properties[x], "pattern": pattern} for x in required}}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
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


def _query(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": description}


_NAME: Json = {
    "type": "string",
    "minLength": 1,
    "maxLength": wishes.ENVIRONMENT.most,
    "pattern": wishes.NAME_PATTERN,
}
_ID: Json = {"type": "string", "pattern": wishes.ID_PATTERN}
_PATH_SCHEMAS: Final[Mapping[str, Json]] = {"lease": _ID, "gpu": _ID, "environment": _NAME}
_PATH_MEANINGS: Final[Mapping[str, str]] = {
    "lease": "its id",
    "gpu": "its UUID",
    "environment": "a user's name; with a quota for each named server: user/server",
}


def _queries(method: Method) -> list[Json]:
    """The parameters of a call as those of a query."""
    kind = calls.PARAMS[method]
    defaults = {one.name: one.default for one in dataclasses.fields(kind)}
    queries = []
    for name, schema in fields(kind).items():
        about = schema.pop("description")
        if defaults[name] is not None:
            schema["default"] = defaults[name]
        queries.append(_query(name, _PATH_SCHEMAS.get(name, schema), about))
    return queries


def _body(schema: str) -> Json:
    return {"required": True, "content": {"application/json": {"schema": reference(schema)}}}


def _operation(one: rest.Operation, host: Host) -> Json:
    queries = _queries(one.query) if one.query else []
    if host.many_nodes:
        about = "Of this node; may be left out where there is one."
        queries.append(_query("node", _NAME, about))
    missing = one.missing or host.many_nodes  # no such node
    return {
        "operationId": one.name,
        "summary": one.summary,
        "responses": _answers(one.answer, host.forbidden, *([404] if missing else [])),
        **({"parameters": queries} if queries else {}),
        **({"requestBody": _body(one.body)} if one.body else {}),
    }


def _paths(host: Host) -> Json:
    paths: Json = {}
    for one in rest.OPERATIONS:
        path = paths.setdefault(one.path, {})
        if one.parts:
            path["parameters"] = [
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": _PATH_SCHEMAS[name],
                    "description": _PATH_MEANINGS[name],
                }
                for name in one.parts
            ]
        path[one.verb] = _operation(one, host)
    if host.many_nodes:
        paths["/nodes"] = {
            "get": {
                "operationId": "getNodes",
                "summary": "The node managers that this service knows.",
                "responses": _answers("Nodes", host.forbidden),
            }
        }
        paths["/where"] = {
            "get": {
                "operationId": "getWhere",
                "summary": "The pool's hosts, ranked for what a server or a kernel of yours needs.",
                "parameters": [
                    _query("gpus", {"type": "integer", "minimum": 0}, "GPUs on one host; 1"),
                    _query("memory", {"type": "integer", "minimum": 1}, "bytes on each GPU"),
                    _query("kind", _NAME, "the GPUs' name"),
                ],
                "responses": _answers("Ranking", host.forbidden, 404),
            }
        }
    if host.kernels:
        paths["/kernels"] = {
            "get": {
                "operationId": "getKernels",
                "summary": "The kernels whose Python lacks the import hook, and what mends it; "
                "and those whose host the pool chose.",
                "responses": _answers("Kernels", host.forbidden),
            }
        }
        paths["/kernels/{kernel}/host"] = {
            "parameters": [
                {
                    "name": "kernel",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string", "pattern": r"^[A-Za-z0-9_-]+$"},
                    "description": "its id",
                }
            ],
            "post": {
                "operationId": "postKernelHost",
                "summary": "Restart a kernel on another host of the pool; its variables are lost.",
                "requestBody": _body("KernelHost"),
                "responses": _answers("MovedKernel", host.forbidden, 404, 409, 503),
            },
        }
    return {host.prefix + path: operations for path, operations in paths.items()}


_KERNEL_HOST: Final = _closed(
    {
        "host": {
            "type": "string",
            "pattern": f"^{HOST_NAME}$",
            "description": "its name in the pool",
        }
    },
    ("host",),
)


def document(base_url: str = "/", host: Host = SERVER) -> Json:
    """Return the OpenAPI document of a ``host`` whose base URL is ``base_url``."""
    answers = {
        **_ANSWERS,
        **({"Nodes": doc.Nodes, "Ranking": doc.Ranking} if host.many_nodes else {}),
        **({"Kernels": doc.Kernels, "MovedKernel": doc.MovedKernel} if host.kernels else {}),
    }
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
            "schemas": {
                **components(answers),
                **_bodies(),
                **({"KernelHost": _KERNEL_HOST} if host.kernels else {}),
            },
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
        },
    }
