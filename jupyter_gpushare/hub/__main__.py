"""``python -m jupyter_gpushare.hub``: what JupyterHub starts as its service."""

from .app import main

main()
