"""A real Slurm for the tests of a file; where none can run, they are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hosts import NoHosts
from support.slurm import Slurm, missing


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    with Slurm() as running:
        yield running


@pytest.fixture(scope="module")
def walled() -> Iterator[Slurm]:
    """One that keeps GPUs from all jobs that did not ask for them."""
    try:
        with Slurm(hosts=("n1",), constrain=True) as running:
            yield running
    except NoHosts as why:
        pytest.skip(f"No Slurm with ConstrainDevices=yes can run here: {why}.")
