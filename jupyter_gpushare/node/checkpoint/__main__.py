"""``python -m jupyter_gpushare.node.checkpoint``: be this user's checkpoint helper."""

from .supervisor import main

if __name__ == "__main__":
    raise SystemExit(main())
