"""Bounds the leases of one process and of one environment: quotas do not, as leases share GPUs."""

from __future__ import annotations

from ..books.state import State
from ..say import texts
from ..words.config import PolicyConfig
from ..words.model import EnvironmentName, ProcessId


def too_many_leases(
    state: State, config: PolicyConfig, process: ProcessId, environment: EnvironmentName
) -> str | None:
    """Why they may have no lease more; ``None``: they may."""
    limit = config.max_leases_per_process
    if len(state.by_process.get(process, ())) >= limit:
        return texts.lease_limit_text("process", limit)
    limit = config.max_leases_per_environment
    if state.lease_counts.get(environment, 0) >= limit:
        return texts.lease_limit_text("environment", limit)
    return None
