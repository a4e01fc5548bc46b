"""Share the GPUs of a host between many notebooks, just in time.

Nearly empty on purpose: this module runs first in every Python process that has the start-up hook,
and every import here would slow all of them down.
"""

from ._version import __version__

__all__ = [
    "Preempted",
    "__version__",
    "checkpoint",
    "elastic",
    "estimate",
    "gated",
    "gpu",
    "on_preempt",
    "steps",
    "sweep",
]

TYPE_CHECKING = False  # as in typing, which is not imported here
if TYPE_CHECKING:
    from typing import Any

    from . import elastic
    from .client.api import estimate
    from .client.decorator import gpu
    from .client.errors import Preempted
    from .client.gates import checkpoint, gated, on_preempt, steps
    from .jobs.sweeps import sweep


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("sweep", "elastic"):
        from .satellites import Part, take

        return take(Part.SWEEP).sweep if name == "sweep" else take(Part.ELASTIC)
    from . import client

    return getattr(client, name)


def load_ipython_extension(ipython: "Any") -> None:
    """``%load_ext jupyter_gpushare``: the magics, and the import hook if it is not there yet."""
    from ._boot import install
    from .client.cell.magics import load_ipython_extension as load

    install()
    load(ipython)


def unload_ipython_extension(ipython: "Any") -> None:
    """``%unload_ext jupyter_gpushare``: takes the magics away."""
    from .client.cell.magics import unload_ipython_extension as unload

    unload(ipython)


def _jupyter_server_extension_points() -> "list[dict[str, Any]]":
    """Called by Jupyter Server for each enabled extension."""
    from .server.extension import GpuShareExtension

    return [{"module": "jupyter_gpushare", "app": GpuShareExtension}]


def _jupyter_labextension_paths() -> "list[dict[str, str]]":
    """Called by ``jupyter-builder develop``, which links the built UI into an environment."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]
