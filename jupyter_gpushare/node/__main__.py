"""``python -m jupyter_gpushare.node``: the node manager as its own process."""

from .app import main

main()
