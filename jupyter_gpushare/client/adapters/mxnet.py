"""MXNet: the granted GPUs through ``CUDA_VISIBLE_DEVICES``, and no memory limit.

MXNet has no setting that caps a process's GPU memory: its
``MXNET_GPU_MEM_POOL_RESERVE`` keeps a share of the *whole* GPU free for others,
which on a shared GPU limits the wrong thing. The node manager's audit still
sees a task that takes more than its lease.
"""

from __future__ import annotations

from .importtime import ImportTimeAdapter


class MXNetAdapter(ImportTimeAdapter):
    """Nothing to set."""

    name = "MXNet"
    modules = frozenset({"mxnet"})


ADAPTER = MXNetAdapter
