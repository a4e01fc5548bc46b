"""A dry run: what a model and a batch need, found in a subprocess and without a GPU."""

from .errors import DryRunFailed
from .run import dry_run

__all__ = ["DryRunFailed", "dry_run"]
