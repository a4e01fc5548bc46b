"""Decides about ``CUDA_VISIBLE_DEVICES``: who set its value, and which value it gets.

The lease decides which GPUs a task sees, but three wishes of people and
launchers are kept: an empty value ("no GPU, please"), a launcher's choice for
one of its workers among the GPUs of the lease that they share, and nothing at
all where there is no node manager.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Final

from ...protocol import names
from ...protocol.processes import open_files
from ..words.grant import Grant, GrantedGpu

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
#: CUDA counts GPUs as the driver does, and not the fastest first.
ORDER: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
#: The part of a GPU's multiprocessors that a process may use where NVIDIA's MPS runs; CUDA reads it
#: when it starts.
THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_MPS: Final = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
_NOTHING: Final = frozenset({"", "-1", "NoDevFiles"})


class Visible:
    """The variable in ``environ``, which is changed; ``by_index``: whether it has indices."""

    def __init__(
        self, environ: MutableMapping[str, str], by_index: Callable[[], bool] = lambda: False
    ) -> None:
        self._environ = environ
        self._by_index = by_index
        # Hidden by our parent until there is a lease: no wish of the user's.
        self._ours = "" if environ.get(names.HIDDEN) else None
        self._threads: str | None = None  # that we set

    @property
    def is_ours(self) -> bool:
        """Whether we set the value."""
        return self._ours is not None and self._environ.get(VISIBLE) == self._ours

    @property
    def hidden_by_user(self) -> bool:
        """Whether the user has said that this task wants no GPU."""
        value = self._environ.get(VISIBLE)
        return value is not None and value.strip() in _NOTHING and not self.is_ours

    @property
    def names_gpus(self) -> bool:
        """Whether the value names GPUs, whoever set it."""
        return self._environ.get(VISIBLE, "").strip() not in _NOTHING

    def show(self, grant: Grant) -> str | None:
        """Show the GPUs of this task's own lease; the value that was the user's, if it had one."""
        value = self._named(grant)
        before = self._environ.get(VISIBLE)
        replaced = before not in (None, value) and not self.is_ours
        self._set(value)
        self._limit_threads(grant.share)
        return before if replaced else None

    def show_part(self, grant: Grant) -> Grant:
        """Show the GPUs of a lease that this task shares; what it sees of it, in its order.

        A launcher may have chosen some of them for this worker, by UUID or by
        the number under which its own process sees them.
        """
        value = "" if self.is_ours else self._environ.get(VISIBLE, "")
        # With indices a number is the GPU's own; otherwise it is the place in the parent's lease.
        numbered = _numbered(value, grant.gpus) if self._by_index() else None
        chosen = numbered or choose(value, grant.gpus)
        part = grant if chosen is None else grant._replace(gpus=chosen)
        self._set(self._named(part))
        return part

    def _named(self, grant: Grant) -> str:
        if not self._by_index():
            return grant.visible_devices
        # So that children that join the lease do the same.
        self._environ.update({**ORDER, names.VISIBLE_DEVICES: "indices"})
        return grant.indices

    def hide(self, *, children_may_ask: bool) -> None:
        """Show no GPU. Child processes may ask for their own, or do as we do."""
        self._set("")
        if children_may_ask:
            self._environ[names.HIDDEN] = "1"

    def _limit_threads(self, share: int | None) -> None:
        """With MPS a task's predicted share also bounds what it computes at once."""
        if (share is None and self._threads is None) or self._environ.get(THREADS) != self._threads:
            return  # there is nothing to say, or the user has said it
        self._environ.pop(THREADS, None)
        self._threads = None
        where = self._environ.get(*_MPS)
        if share is not None and os.path.exists(os.path.join(where, "control")):
            self._environ[THREADS] = self._threads = str(share)

    def _set(self, value: str) -> None:
        self._environ.pop(names.HIDDEN, None)
        self._environ[VISIBLE] = self._ours = value


def _numbered(value: str, gpus: Sequence[GrantedGpu]) -> tuple[GrantedGpu, ...] | None:
    """The GPUs with these indices; ``None``: not all of them are such."""
    found = {str(gpu.index): gpu for gpu in gpus}
    entries = [entry.strip() for entry in value.split(",")]
    is_all = all(entry in found for entry in entries)
    return tuple(found[entry] for entry in dict.fromkeys(entries)) if is_all else None


def choose(value: str, gpus: Sequence[GrantedGpu]) -> tuple[GrantedGpu, ...] | None:
    """The GPUs that ``value`` means among ``gpus``; ``None`` when it means something else."""
    chosen: list[GrantedGpu] = []
    for entry in value.split(","):
        name = entry.strip()
        if name.isascii() and name.isdigit():
            # Python refuses to read a number of thousands of digits, and no GPU's has six.
            found = [gpus[int(name)]] if len(name) < 6 and int(name) < len(gpus) else []
        else:
            # CUDA takes the beginning of a UUID for it, if only one GPU has that. `GPU-` alone says
            # nothing.
            found = [gpu for gpu in gpus if len(name) >= 5 and gpu.uuid.startswith(name)]
        if len(found) != 1 or found[0] in chosen:
            return None
        chosen += found
    return tuple(chosen)


def cuda_started(device: str = "/dev/nvidia-uvm") -> bool:
    """Whether CUDA runs in this process, so that its GPUs cannot be exchanged any more.

    CUDA keeps this ``device`` open; NVML, which only reads, does not.
    """
    torch = sys.modules.get("torch")
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    if is_initialized is not None and is_initialized():
        return True
    if not os.access(device, os.F_OK):
        return False  # nobody can have it open, and to look at all files costs much
    return any(file == device for _number, file in open_files())


def cuda_loaded() -> bool:
    """Whether this process has loaded the CUDA driver's library, without which it uses none."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as mapped:
            return any("/libcuda.so" in line for line in mapped)
    except OSError:
        return True
