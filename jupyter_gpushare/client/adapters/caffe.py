"""Caffe: the granted GPUs through ``CUDA_VISIBLE_DEVICES``, and no memory limit.

Caffe allocates what its network needs and has no setting that caps it. The node
manager's audit still sees a task that takes more than its lease.
"""

from __future__ import annotations

from .importtime import ImportTimeAdapter


class CaffeAdapter(ImportTimeAdapter):
    """Nothing to set."""

    name = "Caffe"
    modules = frozenset({"caffe"})


ADAPTER = CaffeAdapter
