"""How the node manager's settings become traits and options of its command line.

The settings themselves, with their defaults and their help, are declared in
``policy/words/config.py`` and in ``node/configuration.py``. Quotas are in ``quotas``.
"""
