"""JupyterHub's side: the one-line set-up, and the pages at ``/services/gpushare/``."""
