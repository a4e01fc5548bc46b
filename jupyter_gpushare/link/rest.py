"""The REST interface: each resource, its input, its call to the node manager, its answer.

The Jupyter server and JupyterHub's service both serve this table, each with its own login, and the
OpenAPI document describes it. Pure: the caller gives the link to the node manager.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from jupyter_gpushare.protocol.messages import Method

from . import wishes
from .errors import NodeProblem

Document = Mapping[str, Any]


#: Asks a node manager for a method with its parameters; ``None`` parameters are left out. Raises
#: :class:`NodeProblem`.
Ask = Callable[..., Awaitable[Document]]
Does = Callable[[Ask, Mapping[str, Any]], Awaitable[Document]]


#: The parameters of a path: what of the address each is, and its form.
PATH_PARTS: Final[Mapping[str, tuple[str, wishes.Form]]] = {
    "lease": ("[^/]+", wishes.LEASE),
    "gpu": ("[^/]+", wishes.GPU),
    # "alice/server" is a name.
    "environment": (".+", wishes.ENVIRONMENT),
}
_PART: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a resource. ``name``, ``summary``, ``answer`` and ``body`` are OpenAPI's.

    ``query``: the call whose parameters the query may have. ``missing``: it may answer that there
    is no such thing. ``admin``: it concerns other people's things.
    """

    verb: str
    path: str
    name: str
    summary: str
    answer: str
    does: Does
    query: Method | None = None
    body: str = ""
    missing: bool = False
    admin: bool = False

    @property
    def parts(self) -> list[str]:
        """The names of the parameters in the path, in their order."""
        return _PART.findall(self.path)


def _passes(method: Method) -> Does:
    """Answer what the node manager answers."""

    async def does(ask: Ask, given: Mapping[str, Any]) -> Document:
        return await ask(method, **given)

    return does


def _picks(*names: str) -> Does:
    """Answer some members of the status document."""

    async def does(ask: Ask, given: Mapping[str, Any]) -> Document:
        status = await ask(Method.STATUS, **given)
        return {name: status[name] for name in names if name in status}

    return does


def _changes(method: Method) -> Does:
    """Change a lease, and answer with its new state."""

    async def does(ask: Ask, given: Mapping[str, Any]) -> Document:
        return {"lease": given["lease"], "state": (await ask(method, **given))["state"]}

    return does


async def _quota_of(ask: Ask, given: Mapping[str, Any]) -> Document:
    name = given["environment"]
    for quota in (await ask(Method.QUOTA_LIST))["quotas"]:
        if quota["environment"] == name:
            return dict(quota)
    raise NodeProblem("not_found", f"No quota is set for {name!r}: it has the default quota.")


#: In the order of the document; the operations of a path stand together.
OPERATIONS: Final = (
    Operation(
        "get",
        "/status",
        "getStatus",
        "GPUs, leases and queue of the node.",
        "Status",
        _passes(Method.STATUS),
        query=Method.STATUS,
    ),
    Operation(
        "get",
        "/leases",
        "getLeases",
        "Leases and waiting requests.",
        "Leases",
        _picks("leases", "queue", "more"),
        query=Method.STATUS,
    ),
    Operation(
        "delete",
        "/leases/{lease}",
        "releaseLease",
        "Release a lease of yours.",
        "LeaseState",
        _changes(Method.RELEASE),
        missing=True,
    ),
    Operation(
        "post",
        "/leases/{lease}/revoke",
        "revokeLease",
        "Take anyone's lease away (admin).",
        "LeaseState",
        _changes(Method.LEASE_REVOKE),
        body="Revoke",
        missing=True,
        admin=True,
    ),
    Operation(
        "post",
        "/leases/{lease}/pin",
        "pinLease",
        "Keep an idle lease's GPUs for a while, within the administrator's limit.",
        "LeaseState",
        _changes(Method.PIN),
        body="Pin",
        missing=True,
    ),
    Operation(
        "post",
        "/gpus/{gpu}/drain",
        "drainGpu",
        "Take a GPU out of service: nothing new is placed on it (admin).",
        "GpuService",
        _passes(Method.GPU_DRAIN),
        body="Drain",
        missing=True,
        admin=True,
    ),
    Operation(
        "post",
        "/gpus/{gpu}/resume",
        "resumeGpu",
        "Put a GPU back into service (admin).",
        "GpuService",
        _passes(Method.GPU_RESUME),
        missing=True,
        admin=True,
    ),
    Operation(
        "get",
        "/quota",
        "getQuota",
        "Your own quota.",
        "OwnQuota",
        _picks("environment", "admin", "quota"),
    ),
    Operation(
        "get",
        "/servers",
        "getServers",
        "The model servers of the host that you may use, and what opens them.",
        "Servers",
        _passes(Method.SERVERS),
    ),
    Operation(
        "get",
        "/usage",
        "getUsage",
        "GPU-seconds held and busy by environment.",
        "Usage",
        _passes(Method.USAGE),
        query=Method.USAGE,
    ),
    Operation(
        "get",
        "/usage/daily",
        "getDailyUsage",
        "GPU-seconds by local day, oldest first; today ends now.",
        "DailyUsage",
        _passes(Method.USAGE_DAILY),
        query=Method.USAGE_DAILY,
    ),
    Operation(
        "get",
        "/readings",
        "getReadings",
        "Memory, utilisation, turns and sensors of the GPUs over the last minutes to a day.",
        "Readings",
        _passes(Method.READINGS),
        query=Method.READINGS,
        missing=True,
    ),
    Operation(
        "get",
        "/history",
        "getHistory",
        "The ledger's latest events, newest first.",
        "History",
        _passes(Method.HISTORY),
        query=Method.HISTORY,
    ),
    Operation(
        "get",
        "/quotas",
        "listQuotas",
        "The quotas of every environment that the node manager knows (admin).",
        "Quotas",
        _passes(Method.QUOTA_LIST),
        admin=True,
    ),
    Operation(
        "get",
        "/quotas/{environment}",
        "getQuotaOf",
        "One environment's quota (admin).",
        "Quota",
        _quota_of,
        missing=True,
        admin=True,
    ),
    Operation(
        "put",
        "/quotas/{environment}",
        "setQuota",
        "Set an environment's quota (admin).",
        "Quota",
        _passes(Method.QUOTA_SET),
        body="QuotaWish",
        admin=True,
    ),
    Operation(
        "delete",
        "/quotas/{environment}",
        "unsetQuota",
        "Go back to the default quota (admin).",
        "Quota",
        _passes(Method.QUOTA_UNSET),
        missing=True,
        admin=True,
    ),
)


def resources() -> Iterator[tuple[str, tuple[Operation, ...]]]:
    """Yield each resource: the pattern of its address (without the first slash), its operations."""
    for path, operations in groupby(OPERATIONS, lambda one: one.path):
        pattern = _PART.sub(lambda part: f"({PATH_PARTS[part[1]][0]})", path)
        yield pattern.removeprefix("/"), tuple(operations)


async def answer(
    operation: Operation,
    ask: Ask,
    path: Sequence[str],
    query: Mapping[str, Sequence[bytes]],
    body: bytes,
) -> Document:
    """Do what a request wants, and return the document that answers it.

    The request has these parts of its path, its query's arguments, and its body.

    Raises :class:`NodeProblem` with the node manager's refusal, or for a request that makes no
    sense; the node manager is not asked then.
    """
    given: dict[str, Any] = {}
    for name, text in zip(operation.parts, path, strict=True):
        given[name] = PATH_PARTS[name][1].read(text)
    if operation.query is not None:
        given |= wishes.query(operation.query, query)
    if operation.body:
        given |= wishes.BODIES[operation.body](body)
    return await operation.does(ask, given)
