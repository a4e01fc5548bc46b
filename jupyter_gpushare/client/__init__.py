"""The user's side: ``from jupyter_gpushare.client import lease, status``.

Standard library only, and nothing is imported before it is used. No room in here has the name of
something that users import: Python would give them the room once it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import history, lease, quota, release, request, status, usage
    from .decorator import gpu
    from .errors import GpuShareError, LeaseLost, NodeUnavailable, QuotaExceeded

__all__ = [
    "GpuShareError",
    "LeaseLost",
    "NodeUnavailable",
    "QuotaExceeded",
    "gpu",
    "history",
    "lease",
    "quota",
    "release",
    "request",
    "status",
    "usage",
]

_ERRORS = ("GpuShareError", "LeaseLost", "NodeUnavailable", "QuotaExceeded")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = ".errors" if name in _ERRORS else ".decorator" if name == "gpu" else ".api"
    return getattr(import_module(home, __name__), name)
