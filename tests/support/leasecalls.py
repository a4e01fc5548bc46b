"""Every call about one lease of one's own, as an honest task makes it."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.protocol.messages import Method

from .node import GIB

#: With the other params as they should be.
CALLS: dict[Method, dict[str, Any]] = {
    Method.HEARTBEAT: {},
    Method.ACTIVITY: {"state": "idle"},
    Method.PARKING: {"memory": GIB},
    Method.PARKED: {"rung": "driver", "memory": GIB, "movable": "same", "seconds": 0.5},
    Method.GAVE: {"give": "process", "rung": "trim"},
    Method.RESTORED: {"seconds": 0.5},
    Method.PIN: {"seconds": 60},
    Method.ABILITY: {"rung": "driver", "why": "it can"},
    Method.STOPPABLE: {"can": True},
    Method.KEPT: {"reason": "no"},
    Method.RESUME: {"wait": False},
    Method.MEMORY: {
        "figures": [{"uuid": "GPU-x", "persistent": 1, "temporary": 1, "cache": 1}],
        "steps": 3,
        "can_take_turns": True,
    },
    Method.PROGRESS: {"done": 3, "total": None, "seconds": 0.5},
    Method.PROMISE: {"deadline": 600},
    Method.SERVING: {"address": "http://127.0.0.1:8000"},
    Method.TURN_ASK: {},
    Method.TURN_DONE: {},
    Method.TURN_LOCK: {},
    Method.TURN_LOCKED: {},
    Method.RELEASE: {},
}
