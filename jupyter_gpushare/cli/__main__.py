"""``python -m jupyter_gpushare.cli``: the command where its script is not on the PATH."""

from .app import main

main()
