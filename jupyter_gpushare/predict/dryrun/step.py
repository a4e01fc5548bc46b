"""One iteration of somebody's own code, which a dry run runs in place of a model alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Step(NamedTuple):
    """What the models, losses and optimizers of a cell do in one iteration.

    ``source`` is the code, and ``names`` all that it needs.
    """

    source: str
    names: Mapping[str, Any]
