"""The REST interface's OpenAPI 3.1 document, built from plain data.

The Jupyter server's interface and JupyterHub's have the same resources; what
differs is a :class:`Host`. Held to the handlers by a test: schemathesis sends
what the document allows (and what it does not) to a real server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jupyter_gpushare._version import __version__
from jupyter_gpushare.protocol.messages import (
    LINE_PATTERN,
    LONGEST_SINCE,
    MOST_GPU_HOURS,
    MOST_IDLE,
    MOST_MEMORY,
    NAME,
    RUNGS,
    TEXT,
    WEIGHTS,
)
from jupyter_gpushare.protocol.sizes import MOST_GPUS

Json = dict[str, Any]

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


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_MORE: Json = {
    **_object({"leases": _COUNT, "queue": _COUNT}),
    "description": "how many rows there are after this page of an administrator's, or how many of"
    " others' are left out",
}
_BYTES: Json = {"type": "integer", "minimum": 0, "description": "bytes"}
_SECONDS: Json = {"type": "number", "description": "seconds"}
_UNIX: Json = {"type": "number", "description": "Unix time, seconds"}
_FLAG: Json = {"type": "boolean"}


_CLASS: Json = {"enum": ["interactive", "batch"]}
_SOURCE: Json = {"enum": ["default", "group", "user", "override"]}
_WHY_ENDED = (
    "Why a lease ended: released, cancelled (in the queue), revoked (by an administrator), "
    "kernel_ended, lost (its process is gone), heartbeat_lost, refused (the quota was lowered) "
    "or rebooted; there may be more words later. null: it has not ended."
)
_MEMORY_LIMIT = _or_null("integer", minimum=0, description="bytes on each GPU; null: whole GPUs")


_PER: Json = {
    "description": "'week', 'month', or the first day of a term; null: the rolling window",
    "anyOf": [{"enum": ["week", "month", None]}, {"type": "string", "format": "date"}],
}
_HOURS = _or_null("number", minimum=0, description="GPU-hours; null: they are not limited")
_BUDGET: Json = {
    "description": "GPU-hours held in a period; null: they are not limited",
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "hours": {"type": "number", "description": "GPU-hours that may be held"},
                "spent": {"type": "number", "description": "GPU-hours held, as measured last"},
                "window": {**_SECONDS, "description": "the rolling window, seconds"},
                "per": _PER,
                "when": {"type": "string", "description": "the period in words: 'this month'"},
                "level": {"enum": ["ok", "warned", "spent"]},
            },
            "required": ["hours", "spent", "window", "level"],
        },
        {"type": "null"},
    ],
}


_FROM_GROUPS: Json = {
    **_array({"type": "string"}),
    "description": "the groups whose quotas make it up, where its source is 'group'",
}
_IDLE = _or_null(
    "number",
    minimum=0,
    description="seconds after which an idle kernel's GPUs are asked back; 0: never; "
    "null: the node's own time-out",
)
_OWN_BURST = _or_null("number", description="the quota's own burst_memory; null: it has none")
_BURST: Json = {
    "type": "number",
    "description": "up to what limits are lifted on a nearly empty GPU: up to 1 a share of it, "
    "else bytes; 0: not at all",
}


_OUTLOOK: Json = {
    "description": "what it can expect; null: not yours to know",
    "anyOf": [
        _object(
            {
                "estimate": {
                    "description": "seconds until it is granted, about; null: there is none yet. "
                    "Made of when idle kernels are asked for their GPUs (if they stay idle), of "
                    "recent waits, or of when some GPU-hours are left again",
                    "anyOf": [
                        _object(
                            {
                                "low": _SECONDS,
                                "high": _SECONDS,
                                "basis": {"enum": ["idle", "waits", "budget"]},
                            }
                        ),
                        {"type": "null"},
                    ],
                },
                "idle": {
                    "description": "the idle kernel whose GPU it gets, if nothing else happens",
                    "anyOf": [
                        _object(
                            {
                                "mine": _FLAG,
                                "environment": _or_null("string", description="null: others'"),
                                "name": _or_null("string", description="null: others'"),
                                "idle": {**_SECONDS, "description": "seconds since it last ran"},
                                "after": {**_SECONDS, "description": "of idleness it is asked"},
                                "left": {**_SECONDS, "description": "seconds until then"},
                            }
                        ),
                        {"type": "null"},
                    ],
                },
                "idle_after": {
                    **_SECONDS,
                    "description": "after which an idle kernel is asked; 0: never",
                },
            }
        ),
        {"type": "null"},
    ],
}
_WARNINGS: Json = {
    **_array(_TEXT),
    "description": "what an administrator may not have meant by a quota that was set (more than "
    "any GPU or this node has; a user whom nobody knows), as sentences; it holds all the same",
}


_REMAINING: Json = {
    **_object(
        {
            "gpus": _COUNT,
            "memory": _array(_object({"uuid": _TEXT, "index": _COUNT, "bytes": _BYTES})),
        }
    ),
    "description": "what is left of it: GPUs that are not held yet, and on each that is held the"
    " memory that is not reserved yet",
}


def _quota(more: Json) -> Json:
    return {"gpus": _COUNT, "memory": _MEMORY_LIMIT, "weight": {"type": "number"}, **more}


def _waits_schema() -> Json:
    one = _object(
        {
            "granted": {**_COUNT, "description": "requests granted in the window"},
            "waited": {**_COUNT, "description": "those of them that had to wait"},
            "median": _or_null("number", description="seconds, of those that waited"),
            "longest": _or_null("number", description="seconds"),
        }
    )
    return _object({"window": _SECONDS, "interactive": one, "batch": one})


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
                "lifted": {
                    **_BYTES,
                    "description": "bytes of reserved above what people are entitled to",
                },
                "utilisation": _or_null("number", description="0 to 1"),
                "tasks": _COUNT,
                "health": {"enum": ["ok", "lost"]},
                "problem": _or_null("string"),
                "out_of_service": _ref("OutOfService"),
                "share_mode": {
                    "enum": ["space", "time"],
                    "description": "whether its tasks have a part each, or take turns",
                },
                "shared": {
                    **_BYTES,
                    "description": "bytes that tasks use by turns, with the head-room",
                },
                "persistent": {
                    **_BYTES,
                    "description": "bytes that its tasks keep across their steps, as they say",
                },
                "temporary": {
                    **_BYTES,
                    "description": "the most that a step of one of them needs beyond, in bytes",
                },
                "in_turns": {**_FLAG, "description": "whether a task computes there in its turn"},
                "squatters": _array(
                    _object(
                        {
                            "pid": _or_null("integer"),
                            "memory": _or_null("integer", description="bytes"),
                            "kind": {"enum": ["squatter", "over_limit"]},
                        }
                    )
                ),
            },
            optional=("out_of_service",),  # older node managers say nothing of it
        ),
        "OutOfService": {
            "description": "An administrator took the GPU out of service; null: it serves",
            "anyOf": [
                _object(
                    {
                        "reason": {**_TEXT, "description": "why, in the administrator's words"},
                        "by": _or_null("string", description="who did it; null: not yours to know"),
                        "leases": {**_COUNT, "description": "that are still there; 0: it is empty"},
                    }
                ),
                {"type": "null"},
            ],
        },
        "Lease": _object(
            {
                "id": _or_null("string", description="null: another environment's"),
                "environment": _or_null("string"),
                "mine": _FLAG,
                "state": {
                    "enum": [
                        *("queued", "active", "idle", "stalled", "draining"),
                        *("parking", "parked", "resuming", "over_limit", "ended"),
                    ]
                },
                "phase": {"enum": ["queued", "held", "parked", "ended"]},
                "activity": {"enum": ["busy", "idle"]},
                "name": _or_null("string"),
                "kind": {"enum": ["kernel", "process"]},
                "kernel_id": _or_null("string"),
                "path": _or_null(
                    "string",
                    description=(
                        "Of the notebook or script, as the task itself says it; nobody checks "
                        "it. It begins with '/' when it is absolute on the node's file system: "
                        "a script's always, a notebook's where its session has a name, as "
                        "JupyterLab's and Notebook's have. Otherwise it is relative to the root "
                        "of its Jupyter server. Of a console it names no file. To open it, look "
                        "for the session whose kernel is kernel_id: its path is what the "
                        "contents API takes. Else use this path, less the server's root. null: "
                        "unknown, or another environment's."
                    ),
                ),
                "pid": _or_null("integer"),
                "gpus": _array(
                    _object(
                        {
                            "uuid": _TEXT,
                            "index": {"type": "integer"},
                            "memory": {**_BYTES, "description": "bytes granted to this lease"},
                            "limit": {
                                **_BYTES,
                                "description": "bytes it may use now: more while it is lifted",
                            },
                            "measured": _or_null(
                                "integer", description="bytes it uses; null is unknown"
                            ),
                            "persistent": _or_null(
                                "integer",
                                description="bytes it keeps across its steps; null: unknown",
                            ),
                            "temporary": _or_null(
                                "integer", description="bytes that a step needs beyond those"
                            ),
                            "cache": _or_null(
                                "integer", description="bytes that its framework keeps unused"
                            ),
                        }
                    )
                ),
                "asked": _object({"gpus": _COUNT, "memory": _MEMORY_LIMIT}),
                "priority_class": _CLASS,
                "requested": _UNIX,
                "granted": _or_null("number"),
                "since": {**_UNIX, "description": "of the present state: Unix time, seconds"},
                "age": _SECONDS,
                "position": _or_null("integer"),
                "reason": _or_null("string", description=_WHY_ENDED),
                "kept": _or_null(
                    "string",
                    description="why an idle task that was asked for its GPUs keeps them",
                ),
                "over_limit": {
                    "description": (
                        "it uses more of a GPU than it may, and what is done about it when; null: "
                        "it does not, or not yours to know"
                    ),
                    "anyOf": [
                        _object(
                            {
                                "gpu": _TEXT,
                                "used": _or_null("integer", description="bytes"),
                                "limit": _BYTES,
                                "since": {**_UNIX, "description": "Unix time, seconds"},
                                "stage": {"enum": ["warned", "trim", "park", "last"]},
                                "next": {"enum": ["trim", "park", "last", None]},
                                "next_at": _or_null("number", description="Unix time, seconds"),
                            }
                        ),
                        {"type": "null"},
                    ],
                },
                "stall": {
                    "description": (
                        "what is done next about a task that gives no sign of life; null: it is "
                        "not stalled, nothing more is done, or not yours to know"
                    ),
                    "anyOf": [
                        _object(
                            {
                                "next": {"enum": ["interrupt", "kill"]},
                                "after": {
                                    "type": "number",
                                    "description": (
                                        "seconds that it makes no progress while somebody waits "
                                        "for its memory"
                                    ),
                                },
                                "at": _or_null(
                                    "number",
                                    description=(
                                        "Unix time, seconds, if it makes no progress until then; "
                                        "null: it does, or nobody waits for its memory"
                                    ),
                                ),
                            }
                        ),
                        {"type": "null"},
                    ],
                },
                "live_limits": _or_null(
                    "boolean",
                    description=(
                        "whether its frameworks' memory limits can change while it runs; null: "
                        "not tried yet"
                    ),
                ),
                "rung": {
                    "enum": [*RUNGS[:-1], None],
                    "description": "how a parked or resuming task gave its GPUs back",
                },
                "parked_memory": _or_null(
                    "integer", minimum=0, description="bytes of its GPUs' memory in the host's"
                ),
                "warning": {
                    "description": "its GPUs will be asked back; null: not, or not yours to know",
                    "anyOf": [
                        _object(
                            {
                                "reason": {"enum": ["contended", "idle", "budget_spent"]},
                                "at": {**_UNIX, "description": "when: Unix time, seconds"},
                            }
                        ),
                        {"type": "null"},
                    ],
                },
                "turn": {
                    "enum": ["rest", "waits", "holds", "yields", None],
                    "description": "how it stands with its turn; null: it needs none",
                },
                "turn_since": _or_null(
                    "number", description="since when it stands so: Unix time, seconds"
                ),
                "turn_place": _or_null(
                    "integer", minimum=1, description="its place in the line for a turn; 1 is next"
                ),
                "overran": {
                    **_FLAG,
                    "description": "whether it has once not given its turn back in time",
                },
                "pinned_until": _or_null(
                    "number", description="until when its people keep its GPUs: Unix time, seconds"
                ),
                "ability": {
                    "description": "the highest rung it can take, and why no higher; null: unknown",
                    "anyOf": [
                        _object({"rung": {"enum": list(RUNGS)}, "why": _TEXT}),
                        {"type": "null"},
                    ],
                },
                "may_be_taken_at": _or_null(
                    "number",
                    description="until when an idle one keeps its GPUs whoever waits: Unix time, "
                    "seconds; null: for ever, or not yours to know",
                ),
            },
            optional=("may_be_taken_at",),
        ),
        "Waiting": _object(
            {
                "position": {"type": "integer"},
                "lease": _or_null("string"),
                "mine": _FLAG,
                "environment": _or_null("string"),
                "priority_class": _CLASS,
                "gpus": _COUNT,
                "memory": _MEMORY_LIMIT,
                "waiting": _SECONDS,
                "ahead": _object({"interactive": _COUNT, "batch": _COUNT}),
                "reason": {
                    **_or_null("string", description="why it waits; null: not yours to know"),
                    "enum": ["no_resources", "budget_spent", "unavailable", None],
                },
                "message": _or_null(
                    "string", description="why it waits, for a person; null: not yours to know"
                ),
                "budget": {
                    "anyOf": [_ref("Budget")],
                    "description": "the GPU-hours that it waits for; null: it does not",
                },
                "outlook": _OUTLOOK,
            },
            optional=("budget", "outlook"),
        ),
        "Status": _object(
            {
                "node": _object(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "simulated": _FLAG,
                        "problem": _or_null("string"),
                        "time": _UNIX,
                        "started": _UNIX,
                        "max_tasks_per_gpu": _COUNT,
                        "heartbeat_timeout": _SECONDS,
                        "parked_memory": {**_BYTES, "description": "of the host, bytes"},
                        "parked_memory_limit": _or_null(
                            "integer", minimum=0, description="bytes; null: not limited"
                        ),
                        "notify_before": {
                            **_SECONDS,
                            "description": "seconds from a lease's warning to its parking",
                        },
                        "pin_limit": {
                            **_SECONDS,
                            "description": "the most for which an idle task keeps its GPUs",
                        },
                        "keep_for": {**_SECONDS, "description": "the usual time of a pin"},
                        "quantum": {
                            **_SECONDS,
                            "description": "after which a turn ends with the step, if others wait",
                        },
                        "quotas_as_of": _or_null(
                            "number",
                            description="when JupyterHub, which is away, told its groups' quotas",
                        ),
                        "connected": {
                            **_FLAG,
                            "description": "whether a server or task of one's own talks to it now",
                        },
                        "ledger": _or_null(
                            "string", description="where it is, for administrators of the node"
                        ),
                    },
                    optional=("quotas_as_of", "connected", "ledger"),
                ),
                "environment": _TEXT,
                "admin": _FLAG,
                "quota": _ref("HeldQuota"),
                "servers": _array(
                    {
                        "allOf": [
                            _ref("HeldQuota"),
                            _object({"environment": _TEXT, "mine": _array(_BYTES)}),
                        ],
                        "description": "your named servers that run or hold something, where each"
                        " has a quota of its own; mine: bytes reserved for it, by GPU",
                    }
                ),
                "gpus": _array(_ref("Gpu")),
                "leases": _array(_ref("Lease")),
                "queue": _array(_ref("Waiting")),
                "more": _MORE,
                "waits": _waits_schema(),
            },
            optional=("servers", "more"),
        ),
        "HeldQuota": _object(
            _quota(
                {
                    "source": _SOURCE,
                    "from_groups": _FROM_GROUPS,
                    "used_gpus": _COUNT,
                    "remaining": _REMAINING,
                    "idle_timeout": _IDLE,
                    "burst_memory": _BURST,
                    "budget": _ref("Budget"),
                }
            ),
            optional=("from_groups", "remaining", "idle_timeout", "burst_memory"),
        ),
        "Budget": _BUDGET,
        "Live": {
            "oneOf": [
                _object({"type": {"const": "status"}, "status": _ref("Status")}),
                _object({"type": {"const": "unavailable"}, "reason": _TEXT, "message": _TEXT}),
            ]
        },
        "Leases": _object(
            {"leases": _array(_ref("Lease")), "queue": _array(_ref("Waiting")), "more": _MORE},
            optional=("more",),
        ),
        "OwnQuota": _object({"environment": _TEXT, "admin": _FLAG, "quota": _ref("HeldQuota")}),
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
        "DailyUsage": _object(
            {
                "environment": _TEXT,
                "days": _array(_ref("UsedOnDay")),
                "servers": _array(
                    {
                        **_object({"environment": _TEXT, "days": _array(_ref("UsedOnDay"))}),
                        "description": "your named servers that held a GPU on these days, where "
                        "each has a quota of its own and none is asked for",
                    }
                ),
            },
            optional=("servers",),
        ),
        "UsedOnDay": _object(
            {
                "start": _UNIX,
                "end": _UNIX,
                "held": {**_SECONDS, "description": "GPU-seconds"},
                "busy": {**_SECONDS, "description": "GPU-seconds"},
                "leases": _COUNT,
                "node_held": {**_SECONDS, "description": "GPU-seconds of all"},
                "node_busy": {**_SECONDS, "description": "GPU-seconds of all"},
                "capacity": {
                    **_SECONDS,
                    "description": "GPU-seconds that the node's GPUs of now could give",
                },
            }
        ),
        "Readings": _object(
            {
                "step": {**_SECONDS, "description": "seconds between two times, at least"},
                "times": _array(_UNIX),
                "gpus": _array(
                    _object(
                        {
                            "uuid": _TEXT,
                            "utilisation": _array(_or_null("number", description="0 to 1")),
                            "used": _array(_or_null("integer", description="bytes")),
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
                            "what": {**_TEXT, "description": "the kind in words"},
                            "environment": _or_null("string"),
                            "lease": _or_null("string"),
                            "text": _TEXT,
                            "reason": _or_null("string", description=_WHY_ENDED),
                            "detail": _or_null(
                                "string",
                                description=(
                                    "the reason in more words: an administrator's own where it "
                                    "is revoked; null: there are none, or no lease ended"
                                ),
                            ),
                        },
                        optional=("what",),
                    )
                )
            }
        ),
        "LeaseState": _object({"lease": _TEXT, "state": _TEXT}),
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
        "GpuService": _object(
            {
                "gpu": {**_TEXT, "description": "its UUID"},
                "out_of_service": _ref("OutOfService"),
                "changed": {**_FLAG, "description": "false: it was so already"},
            }
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
        "Quota": _object(
            _quota(
                {
                    "environment": _TEXT,
                    "groups": {**_array(_TEXT), "description": "as identity told them"},
                    "own_burst_memory": _OWN_BURST,
                    "seen": {**_FLAG, "description": "whether it was ever here"},
                    "source": _SOURCE,
                    "from_groups": _FROM_GROUPS,
                    "used_gpus": _COUNT,
                    "remaining": _REMAINING,
                    "idle_timeout": _IDLE,
                    "burst_memory": _BURST,
                    "budget": _ref("Budget"),
                    "warnings": _WARNINGS,
                }
            ),
            optional=(
                *("from_groups", "remaining", "seen", "warnings"),
                *("idle_timeout", "burst_memory", "own_burst_memory"),
            ),
        ),
        "Quotas": _object(
            {
                "quotas": _array(_ref("Quota")),
                "default": _ref("GroupQuota"),
                "groups": _array(_ref("GroupQuota")),
                "warnings": _WARNINGS,
            },
            optional=("groups", "warnings"),
        ),
        "GroupQuota": _object(
            _quota(
                {
                    "group": _or_null("string", description="null: the default quota"),
                    "members": _or_null("integer", description="that are known; null: not asked"),
                    "source": {"enum": ["configuration", "override"]},
                    "gpu_hours": _HOURS,
                    "per": _PER,
                    "when": _or_null("string", description="the same in words, as 'this month'"),
                    "idle_timeout": _IDLE,
                    "burst_memory": _BURST,
                    "own_burst_memory": _OWN_BURST,
                    "warnings": _WARNINGS,
                }
            ),
            optional=(
                *("group", "members", "source", "per", "when", "warnings"),
                *("idle_timeout", "burst_memory", "own_burst_memory"),
            ),
        ),
    }


def _hub_schemas() -> Json:
    return {
        "Nodes": _object(
            {
                "nodes": _array(
                    _object(
                        {
                            "name": _TEXT,
                            "connected": _FLAG,
                            "message": {**_TEXT, "description": "why not; empty where it is"},
                        }
                    )
                )
            }
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
    return {"required": True, "content": {"application/json": {"schema": _ref(schema)}}}


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
            "schemas": {**_schemas(), **(_hub_schemas() if host.many_nodes else {})},
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
        },
    }
