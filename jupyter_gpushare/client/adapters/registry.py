"""Finds the adapter of a framework.

An adapter knows one framework's habits: how its memory limit is set, and
whether its CUDA start can be caught. It never talks to the node manager and
never sets ``CUDA_VISIBLE_DEVICES``: ``client/acquire.py`` does both, and calls
the adapter around the framework's import::

    adapter = find("torch")
    adapter.before(grant)            # environment variables, before the module runs
    ...                              # the framework's module is executed
    adapter.after(module, grant)     # the framework's own API

or, with ``acquire = "first-use"`` and an adapter that can::

    adapter.before(None)
    ...
    adapter.first_use(module, acquire, expected)

An adapter may also have two members for `client/adapters/parkers`::

    adapter.parker(module)           # a `parkers.base.Parker`, always the same one, or None
    adapter.meter                    # a `parkers.steps.StepMeter`, or None

``adapter.synchronize(module)``, which waits for all work that is queued on the GPUs (for gates,
where there is no parker), and ``adapter.say``: it is then set to a function that says a line to the
person at the right time.

A built-in adapter is a file here with an ``ADAPTER``, unless there is nothing to set. The file has
the name of the framework's top-level module, which is listed in `BUILT_IN` and in
``_boot.FRAMEWORKS`` (that module loads nothing, and is loaded by nothing of ours, so it has a list
of its own). Other packages add theirs with an
entry point whose *name* is the framework's top-level module and whose value is a callable that
gives an `Adapter`::

    [project.entry-points."jupyter_gpushare.adapters"]
    tinygrad = "gpushare_tinygrad:TinygradAdapter"

Reading entry points takes tens of milliseconds, so no Python start does it.
They are read once, when a framework is imported that the finder knows; the
finder learns the others' names from ``JUPYTER_GPUSHARE_FRAMEWORKS`` (a comma
list). The Jupyter server sets it for its kernels and terminals when it starts,
from the same entry points of its own environment (`protocol.adapters`), unless
it is set already.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Final, Protocol, cast

from ...protocol.adapters import GROUP
from ..words.grant import Grant
from .importtime import PlainAdapter

#: Frameworks that get their GPUs through ``CUDA_VISIBLE_DEVICES``, and no memory limit. Caffe has
#: no setting that caps what its network allocates. MXNet's ``MXNET_GPU_MEM_POOL_RESERVE`` keeps a
#: share of the *whole* GPU free for others, which on a shared GPU limits the wrong thing. The node
#: manager's audit still sees a task that takes more than its lease.
_WITHOUT_LIMIT: Final = {"caffe": "Caffe", "mxnet": "MXNet"}
#: The top-level modules of the frameworks that are known here.
BUILT_IN: Final = ("caffe", "cupy", "jax", "mxnet", "paddle", "tensorflow", "torch")


class Adapter(Protocol):
    """One framework's habits. Nothing here may raise into the user's code."""

    name: str
    """What to call it in front of a person."""
    catches_first_use: bool
    """Whether `first_use` works; if not, the lease is taken at import."""
    # An adapter may have ``live_limits = True``: `after` then changes the limit of a framework
    # that runs, up and down, and may be called from another thread.

    def before(self, grant: Grant | None) -> None:
        """Prepare the environment; called before the module runs.

        ``grant`` is ``None`` when there is no lease (yet): CPU fallback, or a
        lease that `first_use` will take.
        """

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        """Tell the imported framework its limit; called again when the grant changes."""

    def cuda_started(self, module: ModuleType) -> bool | None:
        """Whether the framework has started CUDA in this process; ``None``: unknown.

        While it is ``False`` the process can do without its GPUs and get others
        later; anything else counts as started.
        """

    def first_use(
        self,
        module: ModuleType,
        acquire: Callable[[], Grant | None],
        expected: Callable[[], int],
    ) -> bool | None:
        """Have ``acquire`` called once, when the framework first starts CUDA.

        ``False``: this build of the framework cannot start CUDA.

        ``acquire`` sets ``CUDA_VISIBLE_DEVICES`` and may wait; exceptions it
        raises reach the user. ``None`` means no GPU. ``expected()`` is how many
        GPUs it would get as the quota stands; it must answer at once.
        """


def find(module: str) -> Adapter | None:
    """A new adapter for the framework whose top-level module this is, if any is known.

    Built-in adapters go first: no other package can put itself before them.

    Raises:
        Exception: whatever another package's adapter raises when loaded; the caller
            reports it and goes on without.
    """
    if module in _WITHOUT_LIMIT:
        return cast(Adapter, PlainAdapter(_WITHOUT_LIMIT[module]))
    if module in BUILT_IN:
        return cast(Adapter, importlib.import_module(f".{module}", __package__).ADAPTER())
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=module):
        return cast(Adapter, entry.load()())
    return None
