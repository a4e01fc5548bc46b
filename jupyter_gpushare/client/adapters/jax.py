"""JAX: XLA's client variables, read when its backend starts (the first operation).

Without them JAX takes three quarters of every GPU it sees at its first operation. The variable for
the fraction has had two names. With both set JAX raises ``ValueError``, and an older JAX ignores
the new name. So we set it after the import, under the name that the installed jaxlib reads, unless
the user has set either.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..words.grant import Grant
from .batches import is_one_of_several
from .importtime import ImportTimeAdapter

_FRACTION = "XLA_CLIENT_MEM_FRACTION"
_FRACTION_DEPRECATED = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class JaxAdapter(ImportTimeAdapter):
    """No preallocation, and a fraction of each GPU when the lease has a limit."""

    name = "JAX"

    def before(self, grant: Grant | None) -> None:
        # Tasks of one environment share a GPU's reservation: none may take it all at once.
        self._variables.set("XLA_PYTHON_CLIENT_PREALLOCATE", "false" if grant is not None else None)

    def after(self, module: ModuleType, grant: Grant | None) -> None:
        self.before(grant)
        if any(map(self._variables.is_users, (_FRACTION, _FRACTION_DEPRECATED))):
            return
        fraction = grant.allocator_fraction if grant is not None else None
        self._variables.set(_fraction_variable(), None if fraction is None else f"{fraction:.4f}")

    def cuda_started(self, module: ModuleType) -> bool | None:
        """A client starts at the first operation, and keeps its GPU until the process ends."""
        backends = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None)
        if not isinstance(backends, dict):
            return None  # this JAX does not say
        return not _GPUS.isdisjoint(map(str, backends))

    def synchronize(self, jax: Any) -> None:
        """Wait for all arrays that are being computed, and for what has effects only."""
        jax.block_until_ready(jax.live_arrays())
        jax.effects_barrier()


def may_wait() -> bool:
    """Whether nothing is traced here, and no other process computes with this one. Cheap.

    Where this JAX does not say whether it traces, no.
    """
    if "jax" not in sys.modules:
        return True
    clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    return clean is not None and bool(clean()) and not is_one_of_several()


_GPUS = frozenset({"cuda", "gpu", "rocm"})


def _fraction_variable() -> str:
    """The name that the imported jaxlib reads."""
    reader = getattr(sys.modules.get("jaxlib.xla_client"), "generate_pjrt_gpu_plugin_options", None)
    constants = getattr(getattr(reader, "__code__", None), "co_consts", (_FRACTION,))
    return _FRACTION if _FRACTION in constants else _FRACTION_DEPRECATED


ADAPTER = JaxAdapter
