"""The user's side: ``from jupyter_gpushare.client import lease, status``.

Standard library only, and nothing is imported before it is used. No room in here has the name of
something that users import: Python would give them the room once it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import (
        estimate,
        history,
        lease,
        quota,
        release,
        request,
        server_token,
        servers,
        status,
        usage,
    )
    from .decorator import gpu
    from .errors import (
        GpuShareError,
        LeaseLost,
        NodeUnavailable,
        NotGranted,
        Preempted,
        QuotaExceeded,
    )
    from .gates import checkpoint, gated, on_preempt, steps

__all__ = [
    "GpuShareError",
    "LeaseLost",
    "NodeUnavailable",
    "NotGranted",
    "Preempted",
    "QuotaExceeded",
    "checkpoint",
    "estimate",
    "gated",
    "gpu",
    "history",
    "lease",
    "on_preempt",
    "quota",
    "release",
    "request",
    "server_token",
    "servers",
    "status",
    "steps",
    "usage",
]

_HOMES = {
    **dict.fromkeys(("GpuShareError", "LeaseLost", "NodeUnavailable"), ".errors"),
    **dict.fromkeys(("NotGranted", "Preempted", "QuotaExceeded"), ".errors"),
    **dict.fromkeys(("checkpoint", "gated", "on_preempt", "steps"), ".gates"),
    "gpu": ".decorator",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, ".api"), __name__), name)
