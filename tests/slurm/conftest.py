"""One real Slurm for the tests of a file; where none can run, they are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.slurm import Slurm, missing


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    with Slurm() as running:
        yield running
