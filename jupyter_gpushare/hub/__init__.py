"""JupyterHub's side: the one-line set-up, and the pages at ``/services/gpushare/``."""

from .setup import Plan, SetupError, setup

__all__ = ["Plan", "SetupError", "setup"]
